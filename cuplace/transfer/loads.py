"""How long a plan takes: what each port has to carry, and a schedule of its copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cuplace.runtime.topology import Link, Port, Topology


NOTHING_EARLIER: Mapping[int, Sequence[int]] = MappingProxyType({})


class Copy(NamedTuple):
    """One copy as far as its time goes: between which GPUs, how many bytes, and after which earlier copy (or -1)."""

    source: int
    target: int
    nbytes: int
    after: int = -1


def bytes_through(copies: Iterable[Copy], topology: Topology) -> dict[Port, float]:
    """The bytes that pass each port."""
    between: dict[tuple[int, int], int] = defaultdict(int)
    for source, target, nbytes, _ in copies:
        between[source, target] += nbytes
    total: dict[Port, float] = defaultdict(float)
    for pair, nbytes in between.items():
        for port, amount in topology.link(*pair).ports:
            total[port] += amount * nbytes
    return total


def busiest(copies: Iterable[Copy], topology: Topology) -> float:
    """The least seconds that the copies need, in whatever order: those of the port that has the most to carry."""
    return max((load / topology.capacity(port) for port, load in bytes_through(copies, topology).items()), default=0.0)


def estimate(
    copies: Sequence[Copy], topology: Topology, earlier: Mapping[int, Sequence[int]] = NOTHING_EARLIER
) -> float:
    """The seconds until all copies have ended, enqueued in this order.

    Each begins when it has been enqueued, the copy that it comes after and those that ``earlier`` names for its number
    have ended, and both of its ends are free; the ends of links are taken to serve one copy after the other.
    """
    submit = topology.machine.submit_us * 1e-6
    free: dict[Port | None, float] = defaultdict(float)
    ends: list[float] = []
    known: dict[tuple[int, int], tuple[Port, Port | None, float, float]] = {}
    host = last = 0.0
    for number, (source, target, nbytes, after) in enumerate(copies):
        link = known.get((source, target))
        if link is None:
            link = known[source, target] = _one_at_a_time(topology.link(source, target))
        out, into, most, latency = link
        host += submit
        begin = max(host, free[out], free[into], ends[after] if after >= 0 else 0.0)
        if number in earlier:
            begin = max(begin, *[ends[other] for other in earlier[number]])
        end = free[out] = begin + nbytes / most
        if into is not None:
            free[into] = end
        ends.append(end + latency)
        last = max(last, end + latency)
    return max(last, busiest(copies, topology))


def _one_at_a_time(link: Link) -> tuple[Port, Port | None, float, float]:
    ports = [port for port, _ in link.ports if port.kind != "both"]
    return ports[0], ports[1] if len(ports) > 1 else None, link.most, link.latency
