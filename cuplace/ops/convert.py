"""``CONVERT``: values in another dtype, or of another weakness."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuplace.array import dtypes
from cuplace.array.type import ArrayType
from cuplace.ops.elementwise import elementwise_rule
from cuplace.ops.op import Op, OutType, Params


def _infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    return OutType(types[0].shape, params["dtype"], params["weak_type"])


def _convert(xp: Any, x: Any, *, dtype: np.dtype, weak_type: bool) -> Any:
    return convert(xp, x, dtype)


def convert(xp: Any, x: Any, dtype: np.dtype) -> Any:
    """The values of an array of ``xp`` in another dtype; the array itself where it has that dtype.

    Complex numbers lose their imaginary part. Integers wrap around. Floats lose their fraction, and those that an
    integer dtype cannot hold become its nearest limit, NaN 0, as in JAX: in NumPy what they become is left to the
    machine.

    >>> convert(np, np.float32([1.5, 1e10, np.nan]), np.dtype("int32")).tolist()
    [1, 2147483647, 0]
    """
    if x.dtype == dtype:
        return x
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        x = x.real
    if dtype.kind in "iu" and dtypes.is_float(x.dtype):
        return _whole_numbers(xp, x, dtype)
    if _through_float(x.dtype, dtype):
        x = x.astype(np.float32)
    return x.astype(dtype)


def _whole_numbers(xp: Any, x: Any, dtype: np.dtype) -> Any:
    if x.dtype.itemsize < 4:
        x = x.astype(np.float32)  # which holds the limits of all integer dtypes, as powers of two
    limits = np.iinfo(dtype)
    low, high = float(limits.min), float(limits.max)
    whole = xp.where((x >= low) & (x < high), x, x.dtype.type(0)).astype(dtype)
    whole = xp.where(x >= high, dtype.type(limits.max), whole)
    return xp.where(x < low, dtype.type(limits.min), whole)


def _through_float(source: np.dtype, target: np.dtype) -> bool:
    """Whether there is no direct cast: between the floats of ml_dtypes, and from them to complex numbers."""
    extended = dtypes.EXTENSION_FLOATS
    return (source in extended and (target in extended or target.kind == "c")) or (
        target in extended and source.kind == "c"
    )


CONVERT = Op(name="convert_element_type", infer=_infer, rule=elementwise_rule(), compute=_convert, elementwise=True)
"""Params: ``dtype`` (a NumPy dtype), ``weak_type`` (bool). The same values where only the weakness changes."""
