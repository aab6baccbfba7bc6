"""TransferPlan: which boxes are copied from which shards to change an array's sharding. A pure value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from cuplace.placement.box import Box
from cuplace.placement.memory_space import DEVICE
from cuplace.placement.sharding import SingleDeviceSharding
from cuplace.runtime.topology import CALLER, HOST_END, STAGED, topology_of
from cuplace.transfer.choice import Places, direct_moves
from cuplace.transfer.loads import Copy, bytes_through, estimate
from cuplace.transfer.packed import Packed, find_packed
from cuplace.transfer.path import HOST_PLATFORM, path_between
from cuplace.transfer.relay import relayed
from cuplace.transfer.rounds import End, Rounds
from cuplace.transfer.spread import spread
from cuplace.transfer.table import NOTHING, Ints, Table, cut, strides_of

if TYPE_CHECKING:
    from cuplace.placement.layout import Layout
    from cuplace.placement.sharding import Sharding
    from cuplace.runtime.topology import Port, Topology

Slices: TypeAlias = tuple[slice, ...]

CACHED_PLANS = 4096


class Move(NamedTuple):
    """One copy: `box` of the array, from one shard to a target shard.

    Attributes:
        source, target: shard numbers, in the mesh order of the source and of the target sharding.
        box: what is copied, in indices of the whole array.
        path: how it travels (see `path_between`).
        nbytes: bytes copied.
        source_slices, target_slices: `box` inside the shard, or None where it is the whole shard.
        after: None where it reads a source shard. Else it passes on what the earlier move of this number has
            written: `source` is that move's target shard.
    """

    source: int
    target: int
    box: Box
    path: str
    nbytes: int
    source_slices: Slices | None
    target_slices: Slices | None
    after: int | None = None


@dataclass(frozen=True, eq=False, repr=False)
class TransferPlan:
    """The moves from one sharding of an array to another, in the order in which they are enqueued.

    Every element of every target shard is either written by exactly one move or lies in a shard that is
    aliased: its device already holds exactly that box, in the same memory kind, so nothing is copied.

    Attributes:
        shape, dtype: of the whole array.
        source, target: the two shardings.
        aliases: ``(source shard, target shard)`` of the target shards that need no copy.
        topology: the links that the copies travel.
        max_bytes: the bound on `peak_bytes` that it was made for, or None.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: Sharding
    target: Sharding
    aliases: tuple[tuple[int, int], ...]
    topology: Topology
    _table: Table = field(repr=False)
    max_bytes: int | None = None

    @property
    def num_moves(self) -> int:
        """How many copies the plan makes."""
        return len(self._table.sources)

    @cached_property
    def nbytes(self) -> int:
        """Bytes that are copied, over all moves."""
        return int(self._table.sizes.sum()) * self.dtype.itemsize

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """The copies. Spelled out at first use."""
        sizes = (self._table.sizes * self.dtype.itemsize).tolist()
        table = self._table
        boxes = map(Box, _rows(table.starts), _rows(table.stops))
        return tuple(
            map(
                Move, table.sources.tolist(), table.targets.tolist(), boxes, self._paths(), sizes,
                self._source_slices(), _slices_within(self.target.layout(self.shape), table.targets, table),
                [None if number == NOTHING else number for number in table.after.tolist()],
            )
        )  # fmt: skip

    def device_of(self, move: Move) -> Any:
        """The device that a move reads from."""
        return (self.source if move.after is None else self.target).flat_devices[move.source]

    @cached_property
    def bytes_between(self) -> Mapping[tuple[Any, Any], int]:
        """Bytes copied for each (source device, target device) that has a move."""
        total: dict[tuple[Any, Any], int] = {}
        tos = self.target.flat_devices
        for move in self.moves:
            pair = self.device_of(move), tos[move.target]
            total[pair] = total.get(pair, 0) + move.nbytes
        return MappingProxyType(total)

    @cached_property
    def rounds(self) -> int:
        """How many copies follow one another on the longest chain: 1 where all copies read source shards, and there is
        staging memory for all of them at a time."""
        depth: list[int] = []
        earlier = self.staging.earlier
        for number, after in enumerate(self._table.after.tolist()):
            before = [] if after == NOTHING else [depth[after]]
            depth.append(1 + max([*before, *[depth[other] for other in earlier.get(number, ())]], default=0))
        return max(depth, default=0)

    @cached_property
    def passes_on(self) -> bool:
        """Whether some moves read what others have written."""
        return bool((self._table.after != NOTHING).any())

    @cached_property
    def hops(self) -> frozenset[tuple[int, int]]:
        """The pairs of GPUs between which something is passed on."""
        return frozenset(copy[:2] for copy in self._copies() if copy.after != NOTHING)

    @cached_property
    def seconds(self) -> float | None:
        """An estimate of the time until all is done, in seconds, from the call on; None where the speed of the
        links is not known: on GPUs and CPUs at hand, and of copies between devices and memory of the host."""
        known = self.source.flat_devices == (CALLER,) or _on_devices(self.source)
        if not (self.topology.is_measured and known and _on_devices(self.target)):
            return None
        return estimate(self._copies(), self.topology, self.staging.earlier)

    @cached_property
    def bytes_through(self) -> Mapping[Port, int]:
        """Bytes that pass each port of the GPUs and of the host; copies inside of a GPU, or of the host, are read and
        written in its memory."""
        return MappingProxyType({port: int(n) for port, n in bytes_through(self._copies(), self.topology).items()})

    @cached_property
    def new_bytes(self) -> Mapping[Any, int]:
        """Bytes of device memory for the shard of each target device, unless it is aliased, or in host memory."""
        aliased = {target for _, target in self.aliases}
        shard = math.prod(self.target.layout(self.shape).shard_shape) * self.dtype.itemsize
        shard *= _on_devices(self.target)
        devices = enumerate(self.target.flat_devices)
        return MappingProxyType({device: 0 if number in aliased else shard for number, device in devices})

    @cached_property
    def peak_bytes(self) -> Mapping[Any, int]:
        """Bytes of device memory that each device needs while the moves run, beyond what is there already: its shard,
        and the staging memory that boxes with short rows are packed into. ``max_bytes`` bounds it."""
        staging = self.staging.staging_bytes
        devices = dict.fromkeys((*self.target.flat_devices, *self.source.flat_devices))
        devices.pop(CALLER, None)
        return MappingProxyType({one: self.new_bytes.get(one, 0) + staging.get(one, 0) for one in devices})

    @cached_property
    def staging(self) -> Rounds:
        """The memory that moves are packed into, and which moves wait for it.

        Raises:
            MaxBytesError: a ValueError; there is too little for it.
        """
        return Rounds(self.packed_ends, self.new_bytes, self.max_bytes)

    @cached_property
    def packed(self) -> Packed:
        """Which moves are packed, and where."""
        return find_packed(self._table, self.shape, self.dtype.itemsize, self.source, self.target)

    @cached_property
    def packed_ends(self) -> tuple[End, ...]:
        """The ends of moves that are packed there."""
        froms, tos = self.source.flat_devices, self.target.flat_devices
        table, ends = self._table, list[End]()
        rows = self.packed.rows
        columns = table.sources, table.targets, table.sizes * self.dtype.itemsize, table.after, *self.packed
        for row, source, target, nbytes, after, sent, received in zip(
            rows, *[column[rows].tolist() for column in columns], strict=True
        ):
            if sent:
                ends.append(End(row, (froms if after == NOTHING else tos)[source], nbytes))
            if received:
                ends.append(End(row, tos[target], nbytes))
        return tuple(ends)

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain numbers and texts, as JSON takes them."""
        from cuplace.transfer.picture import as_dict

        return as_dict(self)

    def matrix(self) -> str:
        """A table of the bytes from each device (row) to each device (column)."""
        from cuplace.transfer.picture import as_text

        return as_text(self)

    def svg(self) -> str:
        """The same as a picture, for notebooks and pages."""
        from cuplace.transfer.picture import as_svg

        return as_svg(self)

    def _repr_svg_(self) -> str:
        return self.svg()

    def _copies(self) -> list[Copy]:
        froms, tos = _ends(self.source), _ends(self.target)
        table = self._table
        columns = table.sources, table.targets, table.sizes * self.dtype.itemsize, table.after
        return [
            Copy((froms if after == NOTHING else tos)[source], tos[target], nbytes, after)
            for source, target, nbytes, after in zip(*map(np.ndarray.tolist, columns), strict=True)
        ]

    @cached_property
    def is_identity(self) -> bool:
        """Whether every target shard is the source shard of the same number: nothing moves, nothing changes
        places."""
        return self.num_moves == 0 and all(s == t for s, t in self.aliases) and (
            len(self.aliases) == len(self.source.flat_devices) == len(self.target.flat_devices)
        )  # fmt: skip

    def _paths(self) -> Iterator[str]:
        froms, tos = self.source.flat_devices, self.target.flat_devices
        kinds = self.source.memory_kind, self.target.memory_kind
        columns = self._table.sources, self._table.targets, self._table.after
        for source, target, after in zip(*map(np.ndarray.tolist, columns), strict=True):
            here, there = (froms if after == NOTHING else tos)[source], tos[target]
            path = path_between(here, there, kinds if after == NOTHING else (kinds[1], kinds[1]))
            yield self.topology.path(here.gpu, there.gpu) if path == "peer" else path

    def _source_slices(self) -> Iterable[Slices | None]:
        table = self._table
        old = self.source.layout(self.shape)
        if not self.passes_on:
            return _slices_within(old, table.sources, table)
        passed_on = table.after != NOTHING
        read = np.where(passed_on, 0, table.sources)
        again = np.where(passed_on, table.sources, 0)
        first, second = _slices_within(old, read, table), _slices_within(self.target.layout(self.shape), again, table)
        return [b if late else a for a, b, late in zip(first, second, passed_on.tolist(), strict=False)]

    def __repr__(self) -> str:
        array = f"{self.dtype.name}[{','.join(map(str, self.shape))}]"
        return (
            f"TransferPlan({array}, {_place(self.source)} -> {_place(self.target)}: "
            f"{self.num_moves} moves, {self.nbytes} bytes, {len(self.aliases)} aliased)"
        )

    def __str__(self) -> str:
        from cuplace.transfer.picture import as_lines

        return "\n".join(as_lines(self))


@lru_cache(maxsize=CACHED_PLANS)
def plan_move(
    shape: tuple[int, ...], dtype: np.dtype[Any], source: Sharding, target: Sharding, may_alias: bool = True,
    topology: Topology | None = None, max_bytes: int | None = None,
) -> TransferPlan:  # fmt: skip
    """The plan that turns an array of `shape` and `dtype` sharded as `source` into one sharded as `target`.

    Among several holders of a box the copy comes from the same device, else from the same GPU, else from the same
    node, else from the one whose links have least to carry. Replicated targets pass on what they have received where
    that is quicker. The time is linear in the number of moves. With ``may_alias=False`` nothing is aliased: shards
    that are already in place are copied too. Without a topology it is that of the devices. ``max_bytes`` bounds
    `TransferPlan.peak_bytes`.

    Raises:
        ValueError: a sharding does not fit the shape (the text is the sharding's own).
        MaxBytesError: a ValueError, where ``max_bytes`` is too little.
    """
    if max_bytes is not None:
        return bounded(plan_move(shape, dtype, source, target, may_alias, topology), max_bytes)
    old, new = source.layout(shape), target.layout(shape)
    aliases = _find_aliases(source, target, old, new) if may_alias else ()
    wanted = np.setdiff1d(
        np.arange(len(new.boxes)), np.array([target for _, target in aliases], dtype=np.int64), assume_unique=True
    )
    if 0 in shape:
        wanted = wanted[:0]
    places = Places(source.flat_devices, target.flat_devices, topology or topology_of(source.flat_devices[0]))
    held = np.array(source.tiling(len(shape)).blocks, dtype=np.int64) @ strides_of(old)
    table = direct_moves(cut(old, new, wanted), held, places)
    if len(new.holders) < len(new.boxes) and _on_devices(target):
        if _crosses(source, target, places.topology):
            table = spread(table, places, dtype.itemsize) or table
        elif _on_devices(source):
            table = relayed(table, held, places, dtype.itemsize) or table
    return TransferPlan(shape, dtype, source, target, aliases, places.topology, table)


def plan_upload(
    shape: tuple[int, ...], dtype: np.dtype[Any], target: Sharding, topology: Topology | None = None,
    max_bytes: int | None = None,
) -> TransferPlan:  # fmt: skip
    """The plan for values of the caller's, which are in memory of the host: each shard comes from there, or, where
    several devices need the same and that is quicker, from one of them that has got it.

    Raises:
        ValueError: the sharding does not fit the shape (the text is the sharding's own).
        MaxBytesError: a ValueError, where ``max_bytes`` is too little.
    """
    topology = topology or topology_of(target.flat_devices[0])
    asked = shape, dtype, SingleDeviceSharding(CALLER), target, False, topology, max_bytes
    plan = plan_move(*asked)
    if plan.passes_on and any(topology.path(*hop) == STAGED for hop in plan.hops):
        plan_move.cache_clear()  # the first copy of a pair has shown since that it does not deliver
        plan = plan_move(*asked)
    return plan


def bounded(plan: TransferPlan, max_bytes: int) -> TransferPlan:
    """The same moves, in rounds that keep `peak_bytes` under a bound.

    Raises:
        MaxBytesError: a ValueError, where that cannot be.
    """
    staging = Rounds(plan.packed_ends, plan.new_bytes, max_bytes)
    made = replace(plan, max_bytes=max_bytes)
    vars(made)["staging"] = staging  # as the cached property, which would find the same
    return made


def _crosses(source: Sharding, target: Sharding, topology: Topology) -> bool:
    """Whether values of the caller's go to memory of devices: their own, or of the machine they stand for."""
    first = target.flat_devices[0]
    own = first.platform != HOST_PLATFORM or topology is not topology_of(first)
    return own and source.flat_devices == (CALLER,)


def _on_devices(sharding: Sharding) -> bool:
    """Whether the arrays are in the devices' own memory."""
    return sharding.memory_kind in (None, DEVICE)


def _ends(sharding: Sharding) -> list[int]:
    """Between what copies travel: the GPUs, in mesh order, or the host. A CPU's devices are the host anyhow."""
    on_devices = _on_devices(sharding)
    return [
        device.gpu if on_devices or device.platform == HOST_PLATFORM else HOST_END for device in sharding.flat_devices
    ]


def _find_aliases(source: Sharding, target: Sharding, old: Layout, new: Layout) -> tuple[tuple[int, int], ...]:
    if source.memory_kind != target.memory_kind:
        return ()
    holders = {device: shard for shard, device in enumerate(source.flat_devices)}
    pairs = ((holders.get(device), shard) for shard, device in enumerate(target.flat_devices))
    return tuple((s, t) for s, t in pairs if s is not None and old.boxes[s] == new.boxes[t])


def _slices_within(layout: Layout, shards: Ints, table: Table) -> Iterable[Slices | None]:
    shard_shape = np.array(layout.shard_shape, dtype=np.int64)
    whole = (table.stops - table.starts == shard_shape).all(axis=1)
    if whole.all():
        return repeat(None, len(whole))
    origins = np.array([box.start for box in layout.boxes], dtype=np.int64)[shards]
    firsts, ends = (table.starts - origins).T.tolist(), (table.stops - origins).T.tolist()
    parts: Iterable[Slices] = zip(*map(map, repeat(slice), firsts, ends), strict=True)
    return [None if is_whole else part for is_whole, part in zip(whole.tolist(), parts, strict=True)]


def _rows(table: Ints) -> Iterable[tuple[int, ...]]:
    """The rows as tuples; made by columns, which is several times faster than row by row."""
    return zip(*table.T.tolist(), strict=True) if table.shape[1] else repeat((), len(table))


def _place(sharding: Sharding) -> str:
    if sharding.flat_devices == (CALLER,):
        return "the host"
    ids = sharding.flat_ids
    shown = ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
    kind = "" if sharding.memory_kind in (None, DEVICE) else f" {sharding.memory_kind}"
    return f"{getattr(sharding, 'spec', 'whole')} on [{shown}]{kind}"
