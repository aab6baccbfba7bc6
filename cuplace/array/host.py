"""Values from the host: which of them become arrays, and of which type."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuplace.array.dtypes import narrow, scalar_type
from cuplace.errors import GpuArrayError, InvalidValueError, MaskedArrayError, NotAnArrayError


def read_host_value(value: Any) -> tuple[np.ndarray, bool]:
    """A value as a NumPy array of a type that arrays can have, and whether that type is weak.

    Python numbers are weak, NumPy scalars are not. The array may be the value itself.

    Raises:
        NotAnArrayError, InvalidValueError: TypeErrors, for strings and for what is no number and has no dtype.
        GpuArrayError: a TypeError, for arrays on a GPU.
        DtypeError: a TypeError, for objects, strings, dates and foreign byte orders in NumPy arrays.
        MaskedArrayError: a ValueError, for NumPy's masked arrays.
        IntegerRangeError: an OverflowError, for integers that the type does not hold.
    """
    if isinstance(value, str):
        raise NotAnArrayError(value)
    if isinstance(value, np.ma.MaskedArray):
        raise MaskedArrayError()
    if isinstance(value, np.ndarray | np.generic):
        return narrow(np.asarray(value)), False
    if isinstance(value, bool | int | float | complex):
        dtype, weak_type = scalar_type(value)
        return np.array(value, dtype=dtype), weak_type
    if hasattr(value, "__cuda_array_interface__"):
        raise GpuArrayError(value)
    raise InvalidValueError(value)
