"""Functions that NumPy computes slowly, as compiled loops.

NumPy needs 2 to 3 ns for the sine of one float32, several times what its memory takes. A loop of `cuplace.ops.sine`
needs a fourth of that, is at most 1.25 units in the last place off, where NumPy is up to 1.5, and lets go of the
interpreter's lock once a call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from cuplace.runtime.backends.interrupts import Uninterrupted

_QUARTER = {"sin": 0, "cos": 1}
"""The functions of float32 that there is a loop for, and by how many quarter turns they are ahead of the sine."""

WORTHWHILE = 1 << 15
"""Numbers of a whole result from which on a loop is used: for fewer, loading the compiler would not pay."""

_FLOAT32 = np.dtype(np.float32)

LIMIT = 2.0**20
"""Magnitudes from here on are too large for a loop."""

BLOCK = 1 << 16
"""Numbers that are looked at, or copied before they are overwritten, at a time."""


def host_function(name: str, dtype: np.dtype, size: int) -> Callable[..., Any]:
    """What computes a ufunc on the host for results of one dtype.

    Args:
        name: of the ufunc.
        dtype: of its operands and results.
        size: how many numbers the whole result has, on all devices: so each has the same bits wherever it is computed.

    Returns:
        The ufunc, or what is called like it, ``f(x)``, ``f(x, out)`` or ``f(x, out=out)``, and gives its values: below
        2**20 in magnitude to within 1.25 units in the last place, where NumPy's are to within 1.5.

    Example:
        >>> host_function("sin", np.dtype("float32"), 10) is np.sin
        True
        >>> x = np.linspace(0, 7, 1 << 12, dtype=np.float32)
        >>> sin = host_function("sin", x.dtype, x.size)
        >>> bool(np.allclose(sin(x), np.sin(x), rtol=3e-7))
        True
    """
    if name in _QUARTER and dtype == _FLOAT32 and size >= WORTHWHILE:
        return _loop(name)
    function: Callable[..., Any] = getattr(np, name)
    return function


@functools.cache
def _loop(name: str) -> Callable[..., Any]:
    """What computes a function by its loop, or the ufunc where nothing can be compiled, or not well: numba comes later
    than the versions of NumPy that it is for, a user may have turned it off, and a processor may not add products."""
    ufunc: Callable[..., Any] = getattr(np, name)
    try:
        with Uninterrupted():  # a compiler that was half loaded could never be loaded again
            from cuplace.ops.sine import adds_products, sine_ahead_by

            if not adds_products():
                return ufunc
            loop = sine_ahead_by(_QUARTER[name])
    except ImportError:
        return ufunc
    return ufunc if isinstance(loop, FunctionType) else functools.partial(_compute, loop, ufunc)


def _compute(loop: Callable[[Any, Any], bool], ufunc: Any, x: Any, out: Any = None) -> Any:
    """The values of a loop for an array of any layout, which may share memory with the result."""
    if out is None:
        out = np.empty(x.shape, np.float32)
    if not _is_plain(out):
        out[...] = _compute(loop, ufunc, x)
    elif x.shape == out.shape and _is_plain(x) and not np.may_share_memory(x, out):
        numbers, results = x.reshape(-1), out.reshape(-1)
        if not loop(numbers, results):
            _mend(ufunc, numbers, results)
    else:
        if x is not out:
            np.copyto(out, x)
        flat = out.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            block = flat[start : start + BLOCK]
            _compute(loop, ufunc, block.copy(), block)
    return out


def _mend(ufunc: Any, numbers: Any, results: Any) -> None:
    """NumPy's results for what is too large for a loop: a number has the same one whatever is beside it. There may be
    nothing to mend: what is not a number sends here, too, and is right already."""
    for start in range(0, numbers.size, BLOCK):
        part = slice(start, start + BLOCK)
        large = np.abs(numbers[part]) >= LIMIT
        results[part][large] = ufunc(numbers[part][large])


def _is_plain(x: np.ndarray[Any, Any]) -> bool:
    """Whether a loop can read it, and write to it if it may be written to."""
    flags = x.flags
    return flags.c_contiguous and flags.aligned and x.dtype == _FLOAT32
