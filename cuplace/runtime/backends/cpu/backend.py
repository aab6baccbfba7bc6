"""The cpu backend: devices that are names for parts of the host, for CI and for machines without a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from cuplace.runtime.backends.base import Event
from cuplace.runtime.backends.cpu.storage import BlockCache, HostBlock
from cuplace.runtime.backends.cpu.strand import Item, Pool, Strand, copy_at_once, run_at_once
from cuplace.runtime.backends.own_memory import OwnMemory
from cuplace.runtime.device import Device
from cuplace.runtime.topology import HOST


class CpuBackend(OwnMemory):
    """Implements ``runtime.backends.base.Backend`` on NumPy and threads."""

    name = "cpu"
    device_platform = "cpu"
    device_class = "CpuDevice"
    device_kind = "cpu"
    xp = np
    topology = HOST
    exchange = None
    run_at_once = staticmethod(run_at_once)
    copy_at_once = staticmethod(copy_at_once)

    def __init__(self, jitter: Callable[[], None] | None = None, workers: int | None = None) -> None:
        self._pool = Pool(jitter, workers)

    def device_count(self, requested: int | None) -> int:
        return 1 if requested is None else requested

    def place(self, index: int, count: int) -> tuple[int, int]:
        return index, 0

    def stream(self, device: Device, role: str, peer: Device | None = None) -> Strand:
        name = f"{device} {role}" if peer is None else f"{device} -> {peer}"
        return Strand(device, role, name, self._pool)

    def storage(self, device: Device, arena: str) -> BlockCache:
        return BlockCache()

    def host_storage(self, device: Device, kind: str) -> BlockCache:
        return BlockCache()

    view = staticmethod(HostBlock.as_array)

    def query(self, event: Event) -> bool:
        return event.done

    def now(self) -> int:
        return time.perf_counter_ns()

    def measure(self, naming: bool) -> None:
        return None

    def synchronize(self, event: Event) -> None:
        assert isinstance(event, Item)
        self._pool.synchronize(event)

    def host_view(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array

    def to_host(self, array: np.ndarray[Any, Any], device: Device) -> np.ndarray[Any, Any]:
        return array.copy()

    def close(self) -> None:
        self._pool.close()
