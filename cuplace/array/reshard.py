"""reshard: another layout over the same devices in the same order, as types with Explicit axes see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cuplace.array.array import Array
from cuplace.array.foreign import adopted
from cuplace.array.host import read_host_value
from cuplace.array.put import Put, put_all, read_bound
from cuplace.array.pytree import broadcast_prefix, flatten, unflatten
from cuplace.array.route import Route, check_fit, host_key, route
from cuplace.errors import (
    IncompatibleDevicesError,
    ReshardAutoAxisError,
    ReshardNothingError,
    ReshardTargetError,
    SpecWithoutMeshError,
)
from cuplace.placement.axes import AxisType
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import PartitionSpec
from cuplace.runtime.caller import Line, caller
from cuplace.runtime.context import context_mesh
from cuplace.runtime.guard import armed
from cuplace.transfer.guarded import judge_bounces, judge_move, judge_upload

staged_reshard: Callable[[Any, NamedSharding], Any] | None = None
"""``staged_reshard(tracer, sharding)`` stands for `reshard` of a value that is being traced; set by staging."""


def reshard(x: Any, out_shardings: Any, *, max_bytes: int | None = None) -> Any:
    """`x` laid out anew over the devices it is committed to; committed to the new layout. Never waits for devices.

    The kind of memory stays what it is, whatever the target says; `device_put` changes it.

    Args:
        x: an array, a NumPy or CuPy array, a number, or a pytree of these. What is uncommitted is placed on the mesh.
        out_shardings: a NamedSharding over the same devices in the same order, a PartitionSpec (read on the mesh
            that `set_mesh` set), or a pytree of these that is a prefix of `x`.
        max_bytes: bytes that the call may take of the memory of each device, as for `device_put`.

    Raises:
        IncompatibleDevicesError: a ValueError, for other devices or another order; `device_put` moves there.
        ReshardTargetError: a TypeError, for a Device or another sharding than a NamedSharding.
        ReshardNothingError, ReshardAutoAxisError, SpecWithoutMeshError, TreePrefixError, RankError,
        IndivisibleError, MaxBytesError, MaxBytesInsideJitError: ValueErrors.
        and what `device_put` raises for a value that cannot become an array.

    >>> import numpy as np, cuplace
    >>> mesh = cuplace.make_mesh((1,), ("x",))
    >>> cuplace.reshard(np.zeros((2, 2), "float32"), cuplace.NamedSharding(mesh, cuplace.P("x"))).sharding.spec
    P('x', None)
    """
    leaves, structure = flatten(x)
    targets = broadcast_prefix("reshard out_shardings", out_shardings, x, len(leaves))
    puts = [_prepared(leaf, _read(target)) for leaf, target in zip(leaves, targets, strict=True)]
    return unflatten(structure, put_all(puts, caller(), read_bound(max_bytes, puts, "reshard")))


def _read(target: Any) -> NamedSharding:
    if target is None:
        raise ReshardNothingError()
    if isinstance(target, PartitionSpec):
        mesh = context_mesh()
        if mesh is None:
            raise SpecWithoutMeshError(target, "reshard")
        target = NamedSharding(mesh, target)
    if not isinstance(target, NamedSharding):
        raise ReshardTargetError(target)
    types = dict(zip(target.mesh.axis_names, target.mesh.axis_types, strict=True))
    for axis in target.spec.axes:
        if types[axis] is not AxisType.Explicit:
            raise ReshardAutoAxisError(target.spec, axis, types[axis])
    return target


@dataclass(frozen=True, slots=True)
class _Staged(Put):
    """A leaf that is being traced."""

    def run(self, line: Line | None) -> Any:
        assert staged_reshard is not None
        assert isinstance(self.how, NamedSharding)
        return staged_reshard(self.value, self.how)


def _prepared(value: Any, target: NamedSharding) -> Put:
    """Check one leaf, and say how it is laid out anew."""
    if getattr(type(value), "_is_tracer", False):
        return _Staged(value, target)
    if type(value) is not Array:
        mine = adopted(value, target.flat_devices)
        value = value if mine is None else mine
    if type(value) is not Array:
        values, weak_type = read_host_value(value)
        sharding = _full_rank(target, values.shape)
        key = host_key(values.shape, values.dtype, weak_type, sharding)
        if armed:
            judge_upload(key.type.unplaced(), sharding, False)
        return Put(values, key)
    value._live()
    sharding = _full_rank(target, value.shape).with_memory_kind(value.sharding.memory_kind)
    if value.committed and value.sharding.flat_devices != sharding.flat_devices:
        raise IncompatibleDevicesError(_incompatible_text(value, sharding))
    found = route(value._key, sharding)
    plan = found.plan
    if armed and plan is not None:
        if value.committed:
            judge_bounces(plan)
        else:
            judge_move(value.aval, plan, False)
    return Put(value, Route(found.key, plan, False))


def _full_rank(target: NamedSharding, shape: tuple[int, ...]) -> NamedSharding:
    check_fit(target, shape)
    return NamedSharding(target.mesh, target.spec.padded(len(shape)))


def _incompatible_text(array: Array, target: NamedSharding) -> str:
    old = array.sharding
    platform = target.flat_devices[0].platform.upper()
    committed = "" if array._origin is None else f"\nThe array was committed at {array._origin}."
    if sorted(old.flat_ids) == sorted(target.flat_ids):
        committed += "\nOnly the order of the devices differs, which is a move of every element."
    return (
        f"Received incompatible devices for jitted computation. Got argument args[0] of reshard with shape "
        f"{array.aval} and with device ids {list(old.flat_ids)} on platform "
        f"{old.flat_devices[0].platform.upper()} and jit's context mesh with device ids {list(target.flat_ids)} "
        f"on platform {platform}{committed}\n"
        f"reshard changes the layout over the same devices. To move the array write device_put(x, {target})."
    )
