"""The cuda backend: GPUs, or stream-partitions of them, as devices."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt
from cupy.cuda import runtime

from cuplace import errors
from cuplace.placement.memory_space import PINNED_HOST
from cuplace.runtime.backends.base import Event
from cuplace.runtime.backends.cpu.storage import BlockCache, HostBlock
from cuplace.runtime.backends.cuda import kernels, lane
from cuplace.runtime.backends.cuda.copies import LocalMover, Mover, PeerMover, SlowMover, StagedMover
from cuplace.runtime.backends.cuda.exchange import CudaExchange
from cuplace.runtime.backends.cuda.gpu import MOST_STREAMS, Gpu
from cuplace.runtime.backends.cuda.host import HostCopies
from cuplace.runtime.backends.cuda.host_moves import HostMover
from cuplace.runtime.backends.cuda.lane import CudaEvent, HostHome
from cuplace.runtime.backends.cuda.latch import Latches
from cuplace.runtime.backends.cuda.library import ArrayModule
from cuplace.runtime.backends.cuda.links import Links
from cuplace.runtime.backends.cuda.occupancy import gpu_usage, shortage
from cuplace.runtime.backends.cuda.pinned import PinnedPool, PinnedStorage
from cuplace.runtime.backends.cuda.ring import PinnedRing
from cuplace.runtime.backends.cuda.storage import CudaPool, CudaStorage
from cuplace.runtime.backends.cuda.strand import HostStream, declare
from cuplace.runtime.backends.cuda.stream import CudaStream, Home
from cuplace.runtime.backends.cuda.timing import Measurement, Meter
from cuplace.runtime.config import config
from cuplace.runtime.device import Device
from cuplace.runtime.faults import Faults
from cuplace.runtime.memory import COMPUTE
from cuplace.runtime.usage import GpuUsage, PinnedUsage

Storage = CudaStorage | PinnedStorage | HostBlock

_PORTABLE_MAPPED = 3  # cudaHostAllocPortable | cudaHostAllocMapped: the same address on the host and on every GPU


class CudaBackend:
    """Implements ``runtime.backends.base.Backend`` on CuPy.

    Attributes:
        gpus: the GPUs that devices are made of.
        ring: the pinned memory that copies pass through.
        links: how pairs of GPUs reach each other.
        topology: the same, as plans see it.
        exchange: how memory is shared with other libraries.
    """

    name = "cuda"
    device_platform = "gpu"
    device_class = "CudaDevice"
    run_at_once = copy_at_once = None

    def __init__(self, gpus: int | None = None) -> None:
        """On all GPUs that the process sees, or on the first ``gpus`` of them."""
        # Read by the driver when the first context is made; without it streams share 8 hardware queues.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(MOST_STREAMS))
        count = int(runtime.getDeviceCount()) if gpus is None else gpus
        self.gpus = [Gpu(ordinal, count - 1, self._find_lost) for ordinal in range(count)]
        self.device_kind = self.gpus[0].name
        self.xp: Any = ArrayModule()
        self.ring = PinnedRing(config.staging_bytes, self._pin, self._unpin, lane.query, lane.synchronize)
        self._host = HostCopies(self.ring)
        self._pins = PinnedPool(self._pin, self._unpin)
        self.exchange = CudaExchange(self._gpu)
        self._latches = Latches(self._pin, self._unpin)
        self.links = Links(self._host)
        self.topology = self.links.topology
        self._loaded: set[int] = set()
        self._meter: Meter | None = None
        self._making = threading.RLock()  # streams to other devices are made by whichever thread needs them first

    def device_count(self, requested: int | None) -> int:
        return len(self.gpus) if requested is None else requested

    def place(self, index: int, count: int) -> tuple[int, int]:
        """Devices are spread evenly over the GPUs; those on one GPU are its partitions."""
        gpus = min(len(self.gpus), count)
        gpu = index * gpus // count
        first = -(-gpu * count // gpus)
        return gpu, index - first

    def stream(self, device: Device, role: str, peer: Device | None = None) -> CudaStream:
        with self._making:
            try:
                return self._make_stream(device, role, peer)
            except runtime.CUDARuntimeError as error:
                raise self.gpus[device.gpu].failed(error) from None

    def _make_stream(self, device: Device, role: str, peer: Device | None) -> CudaStream:
        gpu = self._gpu(device)
        mover: Mover
        if role == "host":
            lane, worker = gpu.host_lane()
            return HostStream(device, lane, self._host, self._latches, worker, self._is_pinned)
        if role in ("upload", "download"):
            mover = HostMover(self.ring, self._pins)
            home: Home = gpu if role == "upload" else HostHome()
            return self._stream(device, role, f"{device} {role}", gpu.lane(role, device.partition), home, mover)
        if peer is None:
            return self._stream(device, role, f"{device} {role}", gpu.lane(role, device.partition), gpu)
        name = f"{device} -> {peer}"
        if peer.gpu == device.gpu:
            return self._stream(device, role, name, gpu.lane("local", device.partition), gpu, LocalMover())
        there = self._gpu(peer)
        out = gpu.lane("out", peer.gpu)
        departure = self._stream(device, role, name, out, there)
        arrival = self._stream(peer, role, f"{name}, arrival", there.lane("in", device.gpu), there)
        if self.links.path(gpu, there, departure, arrival) == "peer":
            mover = PeerMover(device, peer, (gpu, there), arrival)
        else:
            mover = StagedMover(device, peer, arrival, self.ring)
        slowdown = self.links.faults.slowdown(device.gpu, peer.gpu)
        if slowdown > 1.0:
            mover = SlowMover(mover, (slowdown - 1.0) / self.topology.link(device.gpu, peer.gpu).most)
        return self._stream(device, role, name, out, there, mover)

    def storage(self, device: Device, arena: str) -> CudaPool:
        if arena == COMPUTE:
            assert isinstance(device.compute, CudaStream)
            return CudaPool(device.compute, used_in_order=True)
        assert isinstance(device.upload, CudaStream)
        return CudaPool(device.upload, used_in_order=False)

    def host_storage(self, device: Device, kind: str) -> PinnedPool | BlockCache:
        return self._pins if kind == PINNED_HOST else BlockCache()

    def view(self, storage: Storage, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        return storage.as_array(shape, dtype)

    def query(self, event: Event) -> bool:
        assert isinstance(event, CudaEvent)
        return lane.query(event)

    def now(self) -> int:
        return time.perf_counter_ns()

    def measure(self, naming: bool) -> Measurement:
        with self._making:
            if self._meter is None or not self._meter.is_open:
                self._meter = Meter(self.gpus, self.now)
            return Measurement(self._meter, naming)

    def synchronize(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        lane.synchronize(event)

    def host_view(self, array: Any) -> None:
        return None

    def host_array(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        declare(array, False, self._is_pinned)
        return array

    def to_host(self, array: Any, device: Device) -> npt.NDArray[Any]:
        assert isinstance(device.download, CudaStream)
        return self._host.download(device.download, array)

    def trim(self) -> int:
        return self.ring.free_unused()

    def usage(self) -> tuple[tuple[GpuUsage, ...], PinnedUsage]:
        ring = self.ring
        pinned = PinnedUsage(ring.pinned_bytes, ring.peak, ring.limit, ring.pressure_waits)
        return gpu_usage(self.gpus), pinned

    def shortage(self, device: Device, nbytes: int) -> list[str]:
        return shortage(self.gpus[device.gpu], nbytes)

    def set_faults(self, faults: Faults) -> bool:
        """From now on this is wrong with the links between GPUs; whether streams for moves have to be made anew."""
        before, self.links.faults = self.links.faults, faults
        if not before.of_links and not faults.of_links:
            return False
        self.links.forget()
        return True

    def hardware(self) -> list[str]:
        """A line for each GPU: its name, architecture and memory."""
        found = [(gpu, runtime.getDeviceProperties(gpu.ordinal)) for gpu in self.gpus]
        return [
            f"{gpu.name}, sm_{told['major']}{told['minor']}, {told['totalGlobalMem'] / 2**30:.1f} GiB"
            for gpu, told in found
        ]

    def finish(self) -> None:
        self._latches.release()
        for gpu in self.gpus:
            gpu.finish()

    def close(self) -> None:
        self._latches.release()
        for gpu in self.gpus:
            gpu.close()
        self._latches.close()
        self.ring.free_unused()

    def _gpu(self, device: Device) -> Gpu:
        gpu = self.gpus[device.gpu]
        if gpu.ordinal not in self._loaded:
            kernels.load(gpu)
            self._loaded.add(gpu.ordinal)
        return gpu

    def _stream(
        self, device: Device, role: str, name: str, on: lane.Lane, home: Home, mover: Mover | None = None
    ) -> CudaStream:
        return CudaStream(device, role, name, on, home, self._host, self._latches, mover)

    def _find_lost(self) -> errors.DeviceLostError | None:
        found = [gpu.check() for gpu in self.gpus]
        return next((error for error in found if error is not None), None)

    def _pin(self, nbytes: int) -> int:
        try:
            with self._healthy_gpu().device:
                return int(runtime.hostAlloc(nbytes, _PORTABLE_MAPPED))
        except runtime.CUDARuntimeError as error:
            raise MemoryError(f"{nbytes:,} bytes of host memory could not be pinned: {error}") from error

    def _unpin(self, address: int) -> None:
        gpu = self._healthy_gpu()
        if gpu.lost is None:
            with gpu.device:
                runtime.freeHost(address)

    def _is_pinned(self, address: int) -> bool:
        return self._pins.owns(address) or self.ring.owns(address)

    def _healthy_gpu(self) -> Gpu:
        """A GPU that is not lost, for calls that need no certain one; the first one if there is none."""
        return next((gpu for gpu in self.gpus if gpu.lost is None), self.gpus[0])
