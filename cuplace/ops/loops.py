"""Functions that NumPy computes slowly, as compiled loops.

NumPy needs 2 to 3 ns for the sine of one float32, several times what its memory takes. The loops of `cuplace.ops.sine`
need a third of that, round better, and let go of the interpreter's lock once a call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

COMPILED = frozenset({"sin", "cos"})
"""Functions of float32 that there are loops for."""

WORTHWHILE = 1 << 12
"""Numbers of one result from which on its loop is used: for few, loading the compiler would not pay."""


def host_function(name: str, dtype: np.dtype, size: int) -> Callable[..., Any]:
    """What computes a ufunc on the host for results of one dtype, of ``size`` numbers each.

    Returns:
        The ufunc, or what is called like it, ``f(x)``, ``f(x, out)`` or ``f(x, out=out)``, and gives its values, of
        float32 to within 0.51 units in the last place (NumPy's are to within 1.5).

    Example:
        >>> host_function("sin", np.dtype("float32"), 10) is np.sin
        True
        >>> x = np.linspace(0, 7, 1 << 12, dtype=np.float32)
        >>> sin = host_function("sin", x.dtype, x.size)
        >>> bool(np.allclose(sin(x), np.sin(x), rtol=3e-7))
        True
    """
    if name in COMPILED and dtype == np.float32 and size >= WORTHWHILE:
        return _loop(name)
    function: Callable[..., Any] = getattr(np, name)
    return function


@functools.cache
def _loop(name: str) -> Callable[..., Any]:
    from cuplace.ops import sine  # loads a compiler

    ufunc = getattr(np, name)
    half = 0.5 if name == "cos" else 0.0

    def compute(x: Any, out: Any = None) -> Any:
        if out is None:
            out = np.empty(x.shape, np.float32)
        flags = out.flags
        if not (flags.c_contiguous and flags.aligned and out.dtype == x.dtype == np.float32):
            return ufunc(x, out=out)
        flags = x.flags
        if x.shape == out.shape and flags.c_contiguous and flags.aligned and not np.may_share_memory(x, out):
            sine.sine(x.reshape(-1), out.reshape(-1), half)
            return out
        if x is not out:
            np.copyto(out, x)
        sine.sine_in_place(out.reshape(-1), np.empty(sine.BLOCK, np.float32), half)
        return out

    return compute
