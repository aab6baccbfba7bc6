"""Direct moves: from which holder each piece comes, and in which order the copies are enqueued."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cuplace.transfer.table import NOTHING, Ints, Pieces, Table

if TYPE_CHECKING:
    from cuplace.runtime.topology import Topology

MOST_WEIGHED = 2048
"""Pieces with several equally near holders up to which loads are weighed one by one; beyond, holders take turns."""


class Places(NamedTuple):
    """The devices of the source shards and of the target shards, and what joins them."""

    sources: Sequence[Any]
    targets: Sequence[Any]
    topology: Topology


def direct_moves(pieces: Pieces, held: Ints, places: Places) -> Table:
    """Every piece copied straight from one of its holders.

    A holder on the target's own device goes before one on its GPU, that before one in its node, and that before any
    other; among equally near ones the one whose way out is least loaded. The order is one in which the sources start
    with different targets and then move on, so that no two of them meet at one way in for long.

    Args:
        pieces: what is needed.
        held: the block that each source shard holds.
        places: where everything is.
    """
    if not len(pieces.targets):
        return Table(pieces.blocks, *pieces[1:], pieces.blocks)
    sources = _choose(pieces, held, places)
    order = _rotation(sources, pieces.targets, places)
    after = np.full(len(order), NOTHING, dtype=np.int64)
    return Table(sources[order], pieces.targets[order], pieces.starts[order], pieces.stops[order], after)


class _Nearest(NamedTuple):
    """For each piece the nearest holders: ``shards[first : first + many]``."""

    shards: Ints
    first: Ints
    many: Ints


def _choose(pieces: Pieces, held: Ints, places: Places) -> Ints:
    holders = np.argsort(held, kind="stable")
    if (held[holders] == np.arange(len(held))).all():  # one holder for each block
        only: Ints = holders[pieces.blocks]
        return only
    nearest = _find_nearest(pieces, held, places)
    tied = np.flatnonzero(nearest.many > 1)
    turn = np.zeros(len(nearest.first), dtype=np.int64)
    turn[tied] = (rank_in_group(nearest.first[tied]) + pieces.blocks[tied]) % nearest.many[tied]
    chosen: Ints = nearest.shards[nearest.first + turn]
    if 0 < len(tied) <= MOST_WEIGHED:
        _weigh(chosen, tied, nearest, pieces, places)
    return chosen


def _find_nearest(pieces: Pieces, held: Ints, places: Places) -> _Nearest:
    """What is found for a nearer kind of place takes the place of what was found for a farther one."""
    topology, blocks = places.topology, int(held.max()) + 1
    kinds: tuple[Callable[[Any], object], ...] = (
        lambda device: None,
        lambda device: (device.process_index, topology.node(device.gpu)),
        lambda device: (device.process_index, device.gpu),
        lambda device: device,
    )
    shards: list[Ints] = []
    first = np.zeros(len(pieces.blocks), dtype=np.int64)
    many = np.zeros(len(pieces.blocks), dtype=np.int64)
    for kind in kinds:
        numbers: dict[object, int] = {}
        here = [numbers.setdefault(kind(device), len(numbers)) for device in places.sources]
        there = [numbers.get(kind(device), -1) for device in places.targets]
        keys = np.array(here, dtype=np.int64) * blocks + held
        order = np.argsort(keys, kind="stable")
        groups, begins, sizes = np.unique(keys[order], return_index=True, return_counts=True)
        wanted = np.array(there, dtype=np.int64)[pieces.targets] * blocks + pieces.blocks
        found = np.minimum(np.searchsorted(groups, wanted), len(groups) - 1)
        hit = groups[found] == wanted
        first[hit] = begins[found[hit]] + len(shards) * len(held)
        many[hit] = sizes[found[hit]]
        shards.append(order)
    return _Nearest(np.concatenate(shards), first, many)


def _weigh(chosen: Ints, tied: Ints, nearest: _Nearest, pieces: Pieces, places: Places) -> None:
    """Give the pieces that several holders are equally near to, the largest first, to the least loaded one."""
    out = [device.gpu for device in places.sources]
    sizes = (pieces.stops - pieces.starts).prod(axis=1)
    load = dict.fromkeys(out, 0)
    is_tied = np.zeros(len(chosen), dtype=bool)
    is_tied[tied] = True
    for shard, target, size, later in zip(
        chosen.tolist(), pieces.targets.tolist(), sizes.tolist(), is_tied.tolist(), strict=True
    ):
        if not later and out[shard] != places.targets[target].gpu:
            load[out[shard]] += size
    for row in tied[np.argsort(-sizes[tied], kind="stable")].tolist():
        begin, size = int(nearest.first[row]), int(sizes[row])
        candidates = nearest.shards[begin : begin + int(nearest.many[row])].tolist()
        start = row % len(candidates)
        best = min([*candidates[start:], *candidates[:start]], key=lambda shard: load[out[shard]])
        chosen[row] = best
        load[out[best]] += size


def _rotation(sources: Ints, targets: Ints, places: Places) -> Ints:
    """The order of the rows in which no two sources go to one target at a time.

    Source i of a node goes to targets i, i ^ 1, i ^ 2, ... of a node where their number is a power of two: sources
    that are ahead then find nothing to do but wait, since the groups that they exchange with are complete. Else it
    goes to targets i, i + 1, ...

    Copies between nodes come first, since their links are the slow ones; copies inside of a GPU come last, since
    nothing else waits for theirs.
    """
    node = places.topology.node
    ends = [_numbered([device.gpu for device in devices], node) for devices in (places.sources, places.targets)]
    most, nodes = (max(int(end[row].max()) for end in ends) + 1 for row in (2, 1))
    (gpu, at, i), (to_gpu, to, j) = ends[0][:, sources], ends[1][:, targets]
    turn = i ^ j if most & (most - 1) == 0 else (j - i) % most
    last = (gpu == to_gpu).astype(np.int64) - (at != to)
    key = ((last * nodes + (to - at) % nodes) * most + turn) * len(places.sources) + sources
    order: Ints = np.argsort(key, kind="stable")
    return order


def _numbered(gpus: Sequence[int], node: Callable[[int], int]) -> Ints:
    """Three rows: for each device its GPU, its node, and the number of its GPU among those of its node."""
    number: dict[int, int] = {}
    seen: dict[int, int] = {}
    for gpu in gpus:
        if gpu not in number:
            number[gpu] = seen.get(node(gpu), 0)
            seen[node(gpu)] = number[gpu] + 1
    return np.array([gpus, [node(gpu) for gpu in gpus], [number[gpu] for gpu in gpus]], dtype=np.int64)


def rank_in_group(groups: Ints) -> Ints:
    """For each element how many equal ones come before it.

    >>> rank_in_group(np.array([4, 7, 4, 4])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if len(groups) else order
    sizes = np.diff(np.concatenate((begins, [len(groups)])))
    ranks = np.empty(len(groups), dtype=np.int64)
    ranks[order] = np.arange(len(groups)) - np.repeat(begins, sizes)
    return ranks
