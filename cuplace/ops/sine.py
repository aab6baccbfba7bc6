"""Sine and cosine of float32, as loops that numba compiles when this module is loaded, or loads from its cache.

The argument is reduced by multiples of pi to [-pi/2, pi/2] as W. J. Cody and W. Waite do it (Software Manual for the
Elementary Functions, 1980), with pi in three parts: products of the first two, of 29 bits each, with a multiple below
2**24 are exact in float64. A polynomial gives the sine of the rest to within 2**-35. All of that is done in float64,
so the result is the nearest float32 but in one case of some thousands. The loop has no branches and no calls, so that
it runs on vectors; blocks with an argument too large for that are left to the C library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types

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

SIGN = np.int64(63)
LIMIT = 2.0**24
BLOCK = 1 << 11  # numbers that stay in a core's first-level cache

Function = Callable[..., Any]
OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
"""The interpreter's lock is let go of; products may be fused with sums, which rounds once less."""


READ = types.Array(types.float32, 1, "C", readonly=True)  # an array that may be written to serves as well
WRITTEN = types.float32[::1]


def _compiled(first: types.Array = READ) -> Callable[[Function], Function]:
    """Compile a function of two arrays and a number."""
    signature = types.boolean(first, WRITTEN, types.float64)

    def compiled(function: Function) -> Function:
        try:
            loop: Function = njit(signature, cache=True, **OPTIONS)(function)
        except RuntimeError:  # there is no folder for a cache that this process may write to
            loop = njit(signature, **OPTIONS)(function)
        return loop

    return compiled


@_compiled()
def _on_vectors(x: Any, out: Any, half: float) -> bool:
    """Whether the results hold: no argument was too large, infinite, or not a number. The arrays are apart."""
    too_large = np.int64(0)
    for i in range(x.size):
        number = np.float64(x[i])
        too_large += not abs(number) < LIMIT
        rounded = (number * PER_PI + half) + ROUNDING
        multiple = (rounded - ROUNDING) - half
        rest = ((number - multiple * PI_1) - multiple * PI_2) - multiple * PI_3
        square = rest * rest
        terms = C3 + square * (C5 + square * (C7 + square * (C9 + square * C11)))
        result = np.float64(rest * (1.0 + square * terms)).view(np.int64)
        odd = np.float64(rounded).view(np.int64) << SIGN
        out[i] = np.float32(np.int64(result ^ odd).view(np.float64))
    return too_large == 0


@_compiled()
def _by_the_library(x: Any, out: Any, half: float) -> bool:
    for i in range(x.size):
        number = np.float64(x[i])
        out[i] = np.float32(math.cos(number) if half else math.sin(number))
    return True


@_compiled()
def sine(x: Any, out: Any, half: float) -> bool:
    """``out[i] = sin(x[i] + half * pi)`` with ``half`` 0 or 0.5: the sine or the cosine. The arrays are apart."""
    for start in range(0, x.size, BLOCK):
        stop = min(start + BLOCK, x.size)
        if not _on_vectors(x[start:stop], out[start:stop], half):
            _by_the_library(x[start:stop], out[start:stop], half)
    return True


@_compiled(WRITTEN)
def sine_in_place(x: Any, kept: Any, half: float) -> bool:
    """``x[i] = sin(x[i] + half * pi)`` likewise, with memory for one block."""
    for start in range(0, x.size, BLOCK):
        stop = min(start + BLOCK, x.size)
        block, arguments = x[start:stop], kept[: stop - start]
        for i in range(block.size):
            arguments[i] = block[i]
        if not _on_vectors(arguments, block, half):
            _by_the_library(arguments, block, half)
    return True
