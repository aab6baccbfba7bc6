"""Relays: replicated targets pass on what they receive, so that no link carries a byte more often than it must."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from operator import sub
from typing import NamedTuple

import numpy as np

from cuplace.transfer.choice import Places, rank_in_group
from cuplace.transfer.loads import Copy, busiest, estimate
from cuplace.transfer.routes import Routes
from cuplace.transfer.table import NOTHING, Ints, Table

MOST_CHUNKED = 1280
"""Copies of chunks in a plan. Plans with more copies of whole pieces do not cut them: they have pieces enough."""

MOST_CHUNKS = 128
"""Chunks that a plan cuts its pieces into, together: the last one arrives late by as many of them as it has hops."""

WORTH_IT = 0.95  # relays are taken if they need at most this part of the time of direct copies
LATENCIES = 10.0  # a chunk travels at least so many times longer than it takes to set out
ENQUEUEING = 0.7  # the host may spend this part of the transfer's time on enqueueing it


class _Piece(NamedTuple):
    """A box that several target shards on other GPUs need.

    Attributes:
        start, stop: the box.
        nbytes: of the box.
        holders: a source shard that holds it, for each GPU that has one.
        needers: the target shards that need it, for each GPU that has none.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    nbytes: int
    holders: dict[int, int]
    needers: dict[int, list[int]]


class _ChunkHop(NamedTuple):
    """A copy of a chunk: when the chunk sets out, as a part of the whole transfer, and for how many seconds it has
    been on its way then."""

    sets_out: float
    on_its_way: float
    source: int
    target: int
    nbytes: int
    chunk: int
    piece: _Piece


class _Rows(NamedTuple):
    """The rows of a table of direct moves: on which GPUs they begin and end, and which ones read the same box."""

    froms: Ints
    tos: Ints
    piece: Ints

    @property
    def remote(self) -> Ints:
        return np.flatnonzero(self.froms != self.tos)


def relayed(direct: Table, held: Ints, places: Places, itemsize: int) -> Table | None:
    """A quicker way than ``direct`` to do the same, where targets are replicated and passing on pays; else None.

    Args:
        direct: a copy from a holder for each piece.
        held: the block that each source shard holds.
        places: where everything is.
        itemsize: bytes of an element.
    """
    if not len(direct.targets):
        return None
    rows = _read(direct, places)
    remote = rows.remote
    if not len(remote) or np.bincount(rows.piece[remote]).max() < 2:
        return None
    if len(remote) > MOST_CHUNKED:
        return _by_rule(direct, rows, places)
    topology = places.topology
    link = topology.link(int(rows.froms[remote[0]]), int(rows.tos[remote[0]]))
    if int(direct.sizes[remote].sum()) * itemsize / link.most < topology.machine.submit_us * 1e-6 + link.latency:
        return None  # all of it takes less time than enqueueing one copy more
    pieces = _gather(direct, rows, held, places, itemsize)
    once = [Copy(next(iter(piece.holders)), gpu, piece.nbytes) for piece in pieces for gpu in piece.needers]
    least = _least_seconds(once, places)
    sizes = (direct.sizes * itemsize).tolist()
    straight = [Copy(*row) for row in zip(rows.froms.tolist(), rows.tos.tolist(), sizes, strict=True)]
    if busiest(straight, topology) <= least / WORTH_IT:
        return None
    table, copies = _chain(pieces, len(once), least, direct, rows, places, itemsize)
    return table if estimate(copies, topology) <= WORTH_IT * estimate(straight, topology) else None


def _read(direct: Table, places: Places) -> _Rows:
    froms = np.array([device.gpu for device in places.sources], dtype=np.int64)[direct.sources]
    tos = np.array([device.gpu for device in places.targets], dtype=np.int64)[direct.targets]
    extent = direct.stops.max(axis=0, initial=1)
    number = np.zeros(len(froms), dtype=np.int64)
    for dim in range(direct.starts.shape[1]):
        number = number * int(extent[dim]) + direct.starts[:, dim]
    return _Rows(froms, tos, np.unique(number, return_inverse=True)[1].reshape(-1).astype(np.int64))


