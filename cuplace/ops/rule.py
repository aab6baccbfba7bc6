"""``resolve``: how one operation on sharded operands is split into independent work on shards.

There is one algorithm for all operations; what it knows of an operation are the labels of its dimensions
(`cuplace.ops.factors`). On Explicit axes the type of a result is determined by the types of the operands,
and where it is not, that is the user's mistake, told with JAX's text. On Auto axes nothing is a mistake:
the first operand's wish counts, and what cannot stay sharded is gathered.

JAX_SEMANTICS sections 0 (errors E2), 7 (Explicit) and 8 (Auto) are the source of the rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.type import ArrayType, describe_shape, explicit_entry, explicit_spec
from cuplace.ops.factors import Factor, Factors, Kind, Problem
from cuplace.placement.abstract_mesh import AbstractMesh
from cuplace.placement.axes import AxisType
from cuplace.placement.memory_space import DEVICE
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import PartitionSpec

if TYPE_CHECKING:
    from cuplace.ops.op import Op, OutType

Axes = tuple[str, ...]
Params = Mapping[str, Any]


class Resolution(NamedTuple):
    """How one call is carried out on a mesh.

    1. Each operand is moved to ``in_specs[i]`` (a no-op where it is there already, and a local slice where
       it is replicated).
    2. Each device computes its part: the box of the result that ``local_spec`` gives to it.
    3. Where ``partial_axes`` are not empty, the devices along these axes hold partial results of the same
       box, which are combined by ``cuplace.ops.reductions.COMBINERS[combine]``.
    4. The result is moved from ``local_spec`` to ``out_spec``, where they differ.

    All specs are full rank. Steps 3 and 4 may be one move.
    """

    in_specs: tuple[PartitionSpec, ...]
    out_spec: PartitionSpec
    partial_axes: Axes
    combine: str | None
    local_spec: PartitionSpec


@dataclass
class Call:
    """One call to be resolved, with what the algorithm works out on the way."""

    op: Op
    types: tuple[ArrayType, ...]
    specs: tuple[PartitionSpec, ...]
    params: Params
    mesh: AbstractMesh
    out: OutType
    out_spec: PartitionSpec | None = None
    factors: Factors = field(default_factory=lambda: Factors((), ()))

    @property
    def strict(self) -> bool:
        """Whether disagreement on Explicit axes is an error: not where the user asked for a layout."""
        return self.out_spec is None

    def placed(self, operand: int) -> bool:
        """Whether an operand has a say: one on a single device, or uncommitted, or on a mesh without axes, has none."""
        mesh = self.types[operand].mesh
        return mesh is not None and mesh.axis_names != ()

    def explicit(self, entry: Axes) -> Axes:
        return explicit_entry(entry, self.mesh)

    def pieces(self, axes: Axes) -> int:
        return math.prod(self.mesh.shape[axis] for axis in axes)

    def problem(self, **where: Any) -> Problem:
        specs = tuple(explicit_spec(spec, self.mesh) for spec in self.specs)
        return Problem(self.op.name, self.types, specs, self.params, self.out.shape, **where)


def infer(op: Op, types: Sequence[ArrayType], params: Params) -> tuple[ArrayType, Resolution]:
    """The type of the result of an operation, and how it is carried out.

    The mesh is that of the operands, or that of the parameter ``out_sharding`` where no operand has one.

    Raises:
        MeshMismatchError: a ValueError; the operands are typed on different meshes.
        MemorySpaceError: a ValueError; the operands lie in different memory spaces.
        ShardingTypeError: a TypeError; the operands' Explicit axes do not determine the result's.
        Other errors: what ``op.infer`` raises.
    """
    types = tuple(types)
    out_sharding = params.get("out_sharding")
    mesh = common_mesh(types, out_sharding)
    kind = common_memory_kind(op.name, types)
    out = op.infer(types, params)
    out_spec = None if out_sharding is None else out_sharding.spec.padded(len(out.shape))
    resolution = resolve(op, types, [t.spec for t in types], params, mesh, out_spec, out=out)
    return ArrayType(out.shape, out.dtype, out.weak_type, resolution.out_spec, mesh, kind), resolution


def common_mesh(types: Sequence[ArrayType], out_sharding: NamedSharding | None = None) -> AbstractMesh | None:
    """The one abstract mesh of an operation, or None where everything is on a single device.

    Where operands lie on different meshes with only Auto axes, it is the first operand's.

    Raises:
        MeshMismatchError: two meshes differ and have Explicit axes.
    """
    meshes = [t.mesh for t in types if t.mesh is not None]
    if out_sharding is not None:
        meshes.append(out_sharding.mesh.abstract_mesh)
    meshes.sort(key=lambda mesh: not mesh.axis_names)  # one without axes says no more than a single device
    for mesh in meshes[1:]:
        if mesh != meshes[0] and mesh.axis_names and (_has_explicit(mesh) or _has_explicit(meshes[0])):
            raise errors.MeshMismatchError(
                f"Mesh for all inputs should be equal. Got one mesh: {meshes[0]} and another mesh: {mesh}\n"
                f"{_how_they_meet(meshes[0], mesh)}"
            )
    return meshes[0] if meshes else None


def _how_they_meet(one: AbstractMesh, other: AbstractMesh) -> str:
    """What differs between two meshes, and what to write."""
    differing = [
        name
        for name, mine, theirs in (
            ("names", one.axis_names, other.axis_names),
            ("sizes", one.axis_sizes, other.axis_sizes),
        )
        if mine != theirs
    ]
    if not differing and one.axis_types != other.axis_types:
        differing = ["types"]
    what = f"the {' and the '.join(differing)} of their axes" if differing else "the kinds of their devices"
    return f"They differ in {what}. Bring one operand to the other's mesh first: y = device_put(y, x.sharding)"


def _has_explicit(mesh: AbstractMesh) -> bool:
    return AxisType.Explicit in mesh.axis_types


def common_memory_kind(name: str, types: Sequence[ArrayType]) -> str:
    """The one memory kind of an operation's operands. Operands without dimensions have no say where others have one;
    among themselves those in host memory decide.

    Raises:
        MemorySpaceError: the kinds differ.
    """
    deciding = [t for t in types if t.shape]
    for other in deciding[1:]:
        if other.memory_kind != deciding[0].memory_kind:
            raise errors.MemorySpaceError(
                f"memory_space of all inputs passed to `{name}` must be the same. Got one operand with "
                f"type: {deciding[0]} and another operand with type: {other}\n"
                f"One is in memory of kind {deciding[0].memory_kind}, the other in {other.memory_kind}. Move one of "
                "them first: y = device_put(y, y.sharding.with_memory_kind(x.sharding.memory_kind))"
            )
    if deciding:
        return deciding[0].memory_kind
    return next((t.memory_kind for t in types if t.memory_kind != DEVICE), DEVICE)


def resolve(
    op: Op,
    types: Sequence[ArrayType],
    specs: Sequence[PartitionSpec],
    params: Params,
    mesh: AbstractMesh | None,
    out_spec: PartitionSpec | None = None,
    *,
    out: OutType | None = None,
) -> Resolution:
    """How an operation on operands of these types and specs is carried out on a mesh.

    Args:
        op: the operation.
        types: the operands' types (global shapes).
        specs: where the operands are, one spec of full rank for each.
        params: the call's parameters.
        mesh: the mesh; None where everything is on a single device.
        out_spec: where the user wants the result (``out_sharding``), if he said so.
        out: what ``op.infer`` answered, if known.

    Raises:
        ShardingTypeError: on Explicit axes, with JAX's text.
    """
    types = tuple(types)
    out = op.infer(types, params) if out is None else out
    if mesh is None or (out_spec is None and not any(spec.axes for spec in specs)):
        whole = PartitionSpec().padded(len(out.shape))
        return Resolution(tuple(PartitionSpec().padded(t.ndim) for t in types), whole, (), None, whole)
    # An operand of another mesh (Auto meshes may mix) says nothing about the axes of this one.
    here = tuple(
        spec.padded(t.ndim) if t.mesh is None or t.mesh == mesh else PartitionSpec().padded(t.ndim)
        for t, spec in zip(types, specs, strict=True)
    )
    call = Call(op, types, here, params, mesh, out, None if out_spec is None else out_spec.padded(len(out.shape)))
    if call.strict:
        objection = op.rule.refuse(call.problem())
        if objection is not None:
            raise errors.ShardingTypeError(objection)
    if op.rule.custom is not None:
        resolution: Resolution = op.rule.custom(call)
        return resolution
    call.factors = op.rule.factors(types, params)
    return _by_factors(call)


def _by_factors(call: Call) -> Resolution:
    chosen = {factor: _agreed(call, factor) for factor in _all_factors(call.factors)}
    kept, restored = _by_kind(call, chosen)
    _divide(call, kept, restored)
    _adopt_requested(call, kept)
    _separate(call, kept, restored)
    return _resolution(call, kept, restored)


def _all_factors(factors: Factors) -> list[Factor]:
    """Every factor once: those of the result first, since they have the first claim on mesh axes."""
    found: dict[Factor, None] = dict.fromkeys(factors.out)
    for labels in factors.operands:
        found.update(dict.fromkeys(labels))
    found.pop(None, None)
    return list(found)


def _agreed(call: Call, factor: Factor) -> Axes:
    """The mesh axes that the operands want for a factor. Raises where Explicit axes disagree."""
    wishes: list[Axes] = []
    place = (0, 0)
    for i, labels in enumerate(call.factors.operands):
        for dim, label in enumerate(labels):
            if label == factor and call.placed(i):
                wishes.append(_axes(call.specs[i].entries[dim]))
                place = (i, dim)
    explicit = [call.explicit(axes) for axes in wishes]
    compared = explicit if call.op.rule.same else [axes for axes in explicit if axes]
    if call.strict and len(set(compared)) > 1:
        entries = tuple(axes or None for axes in explicit)
        problem = call.problem(operand=place[0], dim=place[1], entries=entries)
        raise errors.ShardingTypeError(call.op.rule.conflict(problem))
    first = [wish for wish, axes in zip(wishes, explicit, strict=True) if axes] or [w for w in wishes if w]
    return first[0] if first else ()


def _axes(entry: Any) -> Axes:
    return entry if isinstance(entry, tuple) else ()


def _by_kind(call: Call, chosen: dict[Factor, Axes]) -> tuple[dict[Factor, Axes], dict[Factor, Axes]]:
    """Split the factors' axes into those that stay during the computation and those restored after it."""
    kept: dict[Factor, Axes] = {}
    restored: dict[Factor, Axes] = {}
    for factor, axes in chosen.items():
        kind = call.factors.kind(factor)
        if kind is Kind.WHOLE and call.strict and call.pieces(call.explicit(axes)) > 1:
            raise _not_whole(call, factor)
        uncut = kind is Kind.WHOLE and call.pieces(axes) == 1  # sharded by name only
        kept[factor] = axes if uncut or kind in (Kind.PASS, Kind.REDUCE) else ()
        if kind is Kind.RESTORE:
            restored[factor] = axes
    return kept, restored


