"""Topology: how copies travel between the GPUs of a machine, and what they share on their way. A pure value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

from cuplace.placement.memory_space import KINDS, UNPINNED_HOST
from cuplace.runtime.machine import Gpu, HostLink, Machine, StagedPath
from cuplace.runtime.presets import HGX_H200

GIGA = 1e9
MICRO = 1e-6

LOCAL, PEER, STAGED, NETWORK, OVER_HOST_LINK = "local", "peer", "staged", "network", "host"

HOST_END = -1
"""The host, where the number of a GPU is expected: one end of copies from and to its memory."""


class Port(NamedTuple):
    """Something of one GPU, or of the host, that bytes pass and that copies share.

    ``kind`` is ``memory``, ``out`` and ``into`` (of its links to other GPUs), ``up``, ``down`` and ``both`` (of its
    link to the host), ``sends`` and ``receives`` (of its network card). The host only has ``memory``.
    """

    kind: str
    gpu: int

    def __str__(self) -> str:
        return f"host {self.kind}" if self.gpu == HOST_END else f"GPU {self.gpu} {self.kind}"


class Link(NamedTuple):
    """How copies from one GPU to another, or inside of one, travel.

    Attributes:
        path: ``local``, ``peer``, ``staged`` or ``network``; ``host`` between a GPU and the host.
        latency: seconds before the first byte moves.
        most: bytes a second that one copy gets, alone.
        ports: what each byte takes of which port.
    """

    path: str
    latency: float
    most: float
    ports: tuple[tuple[Port, float], ...]


@dataclass(frozen=True, eq=False, repr=False)
class ModelDevice:
    """A GPU of a machine that need not be here, as a device: enough for meshes, shardings and plans."""

    id: int
    device_kind: str
    topology: Topology
    platform: str = "model"
    process_index: int = 0
    memory_kinds: tuple[str, ...] = KINDS

    @property
    def gpu(self) -> int:
        return self.id

    @property
    def local_hardware_id(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"ModelDevice(id={self.id})"

    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"


@dataclass(frozen=True, repr=False)
class Caller:
    """Where values of the caller's are that no device holds yet, as a device: enough for the plan of an upload."""

    id: int = HOST_END
    local_hardware_id: int = HOST_END
    gpu: int = HOST_END
    device_kind: str = "host"
    platform: str = "host"
    process_index: int = 0
    memory_kinds: tuple[str, ...] = (UNPINNED_HOST,)

    def __repr__(self) -> str:
        return "host"


CALLER = Caller()


