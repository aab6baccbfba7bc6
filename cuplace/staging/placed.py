"""The two ways in which a program is placed: on one device, and over the devices of a mesh."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.array.type import ArrayType
from cuplace.ops.op import OutType
from cuplace.ops.reductions import COMBINERS
from cuplace.ops.rule import Resolution, resolve
from cuplace.placement.box import Box
from cuplace.placement.mesh import AbstractMesh, AxisType, Mesh
from cuplace.placement.sharding import NamedSharding, Sharding
from cuplace.placement.spec import PartitionSpec
from cuplace.runtime.task import NOTHING, Cost
from cuplace.staging.local import LocalOp, Register
from cuplace.staging.lower import CALL_SECONDS, Lowering
from cuplace.staging.program import Equation
from cuplace.staging.value import Value

if TYPE_CHECKING:
    from cuplace.ops.op import Op
    from cuplace.staging.home import Home
    from cuplace.staging.program import Atom

WHOLE = PartitionSpec()


def lowering_for(home: Home, name: str) -> Lowering:
    """A lowering of the kind that a home needs."""
    return SingleLowering(home, name) if home.single else MeshLowering(home, name)


class SingleLowering(Lowering):
    """One device: every value is whole, and no sharding matters."""

    def operation(self, equation: Equation, args: list[Value]) -> Value:
        of = equation.outs[0].type
        args = [self._in_memory(arg, of.memory_kind) for arg in args]
        params = equation.op.local_params(equation.params, tuple([a.shape for a in args]), Box.whole(of.shape))
        made = result(of, self.home.replicated(len(of.shape), of.memory_kind))
        return self.emit_op(equation.op, args, made, params)

    def laid_out(self, value: Value, sharding: Sharding) -> Value:
        value = self.array(value)
        same = value.sharding.memory_kind == sharding.memory_kind
        return value.relabelled(sharding) if same else self.move(value, sharding)

    def final_sharding(self, type: ArrayType, value: Value) -> Sharding:
        if type.mesh is None:
            return self.home.replicated(0, value.kind)
        return NamedSharding(self.home.concrete(type.mesh), _shown(type.spec, type.mesh), value.kind)

    def _in_memory(self, arg: Value, kind: str) -> Value:
        """The operand in memory of a kind; numbers are in none."""
        return arg if arg.number is not None else self.laid_out(arg, arg.sharding.with_memory_kind(kind))


class MeshLowering(Lowering):
    """A mesh: each value has a sharding over its devices; where an operation needs another one, it is moved."""

    def __init__(self, home: Home, name: str) -> None:
        super().__init__(home, name)
        assert isinstance(home.mesh, Mesh)
        self.mesh = home.mesh
        self.unsettled: dict[int, Callable[[int, Sharding], None]] = {}
        self._settled: dict[int, tuple[Sharding, Sharding]] = {}

    def of(self, atom: Atom) -> Value:
        value = super().of(atom)
        before, now = self._settled.get(value.place, (None, None))
        return value.relabelled(now) if now is not None and value.sharding is before else value

    def input_anywhere(self, type: ArrayType, settle: Callable[[int, Sharding], None]) -> Value:
        """An array that comes in under whichever sharding its first use wants; ``settle`` is told which."""
        value = self.input(type, self.home.replicated(len(type.shape), type.memory_kind))
        self.unsettled[value.place] = settle
        return value

    def operation(self, equation: Equation, args: list[Value]) -> Value:
        of, params, kind = equation.outs[0].type, equation.params, equation.outs[0].type.memory_kind
        mesh = self.mesh if of.mesh is None else self.home.concrete(of.mesh)
        args = [self._on_mesh(arg, mesh) for arg in args]
        how = _resolved(equation, args, mesh)
        args = [
            arg if arg.number is not None else self.laid_out(arg, NamedSharding(mesh, spec, kind))
            for arg, spec in zip(args, how.in_specs, strict=True)
        ]
        local = result(of, NamedSharding(mesh, how.local_spec, kind))
        shapes = tuple([arg.local_shape for arg in args])
        boxes = local.sharding.layout(of.shape).boxes
        if equation.op.positional:
            value = self.emit_op(
                equation.op, args, local, [equation.op.local_params(params, shapes, box) for box in boxes]
            )
        else:
            value = self.emit_op(equation.op, args, local, equation.op.local_params(params, shapes, boxes[0]))
        final = NamedSharding(mesh, how.out_spec if of.mesh is None else of.spec, kind)
        if how.partial_axes:
            value = self._combined(value, how, final)
        return self.laid_out(value, final)

    def laid_out(self, value: Value, sharding: Sharding) -> Value:
        """The value under another sharding of the same devices: as it is, as a local slice, or moved."""
        value = self.array(value)
        settle = self.unsettled.pop(value.place, None)
        if settle is not None:
            own = sharding.with_memory_kind(value.sharding.memory_kind)
            settle(value.place, own)
            self._settled[value.place] = (value.sharding, own)
            value = value.relabelled(own)
        if value.sharding is sharding:
            return value
        ours, theirs = value.sharding.layout(value.shape).boxes, sharding.layout(value.shape).boxes
        if value.sharding.memory_kind != sharding.memory_kind:
            return self.move(value, sharding)
        if ours == theirs:
            return value.relabelled(sharding)
        if all(mine.intersect(wanted) == wanted for mine, wanted in zip(ours, theirs, strict=True)):
            return self._sliced(value, sharding)
        return self.move(value, sharding)

    def final_sharding(self, type: ArrayType, value: Value) -> Sharding:
        if type.mesh is not None:
            return NamedSharding(self.home.concrete(type.mesh), _shown(type.spec, type.mesh), value.kind)
        sharding = self._on_mesh(value, self.mesh).sharding
        assert isinstance(sharding, NamedSharding)
        return NamedSharding(sharding.mesh, sharding.spec.trimmed(), sharding.memory_kind)

    def settle(self, value: Value) -> Value:
        """A value whose layout was left open, replicated if nothing else was wanted."""
        if value.place not in self.unsettled:
            return value
        return self.laid_out(value, self.home.replicated(len(value.shape), value.kind))

    def _on_mesh(self, value: Value, mesh: Mesh) -> Value:
        """The value under a sharding of ``mesh``, which has the same devices as the value's own mesh."""
        if value.number is not None or (isinstance(value.sharding, NamedSharding) and value.sharding.mesh is mesh):
            return value
        own = value.sharding
        if isinstance(own, NamedSharding) and own.mesh.axis_sizes == mesh.axis_sizes:
            renamed = dict(zip(own.mesh.axis_names, mesh.axis_names, strict=True))
            entries = [
                tuple([renamed[axis] for axis in entry]) if isinstance(entry, tuple) else None
                for entry in value.spec.entries
            ]
            return value.relabelled(NamedSharding(mesh, PartitionSpec(*entries), own.memory_kind))
        return self.laid_out(value, NamedSharding(mesh, WHOLE.padded(len(value.shape)), own.memory_kind))

    def _sliced(self, value: Value, sharding: Sharding) -> Value:
        """Each device keeps a part of what it holds."""
        ours, theirs = value.sharding.layout(value.shape), sharding.layout(value.shape)
        place = self.new_place()
        variants = [
            LocalOp(
                "slice", _take_part, [Register(value.place)], [ours.shard_shape], [place], [theirs.shard_shape],
                [value.dtype], {"part": wanted.within(mine)},
            )
            for mine, wanted in zip(ours.boxes, theirs.boxes, strict=True)
        ]  # fmt: skip
        level = self.level([value])
        copied = 2.0 * math.prod(theirs.shard_shape) * value.dtype.itemsize
        self.emit(variants, (level, value.kind), CALL_SECONDS, Cost(0.0, copied))
        made = value.update(sharding=sharding, place=place, level=level)
        self.note_made(made)
        return made

    def _combined(self, value: Value, how: Resolution, final: NamedSharding) -> Value:
        """Partial results of the same box on the devices along some axes become one result.

        They are stacked along a new leading dimension that is sharded over these axes, gathered along it, and
        combined by each device.
        """
        mesh, count = final.mesh, math.prod(final.mesh.shape[axis] for axis in how.partial_axes)
        shape = (count, *value.shape)
        apart = NamedSharding(mesh, PartitionSpec(how.partial_axes, *how.local_spec), value.kind)
        together = NamedSharding(mesh, PartitionSpec(None, *final.spec.padded(len(value.shape))), value.kind)
        gathered = self.laid_out(self._with_leading(value, shape, apart), together)
        combiner = COMBINERS[how.combine]
        return self.emit_op(combiner, [gathered], value.update(sharding=final), {"axes": (0,), "keepdims": False})

    def _with_leading(self, value: Value, shape: tuple[int, ...], sharding: NamedSharding) -> Value:
        place = self.new_place()
        local = (1, *value.local_shape)
        op = LocalOp(
            "partial", _add_leading, [Register(value.place)], [value.local_shape], [place], [local], [value.dtype], {}
        )
        level = self.level([value])
        self.emit([op], (level, value.kind), 0.0, NOTHING)
        made = value.update(shape=shape, sharding=sharding, place=place, level=level)
        self.note_made(made)
        return made


