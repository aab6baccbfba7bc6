"""device_put and its kin: placing values from the host, moving arrays, getting values back, waiting for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuplace.array.array import Array
from cuplace.array.donation import check_sole_owner
from cuplace.array.dtypes import held_dtype, narrow
from cuplace.array.fetch import read_all
from cuplace.array.foreign import adopted, devices_of, shared
from cuplace.array.host import read_host_value
from cuplace.array.key import OperandKey
from cuplace.array.pytree import broadcast_prefix, flatten, unflatten
from cuplace.array.route import Route, host_key, route
from cuplace.errors import (
    DonateAliasError,
    DonateFlagError,
    InvalidTargetError,
    MaxBytesError,
    MaxBytesInsideJitError,
    SpecWithoutMeshError,
)
from cuplace.placement.memory_space import MemorySpace
from cuplace.placement.sharding import NamedSharding, Sharding, SingleDeviceSharding
from cuplace.placement.spec import PartitionSpec
from cuplace.runtime.caller import Line, caller
from cuplace.runtime.context import context_mesh, current_default_device
from cuplace.runtime.device import Device
from cuplace.runtime.guard import armed
from cuplace.transfer.batch import Batch
from cuplace.transfer.execute import move
from cuplace.transfer.guarded import judge_move, judge_upload
from cuplace.transfer.plan import plan_move
from cuplace.transfer.upload import upload

_PLACES = frozenset({NamedSharding, SingleDeviceSharding, Device})
_LEAVES = frozenset({Array, np.ndarray, bool, int, float, complex})
_TREES = (tuple, list, dict)

staged_put: Callable[[Any, Sharding | Device | MemorySpace | None, bool | str], Any] | None = None
"""``staged_put(tracer, target, donate)`` stands for `device_put` of a value that is being traced.

