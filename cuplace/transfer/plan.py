"""TransferPlan: which boxes are copied from which shards to change an array's sharding. A pure value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cuplace.placement.box import Box
from cuplace.placement.memory_space import DEVICE
from cuplace.transfer.path import path_between

if TYPE_CHECKING:
    from cuplace.placement.layout import Layout
    from cuplace.placement.sharding import Sharding
    from cuplace.runtime.device import Device

Slices: TypeAlias = tuple[slice, ...]
_Ints: TypeAlias = npt.NDArray[np.int64]

CACHED_PLANS = 4096
LINES_SHOWN = 16


class Move(NamedTuple):
    """One copy: `box` of the array, from one source shard to one target shard.

    Attributes:
        source, target: shard numbers, in the mesh order of the source and of the target sharding.
        box: what is copied, in indices of the whole array.
        path: how it travels (see `path_between`).
        nbytes: bytes copied.
        source_slices, target_slices: `box` inside the shard, or None where it is the whole shard.
    """

    source: int
    target: int
    box: Box
    path: str
    nbytes: int
    source_slices: Slices | None
    target_slices: Slices | None


class _Table(NamedTuple):
    """All moves as columns: a large plan is computed and kept as arrays and spelled out only when it is read."""

    sources: _Ints  # (moves,)
    targets: _Ints  # (moves,)
    starts: _Ints  # (moves, ndim)
    stops: _Ints  # (moves, ndim)


@dataclass(frozen=True, eq=False, repr=False)
class TransferPlan:
    """The moves from one sharding of an array to another.

    Every element of every target shard is either written by exactly one move or lies in a shard that is
    aliased: its device already holds exactly that box, in the same memory kind, so nothing is copied.

    Attributes:
        shape, dtype: of the whole array.
        source, target: the two shardings.
        aliases: ``(source shard, target shard)`` of the target shards that need no copy.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: Sharding
    target: Sharding
    aliases: tuple[tuple[int, int], ...]
    _table: _Table = field(repr=False)

    @property
    def num_moves(self) -> int:
        """How many copies the plan makes."""
        return len(self._table.sources)

    @cached_property
    def nbytes(self) -> int:
        """Bytes that are copied, over all moves."""
        return int(self._sizes.sum()) * self.dtype.itemsize

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """The copies, ordered by target shard. Spelled out at first use."""
        sizes = (self._sizes * self.dtype.itemsize).tolist()
        table = self._table
        boxes = map(Box, _rows(table.starts), _rows(table.stops))
        source_slices = _slices_within(self.source.layout(self.shape), table.sources, table)
        target_slices = _slices_within(self.target.layout(self.shape), table.targets, table)
        return tuple(
            map(
                Move, table.sources.tolist(), table.targets.tolist(), boxes, self._paths(), sizes,
                source_slices, target_slices,
            )
        )  # fmt: skip

    @cached_property
    def bytes_between(self) -> Mapping[tuple[Device, Device], int]:
        """Bytes copied for each (source device, target device) that has a move."""
        froms, tos = self.source.flat_devices, self.target.flat_devices
        return MappingProxyType({(froms[m.source], tos[m.target]): m.nbytes for m in self.moves})

    @cached_property
    def is_identity(self) -> bool:
        """Whether every target shard is the source shard of the same number: nothing moves, nothing changes
        places."""
        return self.num_moves == 0 and all(s == t for s, t in self.aliases) and (
            len(self.aliases) == len(self.source.flat_devices) == len(self.target.flat_devices)
        )  # fmt: skip

    @property
    def _sizes(self) -> _Ints:
        sizes: _Ints = (self._table.stops - self._table.starts).prod(axis=1, dtype=np.int64)
        return sizes

    def _paths(self) -> Iterator[str]:
        froms, tos = self.source.flat_devices, self.target.flat_devices
        kinds = self.source.memory_kind, self.target.memory_kind
        for source, target in zip(self._table.sources.tolist(), self._table.targets.tolist(), strict=True):
            yield path_between(froms[source], tos[target], kinds)

    def __repr__(self) -> str:
        array = f"{self.dtype.name}[{','.join(map(str, self.shape))}]"
        return (
            f"TransferPlan({array}, {_place(self.source)} -> {_place(self.target)}: "
            f"{self.num_moves} moves, {self.nbytes} bytes, {len(self.aliases)} aliased)"
        )

    def __str__(self) -> str:
        froms, tos = self.source.flat_devices, self.target.flat_devices
        lines = [repr(self)]
        lines += [
            f"  {froms[move.source]} -> {tos[move.target]}  {_index_text(move.box)}  {move.nbytes} B  {move.path}"
            for move in self.moves[:LINES_SHOWN]
        ]
        if self.num_moves > LINES_SHOWN:
            lines.append(f"  ... {self.num_moves - LINES_SHOWN} more")
        lines += [f"  {tos[target]}  aliased" for _, target in self.aliases[:LINES_SHOWN]]
        if len(self.aliases) > LINES_SHOWN:
            lines.append(f"  ... {len(self.aliases) - LINES_SHOWN} more aliased")
        return "\n".join(lines)


