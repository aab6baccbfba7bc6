"""Bringing operands to one dtype, inside of traced functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuplace.array import dtypes
from cuplace.ops.convert import CONVERT
from cuplace.staging.trace import bind
from cuplace.staging.tracer import Tracer


def cast(x: Tracer, dtype: np.dtype, weak_type: bool = False) -> Tracer:
    """A traced value in another dtype; the value itself where it has that dtype and weakness already."""
    if x.dtype == dtype and x.weak_type == weak_type:
        return x
    return bind(CONVERT, x, dtype=dtype, weak_type=weak_type)


def promote(*operands: Tracer) -> list[Tracer]:
    """The operands in the dtype that they promote to.

    Raises:
        TypePromotionError: a ValueError, for 8-bit floats with other floats.
    """
    dtype, weak = dtypes.promote([(x.dtype, x.weak_type) for x in operands])
    return _all_in(dtype, weak, operands)


def promote_inexact(*operands: Tracer) -> list[Tracer]:
    """The operands in the floating-point or complex dtype that they promote to; integers become float32."""
    dtype, weak = dtypes.promote([(x.dtype, x.weak_type) for x in operands])
    return _all_in(dtypes.to_inexact(dtype), weak, operands)


def promote_numeric(*operands: Tracer) -> list[Tracer]:
    """The operands in the dtype that they promote to; bools become int32."""
    dtype, weak = dtypes.promote([(x.dtype, x.weak_type) for x in operands])
    return _all_in(dtypes.default_dtype("int") if dtype == dtypes.BOOL else dtype, weak, operands)


def to_bool(x: Tracer) -> Tracer:
    """Whether each element differs from zero."""
    return cast(x, dtypes.BOOL, x.weak_type)


def _all_in(dtype: np.dtype, weak: bool, operands: tuple[Tracer, ...]) -> list[Tracer]:
    # Where only the weakness differs, the strong operand decides about the result, and nothing is to be done.
    return [x if x.dtype == dtype else cast(x, dtype, weak) for x in operands]


def number(value: Any, like: Tracer) -> Tracer:
    """A number in the dtype and weakness of a traced value, to be an operand beside it."""
    return bind(CONVERT, value, dtype=like.dtype, weak_type=like.weak_type)
