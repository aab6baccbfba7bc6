"""Links: the resources of a simulated machine, and what each kind of work takes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cuplace.runtime.backends.sim.fluid import Resource, Uses
from cuplace.runtime.faults import NO_FAULTS, Faults
from cuplace.runtime.machine import Machine
from cuplace.runtime.task import Cost
from cuplace.runtime.topology import LOCAL, MICRO, PEER, STAGED, Port, Topology, find_topology

Carrier = Callable[[Any, Any], None]
"""``carrier(target, source)``: copies between equally shaped arrays."""


class Engines:
    """Copy engines that serve the same copies: ``free`` of them are idle."""

    __slots__ = ("free",)

    def __init__(self, count: int) -> None:
        self.free = count


class Demand(NamedTuple):
    """What a piece of work needs.

    Attributes:
        latency: seconds that pass before it makes progress.
        units: how much there is to do: bytes of copies, seconds of computing alone.
        uses: what each unit takes.
        weight: its share, compared with one of weight 1.
        most: the most units a second it can take.
        engines: the copy engines that it holds meanwhile, one of each.
    """

    latency: float = 0.0
    units: float = 0.0
    uses: Uses = ()
    weight: float = 1.0
    most: float = float("inf")
    engines: tuple[Engines, ...] = ()


NO_DEMAND = Demand()


class _Card:
    """What the copies and the work of one GPU take of it."""

    def __init__(self, topology: Topology, gpu: int) -> None:
        self.compute = Resource(f"GPU {gpu} computing", 1.0)
        self.ports = {port: Resource(str(port), topology.capacity(port)) for port in topology.ports(gpu)}
        self.memory, self.up, self.down, self.both = [
            self.ports[Port(kind, gpu)] for kind in ("memory", "up", "down", "both")
        ]
        count = topology.machine.gpu.copy_engines
        self.up_engines = Engines(1)
        self.down_engines = self.up_engines if count == 1 else Engines(1)
        self.peer_engines = self.down_engines if count < 3 else Engines(count - 2)


class Links:
    """How work travels and what it takes on ``machine``, which has as many GPUs as are asked for.

    Attributes:
        topology: the ports and links of the machine, and the paths that were found out.
        faults: what is wrong with the machine at present.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.topology = Topology(machine, True, self.path, self.trust)
        self.faults = NO_FAULTS
        self._cards: dict[int, _Card] = {}
        self._host_memory = Resource("host memory", machine.host_memory_gb_s * 1e9)
        self._paths: dict[tuple[int, int], str] = {}

    def set_faults(self, faults: Faults) -> None:
        """From now on this is wrong. Paths are found out anew, as after a restart."""
        self.faults = faults
        self._paths.clear()

    def _card(self, gpu: int) -> _Card:
        card = self._cards.get(gpu)
        if card is None:
            card = self._cards[gpu] = _Card(self.topology, gpu)
        return card

    # ------------------------------------------------------------------ paths

    def path(self, source: int, target: int) -> str:
        """How copies between two GPUs travel, found out at the first use of the pair."""
        path = self._paths.get((source, target))
        if path is None:
            path = self._paths[source, target] = self._find_path(source, target)
        return path

    def _find_path(self, source: int, target: int) -> str:
        path = find_topology(self.machine).path(source, target)
        if path != PEER:
            return path
        if self.faults.lacks_peer(source, target):
            return STAGED
        pattern = np.arange(1, 65, dtype=np.uint8)  # what is reached is not trusted before it delivers
        arrived = np.empty_like(pattern)
        self._carrier(source, target, PEER)(arrived, pattern)
        return PEER if np.array_equal(arrived, pattern) else STAGED

    def trust(self, source: int, target: int) -> bool | None:
        """Whether what a pair sent directly has arrived; None where it was not tried."""
        if (source, target) not in self._paths or self.faults.lacks_peer(source, target):
            return None
        if find_topology(self.machine).path(source, target) != PEER:
            return None
        return self._paths[source, target] == PEER

    def carrier(self, source: int, target: int) -> Carrier:
        """What a copy between two GPUs that is enqueued now does to memory."""
        return self._carrier(source, target, self.path(source, target))

    def _carrier(self, source: int, target: int, path: str) -> Carrier:
        return _lose if path == PEER and self.faults.corrupts(source, target) else np.copyto

    # ------------------------------------------------------------------ demands

    def compute(self, gpu: int, cost: Cost) -> Demand:
        """Computing: as long as its operations take, or as its memory traffic takes, whichever is longer."""
        card, figures = self._card(gpu), self.machine.gpu
        operating = cost.flops / (figures.tflops * 1e12)
        alone = max(operating, cost.bytes / card.memory.capacity)
        latency = figures.launch_us * MICRO
        if not alone:
            return Demand(latency)
        parts = ((card.compute, operating / alone), (card.memory, cost.bytes / alone))
        uses = tuple([(resource, amount) for resource, amount in parts if amount])
        return Demand(latency, alone, uses, 1.0 / card.memory.capacity)

    def copy(self, source: int, target: int, nbytes: int) -> Demand:
        """A copy between two GPUs, or inside of one."""
        link = self.topology.link(source, target)
        one, other = self._card(source), self._card(target)
        engines = {STAGED: (one.down_engines, other.up_engines), PEER: (one.peer_engines,)}.get(link.path, ())
        ports = [((one if port.gpu == source else other).ports[port], amount) for port, amount in link.ports]
        if link.path == LOCAL:
            return Demand(link.latency, 2.0 * nbytes, ((one.memory, 1.0),))
        slowdown = max(1.0, self.faults.slowdown(source, target))
        return Demand(link.latency, float(nbytes), tuple(ports), most=link.most / slowdown, engines=engines)

    def host(self, nbytes: float) -> Demand:
        """Work of the host that reads and writes so many bytes of its memory."""
        return Demand(0.0, nbytes, ((self._host_memory, 1.0),)) if nbytes else NO_DEMAND

    def upload(self, gpu: int, nbytes: int) -> Demand:
        """A copy from the host."""
        card = self._card(gpu)
        uses = ((card.up, 1.0), (card.both, 1.0))
        return Demand(self.machine.host.latency_us * MICRO, float(nbytes), uses, engines=(card.up_engines,))

    def download(self, gpu: int, nbytes: int) -> Demand:
        """A copy to the host."""
        card = self._card(gpu)
        uses = ((card.down, 1.0), (card.both, 1.0))
        return Demand(self.machine.host.latency_us * MICRO, float(nbytes), uses, engines=(card.down_engines,))


def _lose(target: Any, source: Any) -> None:
    target[...] = 0

