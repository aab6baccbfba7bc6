"""The simulator's backend: devices with memory, streams and links of their own, and no hardware."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuplace.runtime.backends.base import Event
from cuplace.runtime.backends.sim.storage import Range, RangeArena
from cuplace.runtime.backends.sim.stream import Engine, Item, SimStream
from cuplace.runtime.device import Device


class SimBackend:
    """Implements ``runtime.backends.base.Backend`` on one seeded engine."""

    name = "sim"
    device_platform = "sim"
    device_class = "SimDevice"
    device_kind = "sim"
    xp = np

    def __init__(self, seed: int = 0, eagerness: float | None = None) -> None:
        self._engine = Engine(seed, eagerness)

    def device_count(self, requested: int | None) -> int:
        return 8 if requested is None else requested

    def place(self, index: int, count: int) -> tuple[int, int]:
        return index, 0

    def stream(self, device: Device, role: str, peer: Device | None = None) -> SimStream:
        name = f"{device} {role}" if peer is None else f"{device} -> {peer}"
        return SimStream(device, role, name, self._engine)

    def storage(self, device: Device, arena: str) -> RangeArena:
        return RangeArena()

    def view(self, storage: Range, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        return storage.as_array(shape, dtype)

    def query(self, event: Event) -> bool:
        assert isinstance(event, Item)
        return self._engine.query(event)

    def synchronize(self, event: Event) -> None:
        assert isinstance(event, Item)
        self._engine.synchronize(event)

    def host_view(self, array: np.ndarray[Any, Any]) -> None:
        return None

    def to_host(self, array: np.ndarray[Any, Any], device: Device) -> np.ndarray[Any, Any]:
        return array.copy()

    def close(self) -> None:
        """Nothing runs in the background."""