def result(of: ArrayType, sharding: Sharding) -> Value:
    """A value yet to be made."""
    return Value(of.shape, of.dtype, of.weak_type, sharding, -1, 0)


def _resolved(equation: Equation, args: Sequence[Value], mesh: Mesh) -> Resolution:
    """How an operation is carried out on operands that are where they are.

    What Explicit axes forbid was told while tracing; here every axis is treated as Auto, so that operands whose
    types say nothing (uncommitted ones, placed by ``in_shardings``) cannot fail.
    """
    auto = _automatic(mesh.abstract_mesh)
    types = tuple([
        ArrayType(arg.shape, arg.dtype, arg.weak_type, arg.spec, auto if arg.number is None else None) for arg in args
    ])  # fmt: skip
    try:
        return _cached_resolution(equation.op, types, tuple(equation.params.items()), auto, equation.outs[0].type)
    except TypeError:  # a parameter that is not hashable
        return _resolution(equation.op, types, equation.params, auto, equation.outs[0].type)


def _resolution(
    op: Op, types: tuple[ArrayType, ...], params: Mapping[str, Any], mesh: AbstractMesh, of: ArrayType
) -> Resolution:
    requested = params.get("out_sharding")
    out = OutType(of.shape, of.dtype, of.weak_type)
    out_spec = None if requested is None else requested.spec.padded(len(of.shape))
    return resolve(op, types, [t.spec for t in types], params, mesh, out_spec, out=out)


@functools.lru_cache(maxsize=8192)
def _cached_resolution(
    op: Op, types: tuple[ArrayType, ...], params: tuple[tuple[str, Any], ...], mesh: AbstractMesh, of: ArrayType
) -> Resolution:
    return _resolution(op, types, dict(params), mesh, of)


@functools.lru_cache(maxsize=256)
def _automatic(mesh: AbstractMesh) -> AbstractMesh:
    return mesh.update(axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def _shown(spec: PartitionSpec, mesh: AbstractMesh) -> PartitionSpec:
    """The spec of a result as JAX shows it: full rank on Explicit axes, without trailing None on Auto ones."""
    return spec if AxisType.Explicit in mesh.axis_types else spec.trimmed()


def _take_part(xp: Any, x: Any, *, part: tuple[slice, ...]) -> Any:
    return x[part]


def _add_leading(xp: Any, x: Any) -> Any:
    return x[np.newaxis]
