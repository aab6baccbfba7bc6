"""Machines so slow that even the smallest arrays take long to move, so that relays pay."""

from __future__ import annotations

from cuplace.runtime.machine import Gpu, HostLink, Machine, Network, PeerLink, StagedPath
from cuplace.runtime.topology import Topology, find_topology

_GPU, _HOST, _STAGED = Gpu(1.0, 1e-3), HostLink(1e-6, 1e-6), StagedPath(1e-6, 0.0)

NODE = Machine("node", 8, _GPU, _HOST, _STAGED, PeerLink(1e-6, 0.0), submit_us=0.0)
NODES = Machine("nodes", 4, _GPU, _HOST, _STAGED, PeerLink(1e-6, 0.0), Network(1e-7, 0.0), nodes=3, submit_us=0.0)
APART = Machine("apart", 8, _GPU, _HOST, _STAGED, submit_us=0.0)

TOPOLOGIES: tuple[Topology | None, ...] = (None, *map(find_topology, (NODE, NODES, APART)))
"""Of the devices themselves, and of these machines."""
