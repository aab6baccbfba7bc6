"""Sine and cosine of float32, as loops that numba compiles when they are first asked for, or loads from its cache.

The argument is reduced by multiples of pi to [-pi/2, pi/2] as W. J. Cody and W. Waite do it (Software Manual for the
Elementary Functions, 1980), with pi in two parts: a product of the first one, of 29 bits, with a multiple below 2**24
is exact in float64. A polynomial gives the sine of the rest to within 2**-35. All of that is done in float64, so the
result is the nearest float32 but in one case of some thousands. The loops have no branches and no calls, so that they
run on vectors; whether an argument was too large for that, or not a number, they tell.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types

from cuplace.ops.loops import LIMIT

PER_PI = 1.0 / math.pi
PI_1 = float.fromhex("0x1.921fb54p+1")
PI_2 = float.fromhex("0x1.10b4611a62633p-29")

C3, C5, C7, C9, C11 = (
    -0.16666666626148552, 0.00833333110856602, -0.0001984086820580053, 2.752538424012369e-06, -2.3888906354810335e-08
)  # fmt: skip
"""Of r**3 to r**11, with the least relative error on [-pi/2, pi/2]."""

ROUNDING = 1.5 * 2.0**52
"""Added to a float64, it rounds to an integer, of which the lowest bit is the lowest bit of the sum."""

SIGN_BIT = np.int64(63)

LARGEST = np.float32(LIMIT).view(np.int32)
"""The bits of ``LIMIT``. Without a sign, the bits of float32 as integers are in the order of the numbers."""

Loop = Callable[[Any, Any], bool]


def _compiled(function: Loop) -> Loop:
    """The compiled function, which lets go of the interpreter's lock. Products may be fused with sums: that rounds once
    less."""
    read = types.Array(types.float32, 1, "C", readonly=True)  # an array that may be written to serves as well
    signature = types.boolean(read, types.float32[::1])
    options: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
    try:
        loop: Loop = njit(signature, cache=True, **options)(function)
    except Exception:  # of its cache: no folder to write to, a full disk, a damaged file
        loop = njit(signature, **options)(function)
    return loop


@functools.cache
def sine_ahead_by(half: float) -> Loop:
    """The loop for ``out[i] = sin(x[i] + half * pi)``, with ``half`` 0 or 0.5: the sine or the cosine.

    Its arguments are ``x``, float32 of one dimension, contiguous, and ``out``, as many, in memory apart. It returns
    whether all results hold: no argument of ``LIMIT`` or more is among them, and none that is not a number, which
    gives what is not a number.
    """

    def sine_of(x: Any, out: Any) -> bool:
        largest = np.int32(0)
        for i in range(x.size):
            largest = max(largest, np.float32(abs(x[i])).view(np.int32))
            number = np.float64(x[i])
            if half:
                rounded = (number * PER_PI + half) + ROUNDING
                multiple = (rounded - ROUNDING) - half
            else:
                rounded = number * PER_PI + ROUNDING
                multiple = rounded - ROUNDING
            rest = (number - multiple * PI_1) - multiple * PI_2
            square = rest * rest
            terms = C3 + square * (C5 + square * (C7 + square * (C9 + square * C11)))
            result = np.float64(rest * (1.0 + square * terms)).view(np.int64)
            odd = np.float64(rounded).view(np.int64) << SIGN_BIT
            out[i] = np.float32(np.int64(result ^ odd).view(np.float64))
        return largest < LARGEST

    return _compiled(sine_of)
