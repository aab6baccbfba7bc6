"""Memory of any platform, as tests look at it: where an array lies, and arrays that somebody else made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cuplace.runtime.device import Device


def address_of(array: Any) -> int:
    """The address of the first element of a NumPy or CuPy array."""
    if isinstance(array, np.ndarray):
        return int(array.__array_interface__["data"][0])
    return int(array.data.ptr)


def foreign_array(device: Device, values: np.ndarray) -> Any:
    """An array of the platform's array module on the hardware of ``device``, complete, with the values and strides
    of a NumPy array."""
    xp = device.backend.xp
    if xp is np:
        return values
    base = values if values.base is None else values.base
    with xp.cuda.Device(device.gpu):
        copied = xp.asarray(base, order="K")
        xp.cuda.get_current_stream().synchronize()
    offset = copied.data + (address_of(values) - address_of(base))
    return xp.ndarray(values.shape, values.dtype, offset, values.strides)


def host_values(array: Any) -> np.ndarray:
    """The values of a complete NumPy or CuPy array."""
    return array if isinstance(array, np.ndarray) else array.get()


class Cycle:
    """Keeps something until the garbage is collected; then, calls ``dying``."""

    def __init__(self, kept: Any, dying: Callable[[Any], None] = lambda kept: None) -> None:
        self.itself = self
        self.kept = kept
        self.dying = dying

    def __del__(self) -> None:
        self.dying(self.kept)
