"""Relays: replicated targets pass on what they receive, so that no link carries a byte more often than it must."""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub
from typing import NamedTuple

import numpy as np

from cuplace.transfer.choice import Places, rank_in_group
from cuplace.transfer.loads import Copy, Links, busiest, estimate, links_of
from cuplace.transfer.routes import Hop, Routes
from cuplace.transfer.table import NOTHING, Floats, Ints, Table, split

MOST_CHUNKED = 1280
"""Copies of chunks in a plan. Plans with more copies of whole pieces do not cut them: they have pieces enough."""

MOST_CHUNKS = 128
"""Chunks that a plan cuts its pieces into, together: the last one arrives late by as many of them as it has hops."""

WORTH_IT = 0.95  # relays are taken if they need at most this part of the time of direct copies
LATENCIES = 10.0  # a chunk travels at least so many times longer than it takes to set out
ENQUEUEING = 0.7  # the host may spend this part of the transfer's time on enqueueing it

ROUNDED = 1e9  # parts of the whole transfer's time that times are told apart by

_AT_ONCE = NOTHING, 0.0  # by which copy a chunk is brought to its holder, and when


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


class _Path(NamedTuple):
    """The copies of one chunk along a route, one row each; chunks of a piece that take the same route share it.

    Attributes:
        sources, targets: the GPUs.
        shards: the shard that a copy reads: a source shard, or the target shard of the copy that feeds it.
        firsts: the target shard that it writes; ``others`` are further ones on the same GPU, by row.
        feeding: the row of the copy that brought what it passes on, or NOTHING.
        before: for how many seconds a byte of the chunk has been on its way when it sets out.
    """

    sources: Ints
    targets: Ints
    shards: Ints
    firsts: Ints
    feeding: Ints
    before: Floats
    others: dict[int, list[int]]

    @classmethod
    def along(cls, route: Sequence[Hop], piece: _Piece, links: Links) -> _Path:
        """The path of a chunk of a piece."""
        holders, needers = piece.holders, piece.needers
        brought: dict[int, tuple[int, float]] = {}
        rows: list[tuple[int, int, int, int, int]] = []
        before: list[float] = []
        others: dict[int, list[int]] = {}
        for row, hop in enumerate(route):
            source, target = hop
            first, *rest = needers[target]
            feeding, seconds = brought.get(source, _AT_ONCE)
            brought[target] = row, seconds + 1 / links[hop].most
            rows.append((source, target, holders[source] if feeding < 0 else needers[source][0], first, feeding))
            before.append(seconds)
            if rest:
                others[row] = rest
        sources, targets, shards, firsts, feeds = np.array(rows, dtype=np.int64).T
        return cls(sources, targets, shards, firsts, feeds, np.array(before), others)


class _Hops:
    """The copies of all chunks: their paths one after the other, numbered through.

    Attributes:
        sources, targets, shards, firsts, feeding, others: see `_Path`.
        chunks: the chunk.
        nbytes: of the chunk.
        sets_out: when the chunk sets out, as a part of the whole transfer.
        on_its_way: for how many seconds the chunk has been on its way then.
    """

    def __init__(self, paths: Sequence[_Path], sets_out: Sequence[float], sizes: Ints) -> None:
        lengths = np.array([len(path.sources) for path in paths])
        begins = np.cumsum(lengths) - lengths
        self.sources, self.targets, self.shards, self.firsts, feeding, before = [
            np.concatenate([path[column] for path in paths]) for column in range(6)
        ]
        self.feeding = np.where(feeding == NOTHING, NOTHING, feeding + np.repeat(begins, lengths))
        self.chunks = np.repeat(np.arange(len(paths)), lengths)
        self.nbytes = sizes[self.chunks]
        self.sets_out = np.repeat(np.array(sets_out), lengths)
        self.on_its_way = before * self.nbytes
        self.others = {
            begin + row: rest
            for begin, path in zip(begins.tolist(), paths, strict=True)
            for row, rest in path.others.items()
        }

    def order(self, links: Links) -> Ints:
        """Chunks set out evenly over the time that the busiest link needs; each is on its way for so long."""
        gpus = int(max(self.sources.max(), self.targets.max())) + 1
        pairs, which = np.unique(self.sources * gpus + self.targets, return_inverse=True)
        loads = np.bincount(which.reshape(-1), self.nbytes).tolist()
        moved = {divmod(pair, gpus): int(load) for pair, load in zip(pairs.tolist(), loads, strict=True)}
        seconds = busiest(moved, links)
        keys = self.sets_out * seconds + self.on_its_way
        found: Ints = np.argsort(np.rint(keys * (ROUNDED / seconds)), kind="stable")  # what is at once, is
        return found


class _Chunks(NamedTuple):
    """Pieces cut into boxes.

    Attributes:
        pieces: the pieces.
        boxes: for each piece its chunks, in the order in which they set out.
    """

    pieces: list[_Piece]
    boxes: list[list[tuple[Sequence[int], Sequence[int]]]]


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
    links = links_of(places.topology)
    way = links[int(rows.froms[remote[0]]), int(rows.tos[remote[0]])]
    submit = places.topology.machine.submit_us * 1e-6
    if int(direct.sizes[remote].sum()) * itemsize / way.most < submit + way.latency:
        return None  # all of it takes less time than enqueueing one copy more
    pieces = _gather(direct, rows, held, places, itemsize)
    least = _least_seconds(pieces, places, links)
    sizes = (direct.sizes * itemsize).tolist()
    straight = list(map(Copy, rows.froms.tolist(), rows.tos.tolist(), sizes))
    directly = busiest(straight, links)
    if directly <= least / WORTH_IT:
        return None
    table, copies = _chain(_cut_all(pieces, least, rows, links), links, itemsize, _Local(direct, rows))
    seconds = WORTH_IT * estimate(straight, links, least=directly)
    return table if estimate(copies, links) <= seconds else None


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