@dataclass(frozen=True, eq=False)
class Topology:
    """The GPUs of a machine with their ports and links.

    Attributes:
        machine: its figures. One node has as many GPUs as are asked for.
        is_measured: whether the figures are those of the machine at hand, so that times may be told.
        find_path: ``find_path(source, target)``: by which path a pair of GPUs copies, where that is not left to the
            figures.
        find_trust: ``find_trust(source, target)``: whether a pair has shown that it delivers; None before that.
    """

    machine: Machine
    is_measured: bool = True
    find_path: Callable[[int, int], str] | None = None
    find_trust: Callable[[int, int], bool | None] | None = None
    _links: dict[tuple[int, int, str], Link] = field(default_factory=dict, repr=False)

    @cached_property
    def devices(self) -> tuple[ModelDevice, ...]:
        """The GPUs of the machine as devices that meshes can be made of, where the machine itself is not here.

        >>> find_topology(HGX_H200).devices[7]
        ModelDevice(id=7)
        """
        return tuple(ModelDevice(i, self.machine.name, self) for i in range(self.machine.total))

    def node(self, gpu: int) -> int:
        """The node that a GPU is in."""
        return gpu // self.machine.gpus if self.machine.nodes > 1 else 0

    def path(self, source: int, target: int) -> str:
        """By which path copies between two GPUs travel.

        >>> find_topology(HGX_H200).path(0, 1)
        'peer'
        """
        if HOST_END in (source, target):
            return LOCAL if source == target else OVER_HOST_LINK
        if self.find_path is not None:
            return self.find_path(source, target)
        if source == target:
            return LOCAL
        if self.node(source) != self.node(target):
            return NETWORK
        return STAGED if self.machine.peer is None else PEER

    def trust(self, source: int, target: int) -> bool | None:
        """Whether a pair has shown that it delivers what is sent; None where it has not been tried yet."""
        return None if self.find_trust is None else self.find_trust(source, target)

    def ports(self, gpu: int) -> tuple[Port, ...]:
        """Everything of a GPU that copies pass."""
        return tuple(Port(kind, gpu) for kind in _CAPACITIES)

    def capacity(self, port: Port) -> float:
        """The bytes a second that all copies together get of a port."""
        if port.gpu == HOST_END:
            return self.machine.host_memory_gb_s * GIGA
        return _CAPACITIES[port.kind](self.machine) * GIGA

    def link(self, source: int, target: int) -> Link:
        """How copies between two GPUs travel, and what they take."""
        path = self.path(source, target)
        found = self._links.get((source, target, path))
        if found is None:
            made = self._make_link(source, target, path)
            alone = min([made.most, *[self.capacity(port) / amount for port, amount in made.ports]])
            found = self._links[source, target, path] = made._replace(most=alone)
        return found

    def _make_link(self, source: int, target: int, path: str) -> Link:
        machine = self.machine
        if path == OVER_HOST_LINK:
            name, gpu = ("down", source) if target == HOST_END else ("up", target)
            speed = machine.host.down_gb_s if target == HOST_END else machine.host.up_gb_s
            return _joined(path, machine.host.latency_us, speed, (name, gpu), ("both", gpu))
        if source == HOST_END:
            return Link(path, 0.0, machine.host_memory_gb_s / 2 * GIGA, ((Port("memory", HOST_END), 2.0),))
        if path == LOCAL:
            ports, latency, most = ((Port("memory", source), 2.0),), machine.gpu.launch_us, machine.gpu.memory_gb_s / 2
            return Link(path, latency * MICRO, most * GIGA, ports)
        if path == NETWORK:
            network = machine.network
            assert network is not None
            return _joined(path, network.latency_us, network.gb_s, ("sends", source), ("receives", target))
        over_host = (("down", source), ("both", source), ("up", target), ("both", target))
        if path == STAGED:
            return _joined(path, machine.staged.latency_us, machine.staged.gb_s, *over_host)
        peer = machine.peer
        assert peer is not None
        ends = over_host if peer.over_host_link else (("out", source), ("into", target))
        return _joined(path, peer.latency_us, peer.gb_s, *ends)


def _joined(path: str, latency_us: float, gb_s: float, *ends: tuple[str, int]) -> Link:
    return Link(path, latency_us * MICRO, gb_s * GIGA, tuple([(Port(*end), 1.0) for end in ends]))


def _both(machine: Machine) -> float:
    host = machine.host
    return host.up_gb_s + host.down_gb_s if host.both_gb_s is None else host.both_gb_s


_CAPACITIES: dict[str, Callable[[Machine], float]] = {
    "memory": lambda machine: machine.gpu.memory_gb_s,
    "up": lambda machine: machine.host.up_gb_s,
    "down": lambda machine: machine.host.down_gb_s,
    "both": _both,
    "out": lambda machine: 0.0 if machine.peer is None else machine.peer.gb_s,
    "into": lambda machine: 0.0 if machine.peer is None else machine.peer.gb_s,
    "sends": lambda machine: 0.0 if machine.network is None else machine.network.gb_s,
    "receives": lambda machine: 0.0 if machine.network is None else machine.network.gb_s,
}


@lru_cache(maxsize=64)
def find_topology(machine: Machine) -> Topology:
    """The topology of a machine, one object for equal machines."""
    return Topology(machine)


HOST = Topology(
    Machine("host", 1, Gpu(0.1, 20), HostLink(10, 10), StagedPath(10)), False, lambda source, target: LOCAL
)
"""That of the cpu platform: all devices share the host's memory, and nothing is known of its speed."""


def topology_of(device: object) -> Topology:
    """The topology that a device is part of. A device that tells none is a GPU of one node."""
    found: Topology | None = getattr(device, "topology", None)
    return find_topology(HGX_H200) if found is None else found
