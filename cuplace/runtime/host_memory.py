"""HostMemory: memory of the host that belongs to a device, and the strand that computes on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cuplace.runtime.memory import DeviceMemory

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import StoragePool, Stream
    from cuplace.runtime.device import Device
    from cuplace.runtime.scheduler import Scheduler


class HostMemory(DeviceMemory):
    """The arenas of one kind of host memory of a device. Made at first use; no limit bounds it.

    It stands for the device wherever work is placed (see ``Device.place``): ``compute`` is the device's host strand,
    ``xp`` is NumPy on every platform, ``memory`` is itself.
    """

    on_host = True
    limited = False
    xp = np

    def __init__(self, device: Device, kind: str) -> None:
        own = device.memory
        super().__init__(device, own.backend, own.graveyard, own.parking, kind)

    @property
    def memory(self) -> HostMemory:
        return self

    @property
    def scheduler(self) -> Scheduler:
        return self.device.scheduler

    @property
    def compute(self) -> Stream:
        return self.device.host

    @property
    def home(self) -> None:
        # The pinned memory of all devices is one pool: what comes back may go out to any strand.
        return None

    @property
    def upload(self) -> Stream:
        return self.device.host

    def _storage(self, arena: str) -> StoragePool:
        return self.backend.host_storage(self.device, self.kind)