@lru_cache(maxsize=CACHED_PLANS)
def plan_move(
    shape: tuple[int, ...], dtype: np.dtype[Any], source: Sharding, target: Sharding, may_alias: bool = True
) -> TransferPlan:
    """The plan that turns an array of `shape` and `dtype` sharded as `source` into one sharded as `target`.

    Among several holders of a box the copy comes from the same device, else from the same GPU, else from the
    first in the source's mesh order. The time is linear in the number of moves. With ``may_alias=False``
    nothing is aliased: shards that are already in place are copied too.

    Raises:
        ValueError: a sharding does not fit the shape (the text is the sharding's own).
    """
    old, new = source.layout(shape), target.layout(shape)
    aliases = _find_aliases(source, target, old, new) if may_alias else ()
    wanted = np.setdiff1d(
        np.arange(len(new.boxes)), np.array([target for _, target in aliases], dtype=np.int64), assume_unique=True
    )
    if 0 in shape:
        wanted = wanted[:0]
    return TransferPlan(shape, dtype, source, target, aliases, _find_moves(source, target, old, new, wanted))


def _find_aliases(source: Sharding, target: Sharding, old: Layout, new: Layout) -> tuple[tuple[int, int], ...]:
    if source.memory_kind != target.memory_kind:
        return ()
    holders = {device: shard for shard, device in enumerate(source.flat_devices)}
    pairs = ((holders.get(device), shard) for shard, device in enumerate(target.flat_devices))
    return tuple((s, t) for s, t in pairs if s is not None and old.boxes[s] == new.boxes[t])


def _find_moves(source: Sharding, target: Sharding, old: Layout, new: Layout, wanted: _Ints) -> _Table:
    """Cut every wanted target box along the source's grid, then choose a holder for each piece.

    Both grids are regular, so the source pieces that a target box touches are an interval in each dimension.
    """
    ndim = len(old.shape)
    box_starts = np.array([box.start for box in new.boxes], dtype=np.int64)
    box_stops = np.array([box.stop for box in new.boxes], dtype=np.int64)
    piece_shape = np.array(old.shard_shape, dtype=np.int64)
    first = box_starts[wanted] // np.maximum(piece_shape, 1)
    counts = (box_stops[wanted] - 1) // np.maximum(piece_shape, 1) - first + 1

    pieces_per_target = counts.prod(axis=1, dtype=np.int64)
    row = np.repeat(np.arange(len(wanted)), pieces_per_target)
    rank = np.arange(len(row)) - np.repeat(np.cumsum(pieces_per_target) - pieces_per_target, pieces_per_target)
    coordinates = np.empty((len(row), ndim), dtype=np.int64)
    for dim in reversed(range(ndim)):
        rank, coordinates[:, dim] = np.divmod(rank, counts[row, dim])
    coordinates += first[row]

    targets = wanted[row]
    starts = np.maximum(coordinates * piece_shape, box_starts[targets])
    stops = np.minimum((coordinates + 1) * piece_shape, box_stops[targets])
    sources = _choose_sources(source, target, old, coordinates, targets)
    return _Table(sources, targets, starts, stops)


def _choose_sources(source: Sharding, target: Sharding, old: Layout, coordinates: _Ints, targets: _Ints) -> _Ints:
    """A holder of each piece: on the target's own device, else on its GPU, else the first in mesh order."""
    strides = np.ones(len(old.parts), dtype=np.int64)
    strides[:-1] = np.cumprod(old.parts[:0:-1], dtype=np.int64)[::-1]
    pieces = math.prod(old.parts)
    piece = coordinates @ strides
    held = np.array(source.tiling(len(old.shape)).blocks, dtype=np.int64) @ strides

    chosen: _Ints = np.unique(held, return_index=True)[1][piece]
    for name_place in (_gpu_of, _itself):
        places: dict[object, int] = {}
        from_place = [places.setdefault(name_place(device), len(places)) for device in source.flat_devices]
        to_place = [places.get(name_place(device), -1) for device in target.flat_devices]
        keys, holders = np.unique(np.array(from_place, dtype=np.int64) * pieces + held, return_index=True)
        wanted = np.array(to_place, dtype=np.int64)[targets] * pieces + piece
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        hit = keys[found] == wanted
        chosen[hit] = holders[found[hit]]
    return chosen


def _gpu_of(device: Device) -> object:
    return (device.process_index, device.gpu)


def _itself(device: Device) -> object:
    return device


def _slices_within(layout: Layout, shards: _Ints, table: _Table) -> Iterable[Slices | None]:
    shard_shape = np.array(layout.shard_shape, dtype=np.int64)
    whole = (table.stops - table.starts == shard_shape).all(axis=1)
    if whole.all():
        return repeat(None, len(whole))
    origins = np.array([box.start for box in layout.boxes], dtype=np.int64)[shards]
    firsts, ends = (table.starts - origins).T.tolist(), (table.stops - origins).T.tolist()
    parts: Iterable[Slices] = zip(*map(map, repeat(slice), firsts, ends), strict=True)
    return [None if is_whole else part for is_whole, part in zip(whole.tolist(), parts, strict=True)]


def _rows(table: _Ints) -> Iterable[tuple[int, ...]]:
    """The rows as tuples; made by columns, which is several times faster than row by row."""
    return zip(*table.T.tolist(), strict=True) if table.shape[1] else repeat((), len(table))


def _index_text(box: Box) -> str:
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in zip(box.start, box.stop, strict=True)) + "]"


def _place(sharding: Sharding) -> str:
    ids = sharding.flat_ids
    shown = ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
    kind = "" if sharding.memory_kind in (None, DEVICE) else f" {sharding.memory_kind}"
    return f"{getattr(sharding, 'spec', 'whole')} on [{shown}]{kind}"
