"""The simulator's backend: devices with memory, streams and links of their own, and no hardware."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuplace.runtime.backends.base import Event
from cuplace.runtime.backends.own_memory import OwnMemory
from cuplace.runtime.backends.sim.clock import VirtualClock
from cuplace.runtime.backends.sim.engine import Engine
from cuplace.runtime.backends.sim.links import Links
from cuplace.runtime.backends.sim.storage import Range, RangeArena
from cuplace.runtime.backends.sim.stream import Item, SimStream
from cuplace.runtime.device import Device
from cuplace.runtime.faults import Faults
from cuplace.runtime.machine import Machine
from cuplace.runtime.presets import HGX_H200

UNCHOSEN_DEVICES = 8


class SimBackend(OwnMemory):
    """Implements ``runtime.backends.base.Backend`` on one seeded engine and one virtual clock.

    Without a machine each device is a GPU of one large node, with the figures of `hgx-h200`. With a machine there
    are as many GPUs as it has, and more devices than that are partitions of them.

    Attributes:
        machine: the machine that times are told for.
        links: what copies take of it, and what is wrong with it.
        topology: how copies travel between its GPUs.
        clock: its virtual time.
    """

    name = "sim"
    device_platform = "sim"
    device_class = "SimDevice"
    device_kind = "sim"
    xp = np
    exchange = None
    run_at_once = copy_at_once = None

    def __init__(self, seed: int = 0, eagerness: float | None = None, machine: Machine | None = None) -> None:
        self._chosen = machine
        self.machine = machine or HGX_H200
        self.clock = VirtualClock(self.machine.submit_us)
        self._engine = Engine(seed, eagerness, self.clock)
        self.links = Links(self.machine)
        self.topology = self.links.topology
        self._streams: list[SimStream] = []

    def device_count(self, requested: int | None) -> int:
        if requested is None:
            return UNCHOSEN_DEVICES if self._chosen is None else self._chosen.total
        return requested

    def place(self, index: int, count: int) -> tuple[int, int]:
        """Devices are spread evenly over the GPUs; those on one GPU are its partitions."""
        gpus = count if self._chosen is None else min(self.machine.total, count)
        gpu = index * gpus // count
        return gpu, index - -(-gpu * count // gpus)

    def stream(self, device: Device, role: str, peer: Device | None = None) -> SimStream:
        stream = SimStream(device, role, self._engine, self.links, peer)
        self._streams.append(stream)
        return stream

    def storage(self, device: Device, arena: str) -> RangeArena:
        return RangeArena()

    def host_storage(self, device: Device, kind: str) -> RangeArena:
        return RangeArena()

    def view(self, storage: Range, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        return storage.as_array(shape, dtype)

    def query(self, event: Event) -> bool:
        assert isinstance(event, Item)
        return self._engine.query(event)

    def now(self) -> int:
        return self.clock.nanoseconds

    def measure(self, naming: bool) -> None:
        return None

    def synchronize(self, event: Event) -> None:
        assert isinstance(event, Item)
        self._engine.synchronize(event)

    def host_view(self, array: np.ndarray[Any, Any]) -> None:
        return None

    def to_host(self, array: np.ndarray[Any, Any], device: Device) -> np.ndarray[Any, Any]:
        self._engine.take(self.links.download(device.gpu, array.nbytes))
        return array.copy()

    def set_faults(self, faults: Faults) -> bool:
        """From now on this is wrong with the links; whether streams for moves have to be made anew."""
        self.links.set_faults(faults)
        return False

    def finish(self) -> None:
        self._engine.finish(self._streams)

    def close(self) -> None:
        """Nothing runs in the background."""
