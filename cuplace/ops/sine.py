"""Sine and cosine of float32, as loops that numba compiles when they are first asked for, or loads from its cache.

The argument is reduced by multiples of pi/2 to [-pi/4, pi/4] as W. J. Cody and W. Waite do it (Software Manual for the
Elementary Functions, 1980), with pi/2 in three parts. What remains is kept as two numbers, the second what the first
one lacks; else the results next below a power of two would be a unit worse. A polynomial gives the sine of that,
another one the cosine, and the quarter turn tells which it is and with which sign.

All of it is done in float32, with products that are added before they are rounded, so eight or more numbers are
computed at a time. The loops have no branches and no calls for the same reason; whether an argument was too large, or
not a number, they tell.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from cuplace.ops.loops import LIMIT

QUARTERS = np.float32(2.0 / math.pi)
P1, P2, P3 = map(np.float32, (-1.5707963705062866, 4.371138828673793e-08, 1.7151245100058819e-15))
"""The parts of -pi/2. What the first one, of 24 bits, leaves of a number is exact: it has no digits below 2**-24."""

S3, S5, S7 = map(np.float32, (-0.16666655242443085, 0.008332189172506332, -0.00019518291810527444))
"""Of r**3 to r**7 in the sine, with the least relative error on [-pi/4, pi/4], 2**-27.9."""

C2, C4, C6, C8 = map(np.float32, (-0.5, 0.04166664555668831, -0.0013887309469282627, 2.4432327336398885e-05))
"""Of r**2 to r**8 in the cosine, likewise, 2**-32."""

ONE = np.float32(1.0)
ROUNDING = np.float32(1.5 * 2.0**23)
"""Added to a float32, it rounds to an integer, whose lowest bits are the lowest bits of the sum."""

ODD = np.int32(1)
TO_SIGN = np.int32(30)
"""How far the second lowest bit is from that of the sign."""

SIGN = np.int32(-(2**31))
LARGEST = np.float32(LIMIT).view(np.int32)
"""The bits of ``LIMIT``. Without a sign, the bits of float32 as integers are in the order of the numbers."""

Loop = Callable[[Any, Any], bool]


def adds_products() -> bool:
    """Whether this processor adds a product before it is rounded. Without that, each one would be a call."""
    features = llvmlite.binding.get_host_cpu_features()
    return bool(features.get("fma", "sse2" not in features))  # all processors of today but old ones with x86


@intrinsic
def fma(context: Any, x: Any, y: Any, z: Any) -> Any:
    """``x * y + z``, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), generate


def _compiled(function: Loop) -> Loop:
    """The compiled function, which lets go of the interpreter's lock."""
    read = types.Array(types.float32, 1, "C", readonly=True)  # an array that may be written to serves as well
    signature = types.boolean(read, types.float32[::1])
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        loop: Loop = njit(signature, cache=True, **options)(function)
    except Exception:  # of its cache: no folder to write to, a full disk, a damaged file
        loop = njit(signature, **options)(function)
    return loop


@functools.cache
def sine_ahead_by(quarter: int) -> Loop:
    """The loop for ``out[i] = sin(x[i] + quarter * pi/2)``, with ``quarter`` 0 or 1: the sine or the cosine.

    Its arguments are ``x``, float32 of one dimension, contiguous, and ``out``, as many, in memory apart. It returns
    whether all results hold: no argument of ``LIMIT`` or more is among them, and none that is not a number, which
    gives what is not a number.
    """

    turn = np.int32(quarter)

    def sine_of(x: Any, out: Any) -> bool:
        largest = np.int32(0)
        for i in range(x.size):
            number = np.float32(abs(x[i]))
            largest = max(largest, number.view(np.int32))
            rounded = fma(number, QUARTERS, ROUNDING)
            multiple = rounded - ROUNDING
            near = fma(multiple, P1, number)
            rest = near + multiple * P2
            lacking = fma(multiple, P3, fma(multiple, P2, near - rest))
            square = rest * rest
            sine = rest + fma(rest * square, fma(square, fma(square, S7, S5), S3), lacking)
            cosine = fma(square, fma(square, fma(square, fma(square, C8, C6), C4), C2), ONE)
            turned = np.float32(rounded).view(np.int32) + turn
            sign = turned << TO_SIGN
            if turn == 0:
                sign ^= np.float32(x[i]).view(np.int32)
            result = np.float32(cosine if turned & ODD else sine).view(np.int32)
            out[i] = np.int32(result ^ (sign & SIGN)).view(np.float32)
        return largest < LARGEST

    return _compiled(sine_of)
