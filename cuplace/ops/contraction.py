"""``DOT_GENERAL``: sums of products over some dimensions of two arrays; all matrix products are made of it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.type import ArrayType
from cuplace.ops.factors import Factor, Factors, Kind, Problem, Rule
from cuplace.ops.op import Cost, Op, OutType, Params, size_of

Dims = tuple[int, ...]


class DotDims(NamedTuple):
    """Which dimensions are contracted and which are batch dimensions, pairwise; the others are free.

    The result has the batch dimensions, then the free ones of the left operand, then those of the right one.
    """

    left_contracted: Dims
    right_contracted: Dims
    left_batch: Dims = ()
    right_batch: Dims = ()

    def left_free(self, ndim: int) -> Dims:
        return tuple([i for i in range(ndim) if i not in self.left_contracted + self.left_batch])

    def right_free(self, ndim: int) -> Dims:
        return tuple([i for i in range(ndim) if i not in self.right_contracted + self.right_batch])


def _pick(values: tuple[Any, ...], dims: Dims) -> tuple[Any, ...]:
    return tuple([values[i] for i in dims])


def _infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    left, right = types
    dims: DotDims = params["dims"]
    for kind, a, b in (
        ("contracting", dims.left_contracted, dims.right_contracted),
        ("batch", dims.left_batch, dims.right_batch),
    ):
        if _pick(left.shape, a) != _pick(right.shape, b):
            raise errors.IncompatibleShapesError(
                f"dot_general requires {kind} dimensions to have the same shape, "
                f"got {_pick(left.shape, a)} and {_pick(right.shape, b)}."
            )
    shape = (
        _pick(left.shape, dims.left_batch)
        + _pick(left.shape, dims.left_free(left.ndim))
        + _pick(right.shape, dims.right_free(right.ndim))
    )
    return OutType(shape, left.dtype, left.weak_type and right.weak_type)


def _factors(types: tuple[ArrayType, ...], params: Params) -> Factors:
    left, right = types
    dims: DotDims = params["dims"]
    left_labels = [("left", i) for i in range(left.ndim)]
    right_labels = [("right", i) for i in range(right.ndim)]
    for a, b in zip(dims.left_contracted + dims.left_batch, dims.right_contracted + dims.right_batch, strict=True):
        right_labels[b] = left_labels[a]
    out = (
        _pick(tuple(left_labels), dims.left_batch + dims.left_free(left.ndim))
        + _pick(tuple(right_labels), dims.right_free(right.ndim))
    )  # fmt: skip
    kinds: dict[Factor, Kind] = {left_labels[i]: Kind.REDUCE for i in dims.left_contracted}
    return Factors((tuple(left_labels), tuple(right_labels)), out, kinds, "sum")


def _contracted(problem: Problem) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    dims: DotDims = problem.params["dims"]
    left, right = problem.specs
    return _pick(tuple(left), dims.left_contracted), _pick(tuple(right), dims.right_contracted)


def _ambiguous(problem: Problem) -> str | None:
    """Both sides sharded alike along a contraction: JAX asks the user where the sum shall go."""
    left, right = _contracted(problem)
    if not any(a is not None and a == b for a, b in zip(left, right, strict=True)):
        return None
    return (
        "Contracting dimensions are sharded and it is ambiguous how the output should be sharded. Please specify "
        "the output sharding via the `out_sharding` parameter. "
        f"Got lhs_contracting_spec={left} and rhs_contracting_spec={right}\n"
        "It is NamedSharding(mesh, P(...)) of the result; for a @ b write cuplace.numpy.matmul(a, b, out_sharding=...)."
    )


def _conflict(problem: Problem) -> str:
    dims: DotDims = problem.params["dims"]
    left, right = _contracted(problem)
    kind = "contracting"
    if all(a is None or b is None or a == b for a, b in zip(left, right, strict=True)):
        kind = "batch"
        left = _pick(tuple(problem.specs[0]), dims.left_batch)
        right = _pick(tuple(problem.specs[1]), dims.right_batch)
    return (
        f"dot_general requires {kind} dimensions to have consistent sharding, got {left} and {right}.\n"
        "Move one operand first, with reshard, or give out_sharding."
    )


def _accumulator(dtype: np.dtype) -> np.dtype:
    """Narrow floats are multiplied and summed in float32, as XLA does on every platform."""
    narrow = dtype in dtypes.EXTENSION_FLOATS or dtype == np.dtype("float16")
    return np.dtype("float32") if narrow else dtype


def _compute(xp: Any, left: Any, right: Any, *, dims: DotDims) -> Any:
    dtype = left.dtype
    wide = _accumulator(dtype)
    if wide != dtype:
        left, right = left.astype(wide), right.astype(wide)
    out = _product(xp, left, right, dims)
    return out if out.dtype == dtype else out.astype(dtype)


def _compute_into(xp: Any, out: Any, left: Any, right: Any, *, dims: DotDims) -> None:
    if _accumulator(left.dtype) == left.dtype:
        _product(xp, left, right, dims, out)
    else:
        out[...] = _compute(xp, left, right, dims=dims)


def _product(xp: Any, left: Any, right: Any, dims: DotDims, out: Any = None) -> Any:
    """One (batched) matrix product of the operands with their dimensions brought into order."""
    batch = _pick(left.shape, dims.left_batch)
    left_free = _pick(left.shape, dims.left_free(left.ndim))
    right_free = _pick(right.shape, dims.right_free(right.ndim))
    inner = math.prod(_pick(left.shape, dims.left_contracted))
    a = _ordered(left, dims.left_batch + dims.left_free(left.ndim) + dims.left_contracted)
    b = _ordered(right, dims.right_batch + dims.right_contracted + dims.right_free(right.ndim))
    a = a.reshape((*batch, math.prod(left_free), inner))
    b = b.reshape((*batch, inner, math.prod(right_free)))
    if out is not None:
        return xp.matmul(a, b, out=out.reshape((*batch, math.prod(left_free), math.prod(right_free))))
    return xp.matmul(a, b).reshape(batch + left_free + right_free)


def _ordered(array: Any, order: Dims) -> Any:
    return array if order == tuple(range(array.ndim)) else array.transpose(order)


def _cost(types: tuple[ArrayType, ...], out: OutType, params: Params) -> Cost:
    """Two operations for each product; every operand is read once."""
    inner = math.prod(_pick(types[0].shape, params["dims"].left_contracted))
    moved = sum(size_of(t.shape) for t in types) + size_of(out.shape)
    return Cost(2.0 * size_of(out.shape) * inner, float(moved * out.dtype.itemsize))


DOT_GENERAL = Op(
    name="dot_general",
    infer=_infer,
    rule=Rule(_factors, conflict=_conflict, refuse=_ambiguous),
    compute=_compute,
    into=_compute_into,
    cost=_cost,
    library=True,
)
"""Params: ``dims`` (a `DotDims`). Operands have one dtype, and the result has it, too."""