def _least_seconds(pieces: list[_Piece], places: Places, links: Links) -> float:
    """A time that no way of doing it beats: each GPU gets all that it lacks through its quickest way in."""
    node = places.topology.node
    lacks: dict[int, int] = {}
    gpus: dict[int, list[int]] = {}
    for gpu in dict.fromkeys(device.gpu for device in (*places.sources, *places.targets)):
        gpus.setdefault(node(gpu), []).append(gpu)
    for piece in pieces:
        for gpu in piece.needers:
            lacks[gpu] = lacks.get(gpu, 0) + piece.nbytes
    firsts = {name: members[0] for name, members in gpus.items()}

    def most(gpu: int) -> float:
        """The links from one node to another are alike: one from each tells of all."""
        mates = [other for other in gpus[node(gpu)][:2] if other != gpu]
        others = [first for name, first in firsts.items() if name != node(gpu)]
        return max(links[other, gpu].most for other in (*mates, *others[:1]))

    return max(nbytes / most(gpu) for gpu, nbytes in lacks.items())


def _cut_all(pieces: list[_Piece], least: float, rows: _Rows, links: Links) -> _Chunks:
    """As many chunks as pay: many are spread well over the links, few are enqueued soon."""
    a_delivery = sum(len(piece.needers) for piece in pieces) / len(pieces)
    latency = links[int(rows.froms[rows.remote[0]]), int(rows.tos[rows.remote[0]])].latency
    count = min(
        MOST_CHUNKS, MOST_CHUNKED / a_delivery, least / (LATENCIES * latency + 1e-12),
        ENQUEUEING * least / (a_delivery * links.topology.machine.submit_us * 1e-6 + 1e-12),
    )  # fmt: skip
    total = sum(piece.nbytes for piece in pieces)
    return _Chunks(pieces, [_cut(piece, int(count) * piece.nbytes // total) for piece in pieces])


def _chain(cut: _Chunks, links: Links, itemsize: int, local: _Local) -> tuple[Table, list[Copy]]:
    """The table of chunks that travel along chains, with what stays on its GPU; and its copies."""
    starts, stops = np.array([box for boxes in cut.boxes for box in boxes], dtype=np.int64).transpose(1, 0, 2)
    sizes = (stops - starts).prod(axis=1, dtype=np.int64) * itemsize
    hops = _follow(cut, sizes, links)
    gpus, tos, shards, firsts, chunks, feeding = (
        hops.sources, hops.targets, hops.shards, hops.firsts, hops.chunks, hops.feeding,
    )  # fmt: skip
    order = hops.order(links)
    counts = np.ones(len(order), dtype=np.int64)
    for hop, others in hops.others.items():
        counts[hop] += len(others)
    place = np.empty(len(order), dtype=np.int64)  # the row of each hop; the other shards of its GPU follow it
    place[order] = np.cumsum(counts[order]) - counts[order]
    hop_of = np.repeat(order, counts[order])
    passed_on = np.arange(len(hop_of)) != place[hop_of]
    targets = firsts[hop_of]
    for hop, others in hops.others.items():
        targets[place[hop] + 1 : place[hop] + counts[hop]] = others
    fed = feeding[hop_of]
    after = np.where(passed_on, place[hop_of], np.where(fed == NOTHING, NOTHING, place[fed]))
    chain = Table(
        np.where(passed_on, firsts[hop_of], shards[hop_of]), targets, starts[chunks[hop_of]], stops[chunks[hop_of]],
        after,
    )  # fmt: skip
    begins, ends = np.where(passed_on, tos[hop_of], gpus[hop_of]), tos[hop_of]
    columns = (
        (begins, local.gpus), (ends, local.gpus), (sizes[chunks[hop_of]], local.table.sizes * itemsize),
        (after, local.table.after),
    )  # fmt: skip
    copies = list(map(Copy, *[np.concatenate(pair).tolist() for pair in columns]))
    return Table(*map(np.concatenate, zip(chain, local.table, strict=True))), copies


class _Local:
    """The direct moves that stay on their GPU."""

    def __init__(self, direct: Table, rows: _Rows) -> None:
        here = rows.froms == rows.tos
        self.table = Table(*[column[here] for column in direct])
        self.gpus = rows.tos[here]


def _follow(cut: _Chunks, sizes: Ints, links: Links) -> _Hops:
    """The copies of chunks of so many bytes each, along their routes."""
    routes = Routes([(tuple(piece.holders), tuple(piece.needers)) for piece in cut.pieces], links.topology)
    paths: list[_Path] = []
    sets_out: list[float] = []
    for number, (piece, boxes) in enumerate(zip(cut.pieces, cut.boxes, strict=True)):
        known: dict[tuple[Hop, ...], _Path] = {}
        for turn in range(len(boxes)):
            route = tuple(routes.find(number, turn))
            if route not in known:
                known[route] = _Path.along(route, piece, links)
            paths.append(known[route])
            sets_out.append(turn / len(boxes))
    return _Hops(paths, sets_out, sizes)


def _cut(piece: _Piece, count: int) -> list[tuple[Sequence[int], Sequence[int]]]:
    """The box in ``count`` parts of nearly equal size, fewer where no dimension is long enough."""
    start, stop = piece.start, piece.stop
    extent = list(map(sub, stop, start))
    if count < 2 or not extent:
        return [(start, stop)]
    dim = next((dim for dim, size in enumerate(extent) if size >= count), extent.index(max(extent)))
    return list(split(start, stop, dim, count))


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
