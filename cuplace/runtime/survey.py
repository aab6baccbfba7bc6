"""Survey: which devices there are, and how copies travel between each two of them, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cuplace.runtime.machine import Machine
from cuplace.runtime.platform import current
from cuplace.runtime.presets import find_machine
from cuplace.runtime.topology import LOCAL, MICRO, NETWORK, PEER, STAGED, Topology, find_topology, topology_of

GIGA = 1e9

SHORT = {LOCAL: "GPU", PEER: "P2P", STAGED: "HOST", NETWORK: "NET"}
MEANING = {
    LOCAL: "inside of one GPU, or of the host's memory",
    PEER: "from GPU to GPU, by peer access",
    STAGED: "from GPU to GPU through pinned memory of the host",
    NETWORK: "over the network, to another node",
}
WORDS = {True: "yes", False: "no", None: "-"}


class Pair(NamedTuple):
    """How copies from one device to another travel.

    Attributes:
        path: ``local``, ``peer``, ``staged`` or ``network``.
        p2p: whether the GPUs reach each other's memory.
        verified: whether a pattern that was sent has arrived; None where the pair was not used yet.
        gb_s: what one copy gets, in 10^9 bytes a second; None where that is not known.
        latency_us: what passes before its first byte moves, in microseconds; None where that is not known.
    """

    path: str
    p2p: bool
    verified: bool | None
    gb_s: float | None
    latency_us: float | None


@dataclass(frozen=True, eq=False, repr=False)
class Survey:
    """The devices of a platform or of a machine, and the links between them; ``print`` shows a table.

    Attributes:
        devices: of the platform, or stand-ins for the GPUs of a machine that is not here.
        topology: ports and links of the GPUs, as plans see them.
    """

    devices: Sequence[Any]
    topology: Topology

    def pair(self, source: Any, target: Any) -> Pair:
        """How copies from one device to another travel."""
        one, other, topology = source.gpu, target.gpu, self.topology
        link = topology.link(one, other)
        figures = (link.most / GIGA, link.latency / MICRO) if topology.is_measured else (None, None)
        return Pair(link.path, link.path == PEER, topology.trust(one, other), *figures)

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain numbers and texts, as JSON takes them."""
        return {
            "machine": self.topology.machine.name if self.topology.is_measured else None,
            "devices": [{"device": str(one), "gpu": one.gpu, "node": self._node(one)} for one in self.devices],
            "pairs": [
                {"source": str(one), "target": str(other), **self.pair(one, other)._asdict()}
                for one in self.devices
                for other in self.devices
                if one is not other
            ],
        }

    def _node(self, device: Any) -> int:
        return self.topology.node(device.gpu)

    def __repr__(self) -> str:
        gpus = len({device.gpu for device in self.devices})
        return f"Survey({len(self.devices)} devices on {gpus} GPUs)"

    def __str__(self) -> str:
        if len(self.devices) == 1:
            return "\n".join([*self._matrix(), "", "There is one device, and so no way from one to another."])
        return "\n".join([*self._matrix(), "", *self._links()])

    def _matrix(self) -> list[str]:
        rows = [["", *[str(device.id) for device in self.devices], "GPU", "node"]]
        for one in self.devices:
            cells = ["X" if one is other else SHORT[self.pair(one, other).path] for other in self.devices]
            rows.append([str(one), *cells, str(one.gpu), str(self._node(one))])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip() for row in rows]

    def _links(self) -> list[str]:
        """One line for each kind of path: how many pairs, P2P, verified, figures."""
        found: dict[str, list[Pair]] = {}
        for one in self.devices:
            for other in self.devices:
                if one is not other:
                    pair = self.pair(one, other)
                    found.setdefault(pair.path, []).append(pair)
        rows = [["path", "pairs", "P2P", "verified", "GB/s", "us", ""]]
        for path, pairs in found.items():
            tried = [pair.verified for pair in pairs if pair.verified is not None]
            verified = f"{sum(tried)} of {len(tried)} tried" if tried else WORDS[None]
            rate = _range([pair.gb_s for pair in pairs])
            late = _range([pair.latency_us for pair in pairs])
            rows.append([SHORT[path], str(len(pairs)), WORDS[pairs[0].p2p], verified, rate, late, MEANING[path]])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip() for row in rows]


def _range(figures: Sequence[float | None]) -> str:
    known = sorted({figure for figure in figures if figure is not None})
    if not known:
        return WORDS[None]
    return f"{known[0]:g}" if len(known) == 1 else f"{known[0]:g} to {known[-1]:g}"


def topology(machine: Machine | str | None = None) -> Survey:
    """The devices and how copies travel between them: of the current platform, or of a machine that need not be here.

    Pairs of GPUs count as verified once something was copied between them, since a pair is tried out at its first
    use. Bandwidths are told where they are known: of machines, and on the simulator.

    Args:
        machine: its name, a TOML file, or a `Machine`; see docs/machines.md.

    Raises:
        MachineError: a ValueError; there is no such machine, or its file is wrong.

    >>> print(topology("pcie-8x").pair(*topology("pcie-8x").devices[:2]))
    Pair(path='staged', p2p=False, verified=None, gb_s=36.5, latency_us=25.0)
    """
    if machine is None:
        devices = current().devices
        return Survey(devices, topology_of(devices[0]))
    found = find_topology(find_machine(machine) if isinstance(machine, str) else machine)
    return Survey(found.devices, found)
