"""Links: the resources of a simulated machine, and what each kind of work takes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cuplace.runtime.backends.sim.fluid import Resource, Uses
from cuplace.runtime.faults import NO_FAULTS, Faults
from cuplace.runtime.machine import Machine
from cuplace.runtime.task import Cost

GIGA = 1e9
MICRO = 1e-6


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
    """The resources of one GPU."""

    def __init__(self, machine: Machine, name: str) -> None:
        gpu, host = machine.gpu, machine.host
        self.compute = Resource(f"{name} computing", 1.0)
        self.memory = Resource(f"{name} memory", gpu.memory_gb_s * GIGA)
        self.up = Resource(f"host to {name}", host.up_gb_s * GIGA)
        self.down = Resource(f"{name} to host", host.down_gb_s * GIGA)
        both = host.up_gb_s + host.down_gb_s if host.both_gb_s is None else host.both_gb_s
        self.both = Resource(f"{name} and host", both * GIGA)
        self.out = Resource(f"out of {name}", 0.0 if machine.peer is None else machine.peer.gb_s * GIGA)
        self.into = Resource(f"into {name}", self.out.capacity)
        network = 0.0 if machine.network is None else machine.network.gb_s * GIGA
        self.sends = Resource(f"{name} to network", network)
        self.receives = Resource(f"network to {name}", network)
        count = gpu.copy_engines
        self.up_engines = Engines(1)
        self.down_engines = self.up_engines if count == 1 else Engines(1)
        self.peer_engines = self.down_engines if count < 3 else Engines(count - 2)


class Links:
    """How work travels and what it takes on ``machine``, which has as many GPUs as are asked for.

    Attributes:
        faults: what is wrong with the machine at present.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.faults = NO_FAULTS
        self._cards: dict[int, _Card] = {}
        self._paths: dict[tuple[int, int], str] = {}

    def set_faults(self, faults: Faults) -> Faults:
        """From now on this is wrong; what was wrong before. Paths are found out anew, as after a restart."""
        before, self.faults = self.faults, faults
        self._paths.clear()
        return before

    def _card(self, gpu: int) -> _Card:
        card = self._cards.get(gpu)
        if card is None:
            card = self._cards[gpu] = _Card(self.machine, f"GPU {gpu}")
        return card

    def check_allocation(self) -> None:
        """Memory is about to be allocated. Raises MemoryError where there is to be none."""
        self.faults.check_allocation()

    # ------------------------------------------------------------------ paths

    def path(self, source: int, target: int) -> str:
        """How copies between two GPUs travel, found out at the first use of the pair."""
        path = self._paths.get((source, target))
        if path is None:
            path = self._paths[source, target] = self._find_path(source, target)
        return path

    def _find_path(self, source: int, target: int) -> str:
        if source == target:
            return "local"
        per_node = self.machine.gpus
        if self.machine.nodes > 1 and source // per_node != target // per_node:
            return "network"
        if self.machine.peer is None or self.faults.lacks_peer(source, target):
            return "staged"
        pattern = np.arange(1, 65, dtype=np.uint8)  # what is reached is not trusted before it delivers
        arrived = np.empty_like(pattern)
        self._carrier(source, target, "peer")(arrived, pattern)
        return "peer" if np.array_equal(arrived, pattern) else "staged"

    def carrier(self, source: int, target: int) -> Carrier:
        """What a copy between two GPUs that is enqueued now does to memory."""
        return self._carrier(source, target, self.path(source, target))

    def _carrier(self, source: int, target: int, path: str) -> Carrier:
        return _lose if path == "peer" and self.faults.corrupts(source, target) else np.copyto

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
        path = self.path(source, target)
        one, other = self._card(source), self._card(target)
        if path == "local":
            return Demand(self.machine.gpu.launch_us * MICRO, 2.0 * nbytes, ((one.memory, 1.0),))
        demand = {"network": self._network, "staged": self._staged, "peer": self._peer}[path](one, other, nbytes)
        slowdown = self.faults.slowdown(source, target)
        if slowdown <= 1.0:
            return demand
        alone = min(demand.most, *[resource.capacity for resource, _ in demand.uses])
        return demand._replace(most=alone / slowdown)

    def _network(self, one: _Card, other: _Card, nbytes: int) -> Demand:
        network = self.machine.network
        assert network is not None
        return Demand(network.latency_us * MICRO, float(nbytes), ((one.sends, 1.0), (other.receives, 1.0)))

    def _staged(self, one: _Card, other: _Card, nbytes: int) -> Demand:
        path = self.machine.staged
        engines = (one.down_engines, other.up_engines)
        return Demand(
            path.latency_us * MICRO, float(nbytes), _over_host(one, other), most=path.gb_s * GIGA, engines=engines
        )

    def _peer(self, one: _Card, other: _Card, nbytes: int) -> Demand:
        link = self.machine.peer
        assert link is not None
        demand = Demand(
            link.latency_us * MICRO, float(nbytes), ((one.out, 1.0), (other.into, 1.0)), engines=(one.peer_engines,)
        )
        if not link.over_host_link:
            return demand
        return demand._replace(uses=_over_host(one, other), most=link.gb_s * GIGA)

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


def _over_host(one: _Card, other: _Card) -> Uses:
    return ((one.down, 1.0), (one.both, 1.0), (other.up, 1.0), (other.both, 1.0))
