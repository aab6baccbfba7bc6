"""Operations without operands: each shard is made where it shall lie. Constants are broadcasts of a number."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuplace.array.type import ArrayType
from cuplace.ops.factors import Factors, Rule
from cuplace.ops.op import Op, OutType, Params
from cuplace.placement.box import Box

Shape = tuple[int, ...]


def _infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    return OutType(params["shape"], params["dtype"])


def _factors(types: tuple[ArrayType, ...], params: Params) -> Factors:
    return Factors((), tuple(range(len(params["shape"]))))


def _iota_localize(params: Params, in_shapes: tuple[Shape, ...], box: Box) -> Params:
    return {**params, "shape": box.shape, "offset": box.start[params["dimension"]]}


def _iota(
    xp: Any, *, shape: Shape, dtype: np.dtype, dimension: int, start: Any = 0, step: Any = 1, offset: int = 0
) -> Any:
    # Counted in 64 bits, so that the last of many floats is as exact as the first.
    exact = np.int64 if isinstance(start, int) and isinstance(step, int) else np.float64
    counted = xp.arange(offset, offset + shape[dimension], dtype=exact)
    values = (counted * exact(step) + exact(start)).astype(dtype)
    across = (1,) * dimension + (-1,) + (1,) * (len(shape) - dimension - 1)
    return xp.broadcast_to(values.reshape(across), shape)


IOTA = Op("iota", _infer, Rule(_factors), _iota, localize=_iota_localize, positional=True)
"""Params: ``shape``, ``dtype``, ``dimension``, and ``start`` and ``step`` (Python numbers, default 0 and 1): counts
along one dimension."""


def _eye_localize(params: Params, in_shapes: tuple[Shape, ...], box: Box) -> Params:
    rows, columns = box.start
    return {**params, "shape": box.shape, "k": params["k"] + rows - columns}


def _eye(xp: Any, *, shape: Shape, dtype: np.dtype, k: int) -> Any:
    return xp.eye(shape[0], shape[1], k=k, dtype=dtype)


EYE = Op("eye", _infer, Rule(_factors), _eye, localize=_eye_localize, positional=True)
"""Params: ``shape`` (two sizes), ``dtype``, ``k`` (the diagonal): ones on one diagonal, zeros elsewhere."""