def _not_whole(call: Call, factor: Factor) -> errors.ShardingTypeError:
    for i, labels in enumerate(call.factors.operands):
        for dim, label in enumerate(labels):
            if label == factor and call.explicit(_axes(call.specs[i].entries[dim])):
                return errors.ShardingTypeError(call.op.rule.whole(call.problem(operand=i, dim=dim)))
    raise AssertionError(f"{call.op}: no operand is sharded along {factor}")


def _sizes(call: Call, factor: Factor) -> list[int]:
    """The sizes of all dimensions that a factor labels."""
    shapes = [t.shape for t in call.types] + [call.out.shape]
    labelled = [*call.factors.operands, call.factors.out]
    return [
        size
        for shape, labels in zip(shapes, labelled, strict=True)
        for size, label in zip(shape, labels, strict=True)
        if label == factor
    ]


def _out_sizes(call: Call, factor: Factor) -> list[int]:
    return [size for size, label in zip(call.out.shape, call.factors.out, strict=True) if label == factor]


def _divide(call: Call, kept: dict[Factor, Axes], restored: dict[Factor, Axes]) -> None:
    """Give up axes that do not divide all dimensions of their factor into equal pieces."""
    for axes_of in (kept, restored):
        for factor, axes in axes_of.items():
            fitting, explicit = _fitting(call, factor, axes), call.explicit(axes)
            if fitting != axes and call.strict and explicit:
                fitting = _fitting(call, factor, explicit)
                if fitting != explicit:
                    raise _not_whole(call, factor)
            axes_of[factor] = fitting


