"""``RESHAPE``: the same elements in another shape, and where the shards go.

Dimensions are compared in groups: runs of dimensions of the old and the new shape that hold the same elements
(``(4, 2, 6) -> (8, 2, 3)`` has the groups ``4 2 -> 8`` and ``6 -> 2 3``). As in JAX, the specs of one reshape
follow where dimensions of size 1 come or go and where one dimension is split, or one made by merging, with the
sharded part major; other reshapes of sharded arrays need ``out_sharding``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from cuplace import errors
from cuplace.array.type import ArrayType, explicit_spec
from cuplace.ops.factors import Factors, Rule
from cuplace.ops.op import Op, OutType, Params
from cuplace.ops.rule import Axes, Call, Resolution
from cuplace.placement.box import Box
from cuplace.placement.spec import PartitionSpec

Shape = tuple[int, ...]


class Group(NamedTuple):
    """Dimensions of the old and of the new shape that hold the same elements; none has size 1."""

    old: tuple[int, ...]
    new: tuple[int, ...]


def groups(old: Shape, new: Shape) -> tuple[Group, ...]:
    """The smallest groups of two shapes of one size, which is not 0.

    >>> groups((4, 2, 6), (8, 1, 2, 3))
    (Group(old=(0, 1), new=(0,)), Group(old=(2,), new=(2, 3)))
    """
    found = []
    rest_old = [i for i, size in enumerate(old) if size != 1]
    rest_new = [i for i, size in enumerate(new) if size != 1]
    while rest_old:
        a, b = [rest_old.pop(0)], [rest_new.pop(0)]
        while (left := math.prod(old[i] for i in a)) != (right := math.prod(new[i] for i in b)):
            if left < right:
                a.append(rest_old.pop(0))
            else:
                b.append(rest_new.pop(0))
        found.append(Group(tuple(a), tuple(b)))
    return tuple(found)


def _infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    (x,) = types
    shape: Shape = params["shape"]
    if math.prod(shape) != x.size:
        raise errors.IncompatibleShapesError(
            f"cannot reshape array of shape {x.shape} (size {x.size}) into shape {shape} (size {math.prod(shape)})"
        )
    return OutType(shape, x.dtype, x.weak_type)


def _resolve(call: Call) -> Resolution:
    spec = call.specs[0]
    old, new = call.types[0].shape, call.out.shape
    whole = PartitionSpec().padded(len(new))
    if math.prod(new) == 0:
        wanted = call.out_spec or whole
        return Resolution((PartitionSpec().padded(len(old)),), wanted, (), None, whole)
    parts = groups(old, new)
    wanted = call.out_spec if call.out_spec is not None else _derived(call, spec, parts)
    return _carried_out(call, spec, wanted, parts)


def _derived(call: Call, spec: PartitionSpec, parts: Sequence[Group]) -> PartitionSpec:
    """The result's spec where the user asked for none. Raises where Explicit axes do not determine it."""
    explicit = explicit_spec(spec, call.mesh)
    found = _followed(call, spec, parts)
    if found is not None:
        return found
    found = _followed(call, explicit, parts)
    if found is None:
        raise errors.ShardingTypeError(
            "This reshape is not supported. Please specify the sharding of the output via the `out_sharding` "
            f"argument of jax.lax.reshape. Got operand type: {call.types[0]}, new sizes: {call.out.shape}\n"
            "Write x.reshape(shape, out_sharding=NamedSharding(mesh, P(...))), or lay x out anew first, with reshard."
        )
    return found


def _followed(call: Call, spec: PartitionSpec, parts: Sequence[Group]) -> PartitionSpec | None:
    """The spec of the result that JAX's rule gives, or None where it gives none."""
    if not spec.axes:
        return PartitionSpec().padded(len(call.out.shape))
    changed = [group for group in parts if len(group.old) != 1 or len(group.new) != 1]
    if len(changed) > 1 or any(len(group.old) > 1 and len(group.new) > 1 for group in changed):
        return None
    entries: list[Axes] = [()] * len(call.out.shape)
    for group in parts:
        axes = _major_axes([_axes(spec, i) for i in group.old])
        split = None if axes is None else _dealt(call, axes, [call.out.shape[i] for i in group.new])
        if split is None:
            return None
        for i, part in zip(group.new, split, strict=True):
            entries[i] = part
    return PartitionSpec(*(axes or None for axes in entries))


def _axes(spec: PartitionSpec, dim: int) -> Axes:
    entry = spec.entries[dim]
    return entry if isinstance(entry, tuple) else ()


def _major_axes(entries: Sequence[Axes]) -> Axes | None:
    """The axes of merged dimensions, major first; None where an unsharded dimension stands before a sharded one."""
    used = list(takewhile(bool, entries))
    return None if any(entries[len(used) :]) else tuple(axis for axes in used for axis in axes)


def _dealt(call: Call, axes: Axes, sizes: Sequence[int]) -> list[Axes] | None:
    """The axes dealt to dimensions of these sizes, filling the major ones first; None where they do not fit."""
    rest = list(axes)
    dealt: list[Axes] = []
    for size in sizes:
        left, mine = size, []
        while left > 1 and rest:
            left, remainder = divmod(left, call.pieces((rest[0],)))
            if remainder:
                return None
            mine.append(rest.pop(0))
        dealt.append(tuple(mine))
    return None if rest else dealt


def _carried_out(call: Call, spec: PartitionSpec, wanted: PartitionSpec, parts: Sequence[Group]) -> Resolution:
    """Reshape shards where they are, as far as both layouts cut the elements of a group into the same runs."""
    source: list[Axes] = [()] * len(call.types[0].shape)
    local: list[Axes] = [()] * len(call.out.shape)
    for group in parts:
        before = _runs(call, call.types[0].shape, spec, group.old)
        after = _runs(call, call.out.shape, wanted, group.new)
        shared = list(takewhile(lambda pair: pair[0][1] == pair[1][1], zip(before, after, strict=False)))
        for (old_dim, axis), (new_dim, _) in shared:
            source[old_dim] += (axis,)
            local[new_dim] += (axis,)
    return Resolution((_spec(source),), wanted, (), None, _spec(local))


def _runs(call: Call, shape: Shape, spec: PartitionSpec, dims: Iterable[int]) -> list[tuple[int, str]]:
    """The axes, each with its dimension, that cut the elements of some dimensions into contiguous runs."""
    found: list[tuple[int, str]] = []
    for dim in dims:
        axes = _axes(spec, dim)
        found += [(dim, axis) for axis in axes]
        if call.pieces(axes) != shape[dim]:
            break
    return found


def _spec(entries: Iterable[Axes]) -> PartitionSpec:
    return PartitionSpec(*(axes or None for axes in entries))


def _localize(params: Params, in_shapes: tuple[Shape, ...], box: Box) -> Params:
    return {"shape": box.shape}


def _compute(xp: Any, x: Any, *, shape: Shape) -> Any:
    return x.reshape(shape)


def _no_factors(types: tuple[ArrayType, ...], params: Params) -> Factors:
    raise AssertionError("reshape resolves its shardings itself")


RESHAPE = Op("reshape", _infer, Rule(_no_factors, custom=_resolve), _compute, localize=_localize, view=True)
"""Params: ``shape``, without -1."""
