"""Sine and cosine of float32, as a loop that numba compiles when this module is loaded, or loads from its cache.

The argument is reduced by multiples of pi to [-pi/2, pi/2] as W. J. Cody and W. Waite do it (Software Manual for the
Elementary Functions, 1980), with pi in three parts: products of the first two, of 29 bits each, with a multiple below
2**24 are exact in float64. A polynomial gives the sine of the rest to within 2**-35. All of that is done in float64,
so the result is the nearest float32 but in one case of some thousands. The loop has no branches and no calls, so that
it runs on vectors; whether an argument was too large for that, it tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types

from cuplace.ops.loops import LIMIT

PER_PI = 1.0 / math.pi
PI_1 = float.fromhex("0x1.921fb54p+1")
PI_2 = float.fromhex("0x1.10b4611p-29")
PI_3 = float.fromhex("0x1.4c4c6628b80dcp-58")

C3, C5, C7, C9, C11 = (
    -0.16666666626148552, 0.00833333110856602, -0.0001984086820580053, 2.752538424012369e-06, -2.3888906354810335e-08
)  # fmt: skip
"""Of r**3 to r**11, with the least relative error on [-pi/2, pi/2]."""

ROUNDING = 1.5 * 2.0**52
"""Added to a float64, it rounds to an integer, of which the lowest bit is the lowest bit of the sum."""

SIGN_BIT = np.int64(63)

Loop = Callable[[Any, Any, float], bool]


def _compiled(function: Loop) -> Loop:
    """The compiled function, which lets go of the interpreter's lock. Products may be fused with sums: that rounds once
    less."""
    read = types.Array(types.float32, 1, "C", readonly=True)  # an array that may be written to serves as well
    signature = types.boolean(read, types.float32[::1], types.float64)
    options: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
    try:
        loop: Loop = njit(signature, cache=True, **options)(function)
    except Exception:  # of its cache: no folder to write to, a full disk, a damaged file
        loop = njit(signature, **options)(function)
    return loop


@_compiled
def sine(x: Any, out: Any, half: float) -> bool:
    """``out[i] = sin(x[i] + half * pi)`` with ``half`` 0 or 0.5: the sine or the cosine.

    Args:
        x: float32, of one dimension, contiguous.
        out: as many, in memory apart.

    Returns:
        Whether all results hold: no argument of ``LIMIT`` or more is among them. What is not a number gives what is not
        a number.
    """
    too_large = np.int64(0)
    for i in range(x.size):
        number = np.float64(x[i])
        too_large += abs(number) >= LIMIT
        rounded = (number * PER_PI + half) + ROUNDING
        multiple = (rounded - ROUNDING) - half
        rest = ((number - multiple * PI_1) - multiple * PI_2) - multiple * PI_3
        square = rest * rest
        terms = C3 + square * (C5 + square * (C7 + square * (C9 + square * C11)))
        result = np.float64(rest * (1.0 + square * terms)).view(np.int64)
        odd = np.float64(rounded).view(np.int64) << SIGN_BIT
        out[i] = np.float32(np.int64(result ^ odd).view(np.float64))
    return too_large == 0