def _fitting(call: Call, factor: Factor, axes: Axes) -> Axes:
    """The longest beginning of ``axes`` that divides every dimension of a factor (of restored ones, the result's)."""
    restored = call.factors.kind(factor) is Kind.RESTORE
    sizes = _out_sizes(call, factor) if restored else _sizes(call, factor)
    while axes and any(size % call.pieces(axes) for size in sizes):
        axes = axes[:-1]
    return axes


def _adopt_requested(call: Call, kept: dict[Factor, Axes]) -> None:
    """Let unsharded factors be sharded as the user wants the result, so that less is computed twice."""
    if call.out_spec is None:
        return
    used = {axis for axes in kept.values() for axis in axes}
    for factor, entry in zip(call.factors.out, call.out_spec.entries, strict=True):
        axes = _axes(entry)
        free = factor is not None and call.factors.kind(factor) is Kind.PASS and not kept[factor]
        if free and axes and used.isdisjoint(axes) and _fitting(call, factor, axes) == axes:
            kept[factor] = axes
            used.update(axes)


def _separate(call: Call, kept: dict[Factor, Axes], restored: dict[Factor, Axes]) -> None:
    """Make every mesh axis shard one factor only; the first factor keeps it (those of the result first)."""
    if call.strict:
        _check_legal(call, kept, restored)
    used: set[str] = set()
    for axes_of in (kept, restored):
        for factor, axes in axes_of.items():
            free = [i for i, axis in enumerate(axes) if axis in used]
            axes_of[factor] = axes[: free[0]] if free else axes
            used.update(axes_of[factor])


