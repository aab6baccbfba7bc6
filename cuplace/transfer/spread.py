"""Spread uploads: what devices need alike leaves the host once, in parts to different GPUs, which pass them on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter, sub
from typing import NamedTuple

import numpy as np

from cuplace.runtime.topology import GIGA, HOST_END, STAGED, Topology
from cuplace.transfer.choice import Places
from cuplace.transfer.loads import Copy, estimate, links_of
from cuplace.transfer.relay import MOST_CHUNKED, WORTH_IT
from cuplace.transfer.table import NOTHING, Span, Table, split

TURNS = 0.25, 0.5, 1, 4
"""How often, on average, each GPU of a group has its turn to get a part: many use all links, few are enqueued soon."""


class _Group(NamedTuple):
    """Target shards of one node that need the same box.

    Attributes:
        start, stop: the box.
        nbytes: of the box.
        shards: the target shards, for each GPU that has any.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    nbytes: int
    shards: dict[int, list[int]]


class _Row(NamedTuple):
    """A row of the table: see `Table`."""

    source: int
    target: int
    start: tuple[int, ...]
    stop: tuple[int, ...]
    after: int


def spread(direct: Table, places: Places, itemsize: int) -> Table | None:
    """A quicker way than ``direct`` to upload the same, where devices pass on what they got from the host; else None.

    Args:
        direct: a copy from the host to each target shard.
        places: where everything is.
        itemsize: bytes of an element.
    """
    if not len(direct.targets):
        return None
    groups, least = _gather(direct, places, itemsize), least_bytes(places.topology)
    largest = max(group.nbytes for group in groups)
    if len(groups) == len(direct.targets) or largest < least:
        return None
    weigh = _Scale(places, itemsize)
    quickest, found = WORTH_IT * weigh.seconds(_straight(groups)), None
    gpus = max(len(group.shards) for group in groups)
    for count in sorted({1, *[max(1, int(turns * gpus)) for turns in TURNS]}):
        if count > 1 and (largest < count * least or count * len(direct.targets) > MOST_CHUNKED):
            break
        rows = _in_parts(groups, count)
        seconds = weigh.seconds(rows)
        if seconds < quickest:
            quickest, found = seconds, rows
    if found is None:
        return None
    return Table(*[np.array(column, dtype=np.int64) for column in zip(*found, strict=True)])


class _Scale:
    """Weighs rows by the time that they take."""

    def __init__(self, places: Places, itemsize: int) -> None:
        self._links = links_of(places.topology)
        self._ends = [device.gpu for device in places.targets]
        self._itemsize = itemsize
        machine = places.topology.machine
        self._reading = 2 / (machine.host_memory_gb_s * GIGA)  # into memory that the GPUs reach, while they copy on

    def seconds(self, rows: Sequence[_Row]) -> float:
        """Without end where they would come back to the host."""
        copies = [
            Copy(
                HOST_END if row.after == NOTHING else self._ends[row.source], self._ends[row.target],
                math.prod(map(sub, row.stop, row.start)) * self._itemsize, row.after,
            )
            for row in rows
        ]  # fmt: skip
        if any(self._links.topology.path(*pair) == STAGED for pair in {copy[:2] for copy in copies}):
            return math.inf
        return estimate(copies, self._links, reading=self._reading)


def least_bytes(topology: Topology) -> float:
    """Of what is smaller, parts are not worth it: they would travel for less time than enqueueing them takes."""
    link = topology.link(HOST_END, 0)
    return (topology.machine.submit_us * 1e-6 + link.latency) * link.most


def _gather(direct: Table, places: Places, itemsize: int) -> list[_Group]:
    groups: dict[tuple[tuple[int, ...], int], _Group] = {}
    columns = direct.targets, direct.starts, direct.stops, direct.sizes * itemsize
    for target, start, stop, nbytes in zip(*map(np.ndarray.tolist, columns), strict=True):
        gpu = places.targets[target].gpu
        name = tuple(start), places.topology.node(gpu)
        group = groups.setdefault(name, _Group(tuple(start), tuple(stop), nbytes, {}))
        group.shards.setdefault(gpu, []).append(target)
    return list(groups.values())


def _straight(groups: Sequence[_Group]) -> list[_Row]:
    """Each shard from the host."""
    shards = [(group, shard) for group in groups for mates in group.shards.values() for shard in mates]
    return [_Row(0, shard, group.start, group.stop, NOTHING) for group, shard in shards]


def _in_parts(groups: Sequence[_Group], count: int) -> list[_Row]:
    """Each box in about so many parts, of which each crosses from the host once.

    A part comes to one GPU, which passes it on to the next one of the group, and so on around; each of them gives it
    to its other shards. So a GPU gets all from the one before it, and no two of them meet at one way in. The GPUs take
    turns at being the first. In a round each has one turn: the parts of all cross from the host, then each takes a
    step, and another one.
    """
    rows: list[_Row] = []
    tours = [
        _Tour(list(group.shards.values()), (number + turn) % len(group.shards), box, turn // len(group.shards))
        for number, group in enumerate(groups)
        for turn, box in enumerate(_cut((group.start, group.stop), count))
    ]
    for _, turns in groupby(sorted(tours, key=attrgetter("round")), attrgetter("round")):
        together = list(turns)
        at = [tour.begin(rows) for tour in together]
        for step in range(max(len(tour.shards) for tour in together)):
            for number, tour in enumerate(together):
                at[number] = tour.step(rows, at[number], step)
    return rows


class _Tour(NamedTuple):
    """The way of one part around the GPUs of its group.

    Attributes:
        shards: the target shards that need it, those of each GPU together.
        first: the GPU that gets it from the host.
        box: the part.
        round: how often it was this GPU's turn before.
    """

    shards: Sequence[Sequence[int]]
    first: int
    box: Span
    round: int

    def begin(self, rows: list[_Row]) -> int:
        """Add the row that brings the part from the host; its number."""
        rows.append(_Row(0, self.shards[self.first][0], *self.box, NOTHING))
        return len(rows) - 1

    def step(self, rows: list[_Row], arrived: int, step: int) -> int:
        """Add the row that takes it to the next GPU, from where row number ``arrived`` took it, and the rows that give
        it to the other shards there; the number of the first."""
        if step >= len(self.shards):
            return arrived
        first, *others = self.shards[(self.first + step) % len(self.shards)]
        if step:
            rows.append(_Row(rows[arrived].target, first, *self.box, arrived))
            arrived = len(rows) - 1
        rows += [_Row(first, other, *self.box, arrived) for other in others]
        return arrived


def _cut(box: Span, count: int) -> Iterator[Span]:
    """The box in at most ``count`` parts of nearly equal size, each of which is one stretch of a shard's memory."""
    start, stop = box
    dim = next((dim for dim, (low, high) in enumerate(zip(start, stop, strict=True)) if high - low > 1), None)
    if count < 2 or dim is None:
        yield box
        return
    parts = min(count, stop[dim] - start[dim])
    for part in split(start, stop, dim, parts):
        yield from _cut(part, count // parts)  # where it is one row, along the next dimension
