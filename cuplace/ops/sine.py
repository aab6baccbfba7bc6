"""Sine and cosine of float32, as loops that numba compiles when they are first asked for, or loads from its cache.

The argument is reduced by multiples of pi/2 to [-pi/4, pi/4], or to 0.83 where it is near ``LIMIT``, as W. J. Cody and
W. Waite do it (Software Manual for the Elementary Functions, 1980), with pi/2 in three parts. For the sine, what
remains is kept as two numbers, the second what the first one lacks: without it, results next below a power of two would
be a unit worse, and next to multiples of pi/2 whole digits would be missing. A polynomial gives the sine of that,
another one the cosine, and the quarter turn tells which it is and with which sign.

All of it is done in float32, of which a vector holds twice as many as of float64, with products that are added before
they are rounded. The loops have no branches and no calls, so that they run on vectors; whether an argument was too
large, or not a number, they tell.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from cuplace.ops.loops import LIMIT

QUARTERS = np.float32(2.0 / math.pi)
"""Quarter turns of one radian."""

P1, P2, P3 = map(np.float32, (-1.5707963705062866, 4.371138828673793e-08, 1.7151245100058819e-15))
"""The parts of -pi/2. What the first one, of 24 bits, leaves of a number is exact: it has no digits below 2**-24, and
is less than 1."""

S3, S5, S7 = map(np.float32, (-0.16666655242443085, 0.008332189172506332, -0.00019518291810527444))
"""Of r**3 to r**7 in the sine, with the least relative error on [-pi/4, pi/4], 2**-27.9 (2**-25 at 0.83)."""

C2, C4, C6, C8 = map(np.float32, (-0.5, 0.04166664555668831, -0.0013887309469282627, 2.4432327336398885e-05))
"""Of r**2 to r**8 in the cosine, likewise, 2**-33."""

ONE = np.float32(1.0)
ROUNDING = np.float32(1.5 * 2.0**23)
"""Added to a float32, it rounds to an integer, whose lowest bits are the lowest bits of the sum."""

ODD = np.int32(1)
TO_SIGN = np.int32(30)
"""How far the second lowest bit is from that of the sign."""

SIGN = np.int32(-(2**31))
"""The bit of the sign."""

Loop = Callable[[Any, Any], bool]


def adds_products() -> bool:
    """Whether numba compiles for a processor that adds products before they are rounded. Else each would be a call."""
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    return "+fma" in features.split(",") or not triple.startswith(("x86_64", "i686"))  # only old ones with x86 lack it


@intrinsic
def fma(context: Any, x: Any, y: Any, z: Any) -> Any:
    """``x * y + z``, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), generate


def _compiled(function: Loop) -> Loop:
    """The compiled function, which lets go of the interpreter's lock. Nothing may be fused that is not written so: no
    fastmath."""
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
    limit = np.float32(LIMIT).view(np.int32)  # without a sign, the bits as integers are in the order of the numbers

    def sine_of(x: Any, out: Any) -> bool:
        largest = np.int32(0)
        for i in range(x.size):
            number = np.float32(abs(x[i]))
            largest = max(largest, number.view(np.int32))
            rounded = fma(number, QUARTERS, ROUNDING)
            multiple = rounded - ROUNDING
            near = fma(multiple, P1, number)
            rest = near + multiple * P2  # rounded twice: so near - rest is exact, even where near is the smaller one
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
        return largest < limit

    return _compiled(sine_of)