def _check_legal(call: Call, kept: dict[Factor, Axes], restored: dict[Factor, Axes]) -> None:
    entries = [kept.get(f, ()) or restored.get(f, ()) for f in call.factors.out]
    explicit = [axis for axes in entries for axis in call.explicit(axes)]
    if len(explicit) == len(set(explicit)):
        return
    rank = len(call.out.shape)
    promoted = call.op.elementwise
    inputs = ", ".join(_short(call, i, rank if promoted else 0) for i in range(len(call.types)))
    result = dtypes.short_name(call.out.dtype) + describe_shape(call.out.shape, _spec(entries), call.mesh)
    raise errors.ShardingTypeError(
        f"{call.op.name} operation with inputs: {inputs} produces an illegally sharded result: {result}\n"
        "One mesh axis cannot shard two dimensions. Move an operand first, with reshard."
    )


def _short(call: Call, operand: int, rank: int) -> str:
    """An operand's type in short form, its shape filled with ones up to a rank (scalars stay scalars)."""
    of = call.types[operand]
    missing = max(rank - of.ndim, 0) if of.ndim else 0
    spec = PartitionSpec(*[None] * missing, *call.specs[operand])
    return dtypes.short_name(of.dtype) + describe_shape((1,) * missing + of.shape, spec, call.mesh)


def _spec(entries: Sequence[Axes]) -> PartitionSpec:
    return PartitionSpec(*(axes or None for axes in entries))


def _resolution(call: Call, kept: dict[Factor, Axes], restored: dict[Factor, Axes]) -> Resolution:
    factors = call.factors
    in_specs = tuple(_spec([kept.get(f, ()) for f in labels]) for labels in factors.operands)
    local = [kept.get(f, ()) for f in factors.out]
    final = [restored.get(f, ()) or axes for f, axes in zip(factors.out, local, strict=True)]
    partial = tuple(
        axis for factor, axes in kept.items() if factor not in factors.out for axis in axes if call.mesh.shape[axis] > 1
    )
    local_spec = _spec(local)
    out_spec = _spec(final) if call.out_spec is None else call.out_spec
    return Resolution(in_specs, out_spec, partial, factors.combine if partial else None, local_spec)
