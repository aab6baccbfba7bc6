"""Operations that rearrange elements: transposes, broadcasts, joins, reversals, splits."""

from __future__ import annotations

import math
from typing import Any

from cuplace import errors
from cuplace.array.type import ArrayType
from cuplace.ops.elementwise import aligned_labels
from cuplace.ops.factors import Factors, Kind, Problem, Rule
from cuplace.ops.op import Op, OutType, Params
from cuplace.ops.shapes import broadcast_value
from cuplace.placement.box import Box

Shape = tuple[int, ...]


def _labels(x: ArrayType) -> tuple[int, ...]:
    return tuple(range(x.ndim))


# --- transpose ---------------------------------------------------------------------------------------------


def _transpose_infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    (x,) = types
    order = params["permutation"]
    if sorted(order) != list(range(x.ndim)):
        raise errors.IncompatibleShapesError(
            "transpose permutation isn't a permutation of operand dimensions, "
            f"got permutation {order} for operand shape {x.shape}."
        )
    return OutType(tuple([x.shape[i] for i in order]), x.dtype, x.weak_type)


def _transpose_factors(types: tuple[ArrayType, ...], params: Params) -> Factors:
    return Factors((_labels(types[0]),), tuple(params["permutation"]))


def _transpose(xp: Any, x: Any, *, permutation: tuple[int, ...]) -> Any:
    return x.transpose(permutation)


TRANSPOSE = Op("transpose", _transpose_infer, Rule(_transpose_factors), _transpose, view=True)
"""Params: ``permutation``, counted from the front."""


# --- broadcast ---------------------------------------------------------------------------------------------


def _broadcast_infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    (x,) = types
    shape: Shape = params["shape"]
    if len(shape) < x.ndim:
        raise errors.BroadcastError(
            f"Cannot broadcast to shape with fewer dimensions: arr_shape={x.shape} shape={shape}"
        )
    tail = shape[len(shape) - x.ndim :]
    if any(size not in (1, wanted) for size, wanted in zip(x.shape, tail, strict=True)):
        requested = x.update(shape=shape, spec=None, mesh=None)
        raise errors.BroadcastError(
            f"Incompatible types for broadcasting: input type={x} and requested type={requested}"
        )
    return OutType(shape, x.dtype, x.weak_type)


def _broadcast_factors(types: tuple[ArrayType, ...], params: Params) -> Factors:
    shape = params["shape"]
    return Factors((aligned_labels(types[0].shape, shape),), tuple(range(len(shape))))


def _to_box(params: Params, in_shapes: tuple[Shape, ...], box: Box) -> Params:
    return {**params, "shape": box.shape}


def _broadcast(xp: Any, x: Any, *, shape: Shape) -> Any:
    return broadcast_value(xp, x, shape)


BROADCAST = Op("broadcast_in_dim", _broadcast_infer, Rule(_broadcast_factors), _broadcast, localize=_to_box, view=True)
"""Params: ``shape``. Dimensions are aligned right, as NumPy's ``broadcast_to`` does."""


# --- joins -------------------------------------------------------------------------------------------------


def _unlike_text(problem: Problem) -> str:
    shown = ", ".join(
        f"NamedSharding(mesh={t.mesh}, spec={spec})"
        for t, spec in zip(problem.types, problem.specs, strict=True)
        if t.mesh is not None
    )
    return (
        f"All operands should have the same sharding. Got shardings {shown}\n"
        "Lay them out alike first: y = reshard(y, x.sharding)"
    )


def _concatenate_infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    axis = params["axis"]
    shapes = [t.shape for t in types]
    listed = ", ".join(map(str, shapes))
    if len({len(shape) for shape in shapes}) > 1:
        raise errors.IncompatibleShapesError(
            f"Cannot concatenate arrays with different numbers of dimensions: got {listed}."
        )
    if len({shape[:axis] + shape[axis + 1 :] for shape in shapes}) > 1:
        raise errors.IncompatibleShapesError(
            "Cannot concatenate arrays with shapes that differ in dimensions other than the one being "
            f"concatenated: concatenating along dimension {axis} for shapes {listed}."
        )
    total = sum(shape[axis] for shape in shapes)
    shape = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])
    return OutType(shape, types[0].dtype, all(t.weak_type for t in types))


