"""Routes: along which chains a chunk of a replicated array reaches all GPUs that need it."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cuplace.runtime.topology import Topology

Ends = tuple[tuple[int, ...], tuple[int, ...]]
"""The GPUs that hold a piece, and those that need it and do not."""


class Hop(NamedTuple):
    """A copy from a GPU that holds a chunk, or has got it in an earlier hop, to the next one."""

    source: int
    target: int


class Routes:
    """The chains of all pieces of a plan.

    Inside of a node a chunk goes along the ring of its GPUs, from the holder on, so that each way out feeds one way
    in, and none is met by two. To a node without a holder it crosses once. Where there are fewer pieces than network
    cards, chunks take turns in who sends and who receives them, so that all carry alike. A third node gets it from
    the second one, and so on.

    >>> from cuplace.runtime.presets import HGX_H200
    >>> from cuplace.runtime.topology import find_topology
    >>> Routes([((1,), (0, 2))], find_topology(HGX_H200)).find(0, 0)
    [Hop(source=1, target=2), Hop(source=2, target=0)]
    """

    def __init__(self, pieces: Sequence[Ends], topology: Topology) -> None:
        self._pieces = [
            (_by_node(holders, topology), _by_node(needers, topology)) for holders, needers in pieces
        ]
        self._holding: dict[int, set[int]] = {}
        self._rank: list[int] = []  # of each piece among those that the same nodes hold
        count: dict[tuple[int, ...], int] = {}
        for held, _ in self._pieces:
            nodes = tuple(held)
            self._rank.append(count.get(nodes, 0))
            count[nodes] = self._rank[-1] + 1
            for node, gpus in held.items():
                self._holding.setdefault(node, set()).update(gpus)
        self._alike = [count[tuple(held)] for held, _ in self._pieces]

    def find(self, piece: int, turn: int) -> list[Hop]:
        """The hops of a chunk of a piece, each after the one that it is fed by; chunks are numbered in the order in
        which they set out."""
        holders, needers = self._pieces[piece]
        hops: list[Hop] = []
        for node, gpus in holders.items():
            _go_round(needers.get(node, []), gpus[turn % len(gpus)], hops)
        first = list(holders)[turn % len(holders)]
        senders = self._senders(first, holders[first], needers.get(first, []))
        rank = self._rank[piece]
        sender = senders[(rank + turn) % len(senders)]
        nodes = [node for node in sorted(needers) if node not in holders]
        for node in [*[n for n in nodes if n > first], *[n for n in nodes if n < first]]:
            ring = needers[node]
            # Chunks between two GPUs come one after the other; if they went to many, all would arrive at the end.
            entry = ring[(rank if self._alike[piece] >= len(ring) else rank + turn) % len(ring)]
            hops.append(Hop(sender, entry))
            _go_round([gpu for gpu in ring if gpu != entry], entry, hops)
            sender = entry
        return hops

    def _senders(self, node: int, holders: list[int], needers: list[int]) -> list[int]:
        """Who may send a chunk to another node: its holders; where other GPUs of the node would be idle, all that
        have or get it."""
        return holders if len(self._holding[node]) >= len(needers) else [*holders, *needers]


def _go_round(ring: list[int], start: int, hops: list[Hop]) -> None:
    at = bisect(ring, start)
    order = (start, *ring[at:], *ring[:at])
    hops += map(Hop, order, order[1:])


def _by_node(gpus: Sequence[int], topology: Topology) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for gpu in sorted(gpus):
        found.setdefault(topology.node(gpu), []).append(gpu)
    return found