def _gather(direct: Table, rows: _Rows, held: Ints, places: Places, itemsize: int) -> list[_Piece]:
    pieces: dict[int, _Piece] = {}
    sizes = (direct.sizes * itemsize).tolist()
    holders: dict[int, dict[int, int]] = {}
    for shard, block in enumerate(held.tolist()):
        holders.setdefault(block, {}).setdefault(places.sources[shard].gpu, shard)
    for row in rows.remote.tolist():
        name = int(rows.piece[row])
        if name not in pieces:
            box = tuple(direct.starts[row].tolist()), tuple(direct.stops[row].tolist())
            pieces[name] = _Piece(*box, sizes[row], holders[int(held[direct.sources[row]])], {})
        pieces[name].needers.setdefault(int(rows.tos[row]), []).append(int(direct.targets[row]))
    return list(pieces.values())


def _least_seconds(once: list[Copy], places: Places) -> float:
    """A time that no way of doing it beats: each GPU gets all that it lacks through its quickest way in."""
    topology = places.topology
    gpus = {device.gpu for device in (*places.sources, *places.targets)}
    lacks: dict[int, int] = {}
    for copy in once:
        lacks[copy.target] = lacks.get(copy.target, 0) + copy.nbytes
    return max(
        nbytes / max(topology.link(other, gpu).most for other in gpus if other != gpu) for gpu, nbytes in lacks.items()
    )


def _chain(
    pieces: list[_Piece], deliveries: int, least: float, direct: Table, rows: _Rows, places: Places, itemsize: int
) -> tuple[Table, list[Copy]]:  # fmt: skip
    """The table of chunks that travel along chains, and its copies."""
    topology = places.topology
    a_delivery = deliveries / len(pieces)
    latency = topology.link(int(rows.froms[rows.remote[0]]), int(rows.tos[rows.remote[0]])).latency
    count = min(
        MOST_CHUNKS, MOST_CHUNKED / a_delivery, least / (LATENCIES * latency + 1e-12),
        ENQUEUEING * least / (a_delivery * topology.machine.submit_us * 1e-6 + 1e-12),
    )  # fmt: skip
    total = sum(piece.nbytes for piece in pieces)
    routes = Routes([(tuple(piece.holders), tuple(piece.needers)) for piece in pieces], topology)
    build = _Builder()
    hops: list[_ChunkHop] = []
    speed: dict[tuple[int, int], float] = {}
    for number, piece in enumerate(pieces):
        boxes = _cut(piece, int(count * piece.nbytes / total))
        for turn, (start, stop) in enumerate(boxes):
            nbytes = math.prod(map(sub, stop, start)) * itemsize
            chunk = build.add_box(start, stop)
            reached: dict[int, float] = {}
            for pair in routes.find(number, turn):
                begins = reached.get(pair.source, 0.0)
                if pair not in speed:
                    speed[pair] = topology.link(*pair).most
                reached[pair.target] = begins + nbytes / speed[pair]
                hops.append(_ChunkHop(turn / len(boxes), begins, *pair, nbytes, chunk, piece))
    # Chunks set out evenly over the time that the busiest link needs; each is on its way for so long.
    whole = busiest([Copy(hop.source, hop.target, hop.nbytes) for hop in hops], topology)
    hops.sort(key=lambda hop: hop.sets_out * whole + hop.on_its_way)
    arrived: dict[tuple[int, int], int] = {}
    for _, _, source, target, nbytes, chunk, piece in hops:
        first, *others = piece.needers[target]
        feeding = arrived.get((chunk, source), NOTHING)
        shard = piece.holders[source] if feeding == NOTHING else piece.needers[source][0]
        row = build.add(shard, first, chunk, Copy(source, target, nbytes, feeding))
        arrived[chunk, target] = row
        for other in others:
            build.add(first, other, chunk, Copy(target, target, nbytes, row))
    for row in np.flatnonzero(rows.froms == rows.tos).tolist():
        gpu, nbytes = int(rows.tos[row]), math.prod((direct.stops[row] - direct.starts[row]).tolist()) * itemsize
        box = build.add_box(direct.starts[row].tolist(), direct.stops[row].tolist())
        build.add(int(direct.sources[row]), int(direct.targets[row]), box, Copy(gpu, gpu, nbytes))
    return build.table(), build.copies