The staging floor sets it. The target is one that `device_put` accepted, a bare PartitionSpec already read on the
context mesh.
"""


def device_put(
    x: Any, device: Any = None, *, src: Any = None, donate: bool | str | Any = False, may_alias: Any = None,
    max_bytes: int | None = None,
) -> Any:  # fmt: skip
    """`x` placed on a device or over the devices of a sharding. Never waits for device work.

    Args:
        x: an array, a NumPy or CuPy array (or another one on a GPU with DLPack's methods), a number, or a pytree of
            these.
        device: where to: a Sharding, a Device, a PartitionSpec (read on the mesh that `set_mesh` set), a memory
            space (`cuplace.memory.Space`: the same place in memory of the device or of the host), None, or a pytree
            of these that is a prefix of `x`. The result is committed there. Without a target an array comes back as
            it is, a value from the host becomes an uncommitted array on the default device, and a CuPy array an
            uncommitted one where it lies.
        src: accepted for JAX's sake, and ignored.
        donate: consume the arrays in `x`: they are deleted at once, and their memory is reused or freed as soon as
            the moves are done. With ``'strict'`` an error tells what else holds the memory, before anything
            changes. Values of other libraries are not affected. May be a pytree prefix of `x`.
        may_alias: False forces new memory where the data is in place already; True shares the memory of a NumPy array
            where a device can use it, on the platforms cpu and sim. A pytree prefix of `x`.
        max_bytes: bytes that the call may take of the memory of each device, beyond what is there already: the shards
            of the result that are new on it, for all arrays in `x` together, and the staging memory that boxes with
            short rows are packed into on their way between GPUs. Where that does not hold all of them at a time, moves
            come in rounds; a later round waits on the devices for an earlier one, and the call returns at once all
            the same. Memory of the host is not counted, nor is it that a donated source gives memory back: that is
            when all moves that read it are done. Without a bound staging memory is at most 64 MiB a device.

    Returns:
        An array, or a pytree of arrays like `x`. A value from the host is taken as of the call. A CuPy array is taken
        as of what its current stream has been given so far, and is not copied on its own GPU: from then on the memory
        is the array's, too, and must not be written to.

    Raises:
        InvalidTargetError, SpecWithoutMeshError, TreePrefixError: ValueErrors, for a bad target.
        RankError, IndivisibleError: ValueErrors, where the sharding does not fit the shape.
        NotAnArrayError, InvalidValueError, GpuArrayError, DtypeError: TypeErrors, for what cannot become an array.
        MaskedArrayError, DonateAliasError, DonateFlagError, ForeignPlatformError, ForeignMemoryError: ValueErrors.
        MaxBytesError, MaxBytesInsideJitError: ValueErrors, where `max_bytes` is too little, or given inside jit.
        IntegerRangeError: an OverflowError, for integers that 32 bits do not hold.
        DeletedArrayError, StrictDonationError, TransferGuardError: RuntimeErrors.
        All leaves are checked before anything is moved.

    >>> import numpy as np, cuplace
    >>> x = cuplace.device_put(np.arange(3.0, dtype="float32"), cuplace.devices()[0])
    >>> x, x.committed
    (Array([0., 1., 2.], dtype=float32), True)
    """
    if donate is False and may_alias is None and max_bytes is None and not armed:
        kind = type(x)
        if kind is Array:
            if type(device) in _PLACES:
                return _carry_out(x, route(x._key, device), caller())
        elif kind is np.ndarray and type(device) in _PLACES:
            return _upload(x, host_key(x.shape, held_dtype(x), False, device), caller())
        if kind in _LEAVES and not isinstance(device, _TREES):
            return _prepared(x, device, False, None).run(caller())
    return _put_tree(x, device, donate, may_alias, max_bytes=max_bytes)


def device_get(x: Any) -> Any:
    """The pytree `x` with each array in it as a read-only NumPy array; waits for them. Other leaves stay as they are.

    All copies begin before any of them is waited for, as far as ``staging_bytes`` of host memory hold them.

    Raises:
        DeletedArrayError: a RuntimeError, for an array that has been deleted.
        TransferGuardError: a RuntimeError, where a guard forbids also explicit transfers to the host.

    >>> import cuplace
    >>> cuplace.device_get({"a": cuplace.device_put(1.5), "b": "text"})
    {'a': array(1.5, dtype=float32), 'b': 'text'}
    """
    leaves, structure = flatten(x)
    values = iter(read_all([leaf for leaf in leaves if type(leaf) is Array]))
    return unflatten(structure, [next(values) if type(leaf) is Array else leaf for leaf in leaves])


def put_unasked(value: Any, device: Any = None) -> Any:
    """`device_put` in a call that was not made for that, which guards tell apart.

    Raises:
        TransferGuardError: a RuntimeError.
        and what `device_put` raises.
    """
    return _put_tree(value, device, False, None, False) if armed else device_put(value, device)


def block_until_ready(x: Any) -> Any:
    """Wait until the values of all arrays in the pytree `x` are there; `x` itself. Other leaves are passed over.

    Raises:
        The original error of the work that should have made the values.
        DeletedArrayError: a RuntimeError, for an array that has been deleted.

    >>> import cuplace
    >>> block_until_ready({"a": cuplace.device_put(1.5), "b": "text"})
    {'a': Array(1.5, dtype=float32, weak_type=True), 'b': 'text'}
    """
    for leaf in flatten(x)[0]:
        if type(leaf) is Array:
            leaf.block_until_ready()
    return x


def _put_tree(
    x: Any, device: Any, donate: Any, may_alias: Any, explicit: bool = True, max_bytes: int | None = None
) -> Any:
    leaves, structure = flatten(x)
    targets = broadcast_prefix("device_put device", device, x, len(leaves))
    donates = broadcast_prefix("device_put donate", donate, x, len(leaves))
    aliases = broadcast_prefix("device_put may_alias", may_alias, x, len(leaves))
    puts = [_prepared(*one, explicit) for one in zip(leaves, targets, donates, aliases, strict=True)]
    line = caller()
    results = put_all(puts, line, read_bound(max_bytes, puts, "device_put"))
    for put in puts:
        if put.donate and type(put.value) is Array:
            put.value._consume("donated", line)
    return unflatten(structure, results)


def read_bound(max_bytes: Any, puts: Sequence[Put], who: str) -> int | None:
    """A bound on the memory of what has been checked.

    Raises:
        MaxBytesError, MaxBytesInsideJitError: ValueErrors, where it is no number of bytes, or a value is being traced.
    """
    if max_bytes is None:
        return None
    if any(getattr(type(put.value), "_is_tracer", False) for put in puts):
        raise MaxBytesInsideJitError(who)
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int | np.integer) or max_bytes < 0:
        raise MaxBytesError(max_bytes)
    return int(max_bytes)


def put_all(puts: Sequence[Put], line: Line | None, max_bytes: int | None = None) -> list[Any]:
    """Do what has been checked, all in one turn of the scheduler; the results in the same order.

    Raises:
        MaxBytesError: a ValueError; the bound is too little. Nothing has been moved then.
        OutOfMemoryError: a device has no memory for its part. Nothing has been moved then.
    """
    batch = Batch(max_bytes)
    numbers = [put.enter(batch) for put in puts]
    shards = batch.run(line)
    return [
        put.run(line) if number is None else Array._make(shards[number], put.key, line)
        for put, number in zip(puts, numbers, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Put:
    """One leaf, checked, and what will be done with it: a route for arrays, a key for values from the host."""

    value: Any
    how: Route | OperandKey | Sharding | Device | MemorySpace | None
    donate: bool | str = False

    @property
    def key(self) -> OperandKey:
        """Of the result."""
        assert isinstance(self.how, Route | OperandKey)
        return self.how.key if isinstance(self.how, Route) else self.how

    def enter(self, batch: Batch) -> int | None:
        """Add it to a batch: the number of its result there; None where nothing is to be moved.

        Raises:
            DeletedArrayError: a RuntimeError.
        """
        value, how = self.value, self.how
        if isinstance(how, Route):
            return None if how.plan is None else batch.move(value._live(), how.plan)
        return batch.upload(value, how.sharding) if isinstance(how, OperandKey) else None

    def run(self, line: Line | None) -> Any:
        value, how = self.value, self.how
        if isinstance(how, Route):
            if self.donate and how.plan is None:
                return Array._make(value._live(), how.key, line)
            return _carry_out(value, how, line)
        if isinstance(how, OperandKey):
            return _upload(value, how, line)
        assert staged_put is not None
        return staged_put(value, how, self.donate)


def _prepared(value: Any, target: Any, donate: Any, may_alias: Any, explicit: bool = True) -> Put:
    if donate not in (True, False, "strict"):
        raise DonateFlagError(donate)
    if donate and may_alias:
        raise DonateAliasError()
    space = target if isinstance(target, MemorySpace) else None
    place = None if space is not None else read_target(target)
    if getattr(type(value), "_is_tracer", False):
        return Put(value, place if space is None else _checked(space), donate)
    mine = None if type(value) is Array else _mine(value, place, may_alias)
    if mine is not None:
        value, donate = mine, False
    if space is not None:
        place = _in_space(value, _checked(space))
    if type(value) is Array:
        value._live()
        if donate == "strict":
            check_sole_owner(value)
        found = _stay(value, may_alias) if place is None else route(value._key, place, may_alias)
        if armed and found.plan is not None:
            judge_move(value.aval, found.plan, explicit)
        return Put(value, found, donate)
    values, weak_type = read_host_value(value)
    key = host_key(values.shape, values.dtype, weak_type, place)
    if armed:
        judge_upload(key.type.unplaced(), key.sharding, explicit)
    return Put(values, key, donate)


def _mine(value: Any, place: Sharding | Device | None, may_alias: Any) -> Array | None:
    """An array over a value's own memory, where that is on a GPU, or may be shared; else None."""
    if isinstance(value, np.ndarray):
        return shared(narrow(value), place, place is not None) if may_alias and type(value) is np.ndarray else None
    return None if isinstance(value, np.generic | bool | int | float | complex) else adopted(value, devices_of(place))


def _checked(space: MemorySpace) -> MemorySpace:
    """Raises InvalidTargetError, a ValueError, for ``Space.Any``."""
    if space.kind is None:
        raise InvalidTargetError(space)
    return space


def _in_space(value: Any, space: MemorySpace) -> Sharding:
    """The place of a value in a memory space: where it is, or where `device_put` without a target puts it."""
    kind, mesh = space.kind, context_mesh()
    if type(value) is Array:
        return value.sharding.with_memory_kind(kind)
    if mesh is not None:
        return NamedSharding(mesh, PartitionSpec(), kind)
    return SingleDeviceSharding(current_default_device(), memory_kind=kind)


def _stay(array: Array, may_alias: Any) -> Route:
    """The route of an array without a target: itself, or, with ``may_alias=False``, a copy that is placed as it is."""
    key = array._key
    if may_alias is not False:
        return Route(key, None, True)
    plan = plan_move(key.type.shape, key.type.dtype, key.sharding, key.sharding, False)
    return Route(key, plan, False)


def read_target(target: Any) -> Sharding | Device | None:
    """A target of `device_put` with bare specs read on the context mesh.

    Raises:
        InvalidTargetError, SpecWithoutMeshError: ValueErrors.
    """
    if target is None or isinstance(target, Sharding | Device):
        return target
    if isinstance(target, PartitionSpec):
        mesh = context_mesh()
        if mesh is None:
            raise SpecWithoutMeshError(target, "device_put")
        return NamedSharding(mesh, target)
    raise InvalidTargetError(target)


def _carry_out(array: Array, how: Route, line: Line | None) -> Array:
    buffers = array._live()
    if how.plan is not None:
        return Array._make(move(buffers, how.plan, line), how.key, line)
    return array if how.is_same else array._alias(how.key, line)


def _upload(values: np.ndarray, key: OperandKey, line: Line | None) -> Array:
    return Array._make(upload(values, key.sharding, line, key.type.dtype), key, line)
