"""Device: one place of a mesh. A GPU, a stream-partition of one, a simulated device, or a CPU device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cuplace.placement.memory_space import DEVICE, KINDS
from cuplace.placement.sharding import check_memory_kind

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Backend, Stream
    from cuplace.runtime.host_memory import HostMemory
    from cuplace.runtime.memory import DeviceMemory
    from cuplace.runtime.scheduler import Scheduler
    from cuplace.runtime.topology import Topology


class Device:
    """A device that arrays can live on. Identity is equality; devices are made by their platform only.

    Attributes:
        id: its number in the platform, from 0.
        platform: ``cpu``, ``gpu`` or ``sim``.
        device_kind: what kind of hardware it is.
        process_index: the process that drives it; always 0 in a program of one process.
        local_hardware_id: its number within the process.
        gpu, partition: the hardware it is a partition of, and which partition; ``(id, 0)`` where each device
            is hardware of its own.
        memory_kinds: the kinds of memory it can address: its own, and two of the host's.
        memory: its own memory; ``memory(kind)`` is the one of another kind.

    >>> import cuplace
    >>> cuplace.devices()[0].id
    0
    """

    __slots__ = (
        "id", "platform", "device_kind", "process_index", "local_hardware_id", "gpu", "partition", "memory_kinds",
        "backend", "scheduler", "memory", "compute", "upload", "download", "xp", "_host", "_moves", "_class_name",
        "_places", "__weakref__",
    )  # fmt: skip

    memory: DeviceMemory
    compute: Stream
    upload: Stream
    download: Stream
    xp: Any

    def __init__(self, id: int, place: tuple[int, int], backend: Backend, scheduler: Scheduler) -> None:
        self.id = id
        self.platform = backend.device_platform
        self.device_kind = backend.device_kind
        self.process_index = 0
        self.local_hardware_id = id
        self.gpu, self.partition = place
        self.memory_kinds = KINDS
        self.backend = backend
        self.xp = backend.xp
        self.scheduler = scheduler
        self._class_name = backend.device_class
        self._host: Stream | None = None
        self._moves: dict[Device, Stream] = {}
        self._places: dict[str, Device | HostMemory] = {DEVICE: self}
        self.compute = backend.stream(self, "compute")
        self.upload = backend.stream(self, "upload")
        self.download = backend.stream(self, "download")

    @property
    def topology(self) -> Topology:
        """How copies travel between the GPUs that it is one of."""
        return self.backend.topology

    @property
    def default_memory_kind(self) -> str:
        return self.memory_kinds[0]

    def default_memory(self) -> DeviceMemory:
        """The device's own memory, where arrays are unless a sharding names another kind."""
        return self.memory

    def addressable_memories(self) -> list[DeviceMemory]:
        """The memories of the device, its own first.

        >>> import cuplace
        >>> [memory.kind for memory in cuplace.devices()[0].addressable_memories()]
        ['device', 'pinned_host', 'unpinned_host']
        """
        return [self.memory(kind) for kind in self.memory_kinds]

    def place(self, kind: str) -> Device | HostMemory:
        """What work on memory of a kind is placed on: the device itself, or its host memory, which both have
        ``compute``, ``upload``, ``memory``, ``scheduler`` and ``xp``.

        Raises:
            MemoryKindError: a ValueError, for a memory that the device does not have.
        """
        found = self._places.get(kind)
        if found is None:
            from cuplace.runtime.host_memory import HostMemory

            check_memory_kind(self, kind)
            found = self._places.setdefault(kind, HostMemory(self, kind))
        return found

    @property
    def host(self) -> Stream:
        """The strand that computes on the device's host memory; made at first use."""
        if self._host is None:
            with self.scheduler.lock:
                if self._host is None:
                    self._host = self.backend.stream(self, "host")
        return self._host

    def memories(self) -> list[DeviceMemory]:
        """The memories of the device that were used so far."""
        return [place.memory for place in self._places.values()]

    def transfer_to(self, other: Device) -> Stream:
        """The stream that carries copies from this device to ``other`` (or within it, for itself)."""
        stream = self._moves.get(other)
        if stream is None:
            # Of two threads that get here at once, both use the stream of the first.
            stream = self._moves.setdefault(other, self.backend.stream(self, "move", other))
        return stream

    def forget_moves(self) -> None:
        """Find out anew how copies to other devices travel."""
        self._moves = {}

    def streams(self) -> list[Stream]:
        """All streams of this device made so far."""
        host = [] if self._host is None else [self._host]
        return [self.compute, self.upload, self.download, *host, *self._moves.values()]

    def memory_stats(self) -> dict[str, int]:
        """Bytes in use, parked behind unfinished work, and the peak of both, and the limit where there is one."""
        self.scheduler.tidy()
        return self.memory.stats()

    def __repr__(self) -> str:
        return f"{self._class_name}(id={self.id})"

    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"

    def __reduce__(self) -> tuple[object, ...]:
        from cuplace.runtime.platform import device_by_id

        return device_by_id, (self.platform, self.id)

    def __copy__(self) -> Device:
        return self

    def __deepcopy__(self, memo: object) -> Device:
        return self
