"""How long a plan takes: what each port has to carry, and a schedule of its copies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from cuplace.runtime.topology import HOST_END

if TYPE_CHECKING:
    from cuplace.runtime.topology import Port, Topology

NOTHING_EARLIER: Mapping[int, Sequence[int]] = MappingProxyType({})


Pair: TypeAlias = tuple[int, int]
"""The GPUs that copies go from and to."""


class Copy(NamedTuple):
    """One copy as far as its time goes: between which GPUs, how many bytes, and after which earlier copy (or -1)."""

    source: int
    target: int
    nbytes: int
    after: int = -1


class Way(NamedTuple):
    """A link as schedules see it, with numbers in the place of its ports.

    Attributes:
        ports: what each byte takes of which port.
        out, into: the ends that serve one copy at a time; ``into`` is -1 where there is only one.
        most: bytes a second.
        latency: seconds.
    """

    ports: tuple[tuple[int, float], ...]
    out: int
    into: int
    most: float
    latency: float


class Links(dict[Pair, Way]):
    """How copies from one GPU to another travel, as it is now: each link of a topology is looked up once, since plans
    ask for few of them, many times."""

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        self.topology = topology
        self.ports: list[Port] = []
        self.capacities: list[float] = []
        self._numbers: dict[Port, int] = {}

    def __missing__(self, pair: Pair) -> Way:
        link = self.topology.link(*pair)
        ports = tuple([(self._number(port), amount) for port, amount in link.ports])
        single = [number for number, _ in ports if self.ports[number].kind != "both"]
        into = single[1] if len(single) > 1 else -1
        found = self[pair] = Way(ports, single[0], into, link.most, link.latency)
        return found

    def _number(self, port: Port) -> int:
        number = self._numbers.setdefault(port, len(self.ports))
        if number == len(self.ports):
            self.ports.append(port)
            self.capacities.append(self.topology.capacity(port))
        return number


def between(copies: Iterable[Copy]) -> dict[Pair, int]:
    """The bytes from each GPU to each other one."""
    total: dict[Pair, int] = {}
    for copy in copies:
        pair = copy[:2]
        total[pair] = total.get(pair, 0) + copy[2]
    return total


def bytes_through(copies: Iterable[Copy], topology: Topology | Links) -> dict[Port, float]:
    """The bytes that pass each port."""
    links = _links(topology)
    return {links.ports[number]: load for number, load in _loads(between(copies), links).items()}


def busiest(moved: Iterable[Copy] | Mapping[Pair, int], topology: Topology | Links) -> float:
    """The least seconds that copies, or so many bytes between GPUs, need in whatever order: those of the port that has
    the most to carry."""
    links = _links(topology)
    loads = _loads(moved if isinstance(moved, Mapping) else between(moved), links)
    return max((load / links.capacities[number] for number, load in loads.items()), default=0.0)


def estimate(
    copies: Sequence[Copy], topology: Topology | Links, earlier: Mapping[int, Sequence[int]] = NOTHING_EARLIER,
    least: float | None = None, reading: float = 0.0,
) -> float:  # fmt: skip
    """The seconds until all copies have ended, enqueued in this order.

    Each begins when it has been enqueued, the copy that it comes after and those that ``earlier`` names for its number
    have ended, and both of its ends are free; the ends of links are taken to serve one copy after the other.
    ``least`` is what `busiest` says of the copies, where somebody has asked it. ``reading`` are the seconds that the
    host needs for each byte of its own that it enqueues.
    """
    links = _links(topology)
    ways = [links[copy[:2]] for copy in copies]
    submit = links.topology.machine.submit_us * 1e-6
    free = [0.0] * (len(links.ports) + 1)  # the last one stands for no port, which is always free
    ends: list[float] = []
    host = 0.0
    for number, ((_, out, into, most, latency), (source, _, nbytes, after)) in enumerate(
        zip(ways, copies, strict=True)
    ):
        host += submit + reading * nbytes if source == HOST_END else submit
        begin = host  # comparisons one by one: `max` takes several times as long
        if free[out] > begin:
            begin = free[out]
        if free[into] > begin:
            begin = free[into]
        if after >= 0 and ends[after] > begin:
            begin = ends[after]
        if number in earlier:
            begin = max(begin, *[ends[other] for other in earlier[number]])
        end = free[out] = begin + latency + nbytes / most
        if into >= 0:
            free[into] = end
        ends.append(end)
    last = max(ends, default=0.0)
    return max(last, busiest(copies, links) if least is None else least)


def _loads(moved: Mapping[Pair, int], links: Links) -> dict[int, float]:
    total: dict[int, float] = {}
    for pair, nbytes in moved.items():
        for number, amount in links[pair].ports:
            total[number] = total.get(number, 0.0) + amount * nbytes
    return total


def links_of(topology: Topology) -> Links:
    """Its links; kept where nothing but its figures decides them."""
    return Links(topology) if topology.find_path is not None else _kept_links(topology)


@lru_cache(maxsize=16)
def _kept_links(topology: Topology) -> Links:
    return Links(topology)


def _links(topology: Topology | Links) -> Links:
    return topology if isinstance(topology, Links) else links_of(topology)