class _Builder:
    """A table that grows row by row."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int]] = []
        self._boxes: list[tuple[Sequence[int], Sequence[int]]] = []
        self.copies: list[Copy] = []

    def add_box(self, start: Sequence[int], stop: Sequence[int]) -> int:
        """The number of a box that rows may copy."""
        self._boxes.append((start, stop))
        return len(self._boxes) - 1

    def add(self, source: int, target: int, box: int, copy: Copy) -> int:
        """The number of the new row."""
        self._rows.append((source, target, box, copy.after))
        self.copies.append(copy)
        return len(self._rows) - 1

    def table(self) -> Table:
        sources, targets, boxes, after = np.array(self._rows, dtype=np.int64).T
        starts, stops = np.array(self._boxes, dtype=np.int64).transpose(1, 0, 2)
        return Table(sources, targets, starts[boxes], stops[boxes], after)


def _cut(piece: _Piece, count: int) -> list[tuple[Sequence[int], Sequence[int]]]:
    """The box in ``count`` parts of nearly equal size, fewer where no dimension is long enough."""
    start, stop = piece.start, piece.stop
    extent = list(map(sub, stop, start))
    if count < 2 or not extent:
        return [(start, stop)]
    dim = next((dim for dim, size in enumerate(extent) if size >= count), extent.index(max(extent)))
    count = min(count, extent[dim])
    edges = [start[dim] + extent[dim] * i // count for i in range(count + 1)]
    return [
        ((*start[:dim], low, *start[dim + 1 :]), (*stop[:dim], high, *stop[dim + 1 :])) for low, high in pairwise(edges)
    ]


def _by_rule(direct: Table, rows: _Rows, places: Places) -> Table | None:
    """Each piece crosses to a node, and to a GPU, once; a shard there passes it on to the others.

    The first is the one to which the direct copy would set out first: another one for each source.
    """
    topology = places.topology
    node = np.array([topology.node(gpu) for gpu in range(int(max(rows.froms.max(), rows.tos.max())) + 1)])
    sources, after, depth = direct.sources.copy(), direct.after.copy(), np.zeros(len(rows.tos), dtype=np.int64)

    gpus = rows.piece * len(node) + rows.tos
    first_on_gpu = (rows.froms != rows.tos) & (rank_in_group(gpus) == 0)
    crosses = np.flatnonzero(first_on_gpu & (node[rows.froms] != node[rows.tos]))
    groups = np.unique(rows.piece[crosses] * len(node) + node[rows.tos[crosses]], return_inverse=True)[1].reshape(-1)
    is_root = rank_in_group(groups) == 0
    root_of = np.empty(int(groups.max(initial=-1)) + 1, dtype=np.int64)
    root_of[groups[is_root]] = crosses[is_root]
    _pass_on(crosses[~is_root], root_of[groups[~is_root]], direct, sources, after, depth)

    siblings = np.flatnonzero((rows.froms != rows.tos) & ~first_on_gpu)
    first_of = dict(zip(gpus[first_on_gpu].tolist(), np.flatnonzero(first_on_gpu).tolist(), strict=True))
    firsts = np.array([first_of[name] for name in gpus[siblings].tolist()], dtype=np.int64)
    _pass_on(siblings, firsts, direct, sources, after, depth)
    if not depth.any():
        return None

    order = np.argsort(depth, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    moved = after[order]
    after = np.where(moved == NOTHING, NOTHING, place[moved])
    return Table(sources[order], direct.targets[order], direct.starts[order], direct.stops[order], after)


def _pass_on(rows: Ints, feeding: Ints, direct: Table, sources: Ints, after: Ints, depth: Ints) -> None:
    sources[rows] = direct.targets[feeding]
    after[rows] = feeding
    depth[rows] = depth[feeding] + 1