def _concatenate_factors(types: tuple[ArrayType, ...], params: Params) -> Factors:
    labels = _labels(types[0])
    return Factors((labels,) * len(types), labels, {params["axis"]: Kind.RESTORE})


def _uneven_text(problem: Problem) -> str:
    axes = problem.specs[problem.operand].entries[problem.dim]
    return (
        f"concatenate along dimension {problem.dim}, which is sharded over {axes}, makes "
        f"{problem.out_shape[problem.dim]} elements, which cannot be cut into equal pieces over these axes.\n"
        "Gather the dimension first, with reshard."
    )


def _concatenate(xp: Any, *arrays: Any, axis: int) -> Any:
    return xp.concatenate(arrays, axis=axis)


CONCATENATE = Op(
    "concatenate", _concatenate_infer,
    Rule(_concatenate_factors, same=True, conflict=_unlike_text, whole=_uneven_text), _concatenate,
)  # fmt: skip
"""Params: ``axis``, counted from the front. Operands have one dtype."""


def _stack_infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    axis = params["axis"]
    shapes = [t.shape for t in types]
    if len(set(shapes)) > 1:
        listed = ", ".join(map(str, shapes))
        if len(set(map(len, shapes))) > 1:
            raise errors.StackError(f"Cannot stack arrays with different numbers of dimensions: got {listed}.")
        raise errors.StackError(f"All input arrays must have the same shape. Got {listed}.")
    shape = (*shapes[0][:axis], len(shapes), *shapes[0][axis:])
    return OutType(shape, types[0].dtype, all(t.weak_type for t in types))


def _stack_factors(types: tuple[ArrayType, ...], params: Params) -> Factors:
    labels, axis = _labels(types[0]), params["axis"]
    return Factors((labels,) * len(types), (*labels[:axis], None, *labels[axis:]))


def _stack(xp: Any, *arrays: Any, axis: int) -> Any:
    return xp.stack(arrays, axis=axis)


STACK = Op("stack", _stack_infer, Rule(_stack_factors, same=True, conflict=_unlike_text), _stack)
"""Params: ``axis`` of the result, counted from the front. Operands have one shape and dtype."""


# --- reversal and splitting --------------------------------------------------------------------------------


def _same_infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    return OutType(types[0].shape, types[0].dtype, types[0].weak_type)


def _reverse_factors(types: tuple[ArrayType, ...], params: Params) -> Factors:
    labels = _labels(types[0])
    return Factors((labels,), labels, dict.fromkeys(params["axes"], Kind.RESTORE))


def _reverse(xp: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
    return xp.flip(x, axis=axes)


REVERSE = Op("rev", _same_infer, Rule(_reverse_factors), _reverse, view=True)
"""Params: ``axes``, counted from the front."""


def _part_infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    (x,), axis = types, params["axis"]
    shape = (*x.shape[:axis], params["stop"] - params["start"], *x.shape[axis + 1 :])
    return OutType(shape, x.dtype, x.weak_type)


def _part_factors(types: tuple[ArrayType, ...], params: Params) -> Factors:
    labels = _labels(types[0])
    return Factors((labels,), labels, {params["axis"]: Kind.RESTORE})


def _part_text(problem: Problem) -> str:
    (x,), size, axes = problem.types, problem.out_shape[problem.dim], problem.specs[0].entries[problem.dim]
    assert x.mesh is not None
    assert isinstance(axes, tuple)
    pieces = math.prod(x.mesh.shape[axis] for axis in axes)
    return (
        f"split on sharded dims where out dim ({size}) is not divisible by mesh axes ({pieces}) with spec "
        f"({axes[0] if len(axes) == 1 else axes}) is not implemented. Got input type={x.short()} and output "
        f"shape={problem.out_shape}\nGather the dimension first, with reshard."
    )


def _part(xp: Any, x: Any, *, axis: int, start: int, stop: int) -> Any:
    return x[(slice(None),) * axis + (slice(start, stop),)]


SPLIT_PART = Op("split", _part_infer, Rule(_part_factors, whole=_part_text), _part, view=True)
"""One part of a split. Params: ``axis``, ``start`` and ``stop`` along it. A sharded axis stays sharded alike."""
