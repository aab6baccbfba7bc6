"""OwnMemory: what backends say of memory where devices have all that there is, and nobody else a part of it."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from cuplace.runtime.device import Device


class OwnMemory:
    """The part of ``runtime.backends.base.Backend`` that needs no hardware of its own: a base class."""

    def host_array(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array

    def trim(self) -> int:
        return 0

    def usage(self) -> tuple[tuple[()], None]:
        return (), None

    def shortage(self, device: Device, nbytes: int) -> list[str]:
        return []

    def finish(self) -> None:
        """No memory goes back in the order of streams."""
