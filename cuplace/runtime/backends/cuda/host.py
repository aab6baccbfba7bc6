"""HostCopies: arrays of the host to GPUs and back, through the pinned ring."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
import numpy.typing as npt
from cupy.cuda import runtime

from cuplace.runtime.backends.cuda import hooks
from cuplace.runtime.backends.cuda.copies import is_contiguous, stage, unpack
from cuplace.runtime.backends.cuda.lane import synchronize
from cuplace.runtime.backends.cuda.ring import ALIGNMENT
from cuplace.runtime.backends.interrupts import Uninterrupted
from cuplace.runtime.pieces import copy_host, pieces

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.lane import CudaEvent
    from cuplace.runtime.backends.cuda.ring import PinnedBlock, PinnedRing
    from cuplace.runtime.backends.cuda.stream import CudaStream

Host = npt.NDArray[Any]

_TO_HOST = 2  # cudaMemcpyDeviceToHost
_TO_DEVICE = 1  # cudaMemcpyHostToDevice


class HostCopies:
    """Copies between memory of the host and of GPUs."""

    def __init__(self, ring: PinnedRing) -> None:
        self._ring = ring

    def upload(self, stream: CudaStream, source: Host, target: Any) -> None:
        """Enqueue a copy to a CuPy array; ``source`` has been read entirely, and cast, when this returns."""
        address = target.data.ptr
        if not is_contiguous(target):
            address = stage(stream.device, stream, stream.lane, target.nbytes)
        self._fill(stream, source, address, target)
        if address != target.data.ptr:
            unpack(stream.lane, address, target)

    def upload_packed(self, stream: CudaStream, sources: Sequence[Host], targets: Sequence[Any]) -> None:
        """Enqueue copies to several small CuPy arrays out of one block of the ring, as `upload` does each of them."""
        sizes = [-(-target.nbytes // ALIGNMENT) * ALIGNMENT for target in targets]
        starts = list(itertools.accumulate(sizes, initial=0))
        total = starts.pop()
        if total > self._ring.piece_for(total) or not all(map(is_contiguous, targets)):
            for source, target in zip(sources, targets, strict=True):
                if target.nbytes:
                    self.upload(stream, source, target)
            return
        waited = False
        while total and not self._send_packed(stream, sources, targets, starts, total):
            stream.wait_for_room(self._ring, waited)
            waited = True

    def _send_packed(
        self, stream: CudaStream, sources: Sequence[Host], targets: Sequence[Any], starts: Sequence[int], total: int
    ) -> bool:
        """Do so if the ring has room."""
        ring = self._ring
        with Uninterrupted():
            block = ring.take(total)
            if block is None:
                return False
            stream.until_recorded(lambda event: ring.release(block, (event,)))
            if hooks.host_access is not None:
                hooks.host_access(block.address, total, True)
            for source, target, start in zip(sources, targets, starts, strict=True):
                copy_host(block.view(target.shape, target.dtype, start), source)
                if target.nbytes:
                    runtime.memcpyAsync(
                        target.data.ptr, block.address + start, target.nbytes, _TO_DEVICE, stream.lane.ptr
                    )
        return True

    def download(self, stream: CudaStream, source: Any) -> Host:
        """The values of a complete CuPy array as a new NumPy array; waits for the copies."""
        host: Host = np.empty(source.shape, source.dtype)
        if not source.nbytes:
            return host
        if not is_contiguous(source):
            with stream.lane.device, stream.lane.on:
                source = cupy.ascontiguousarray(source)
        self._drain(stream, source.data.ptr, host)
        return host

    def _fill(self, stream: CudaStream, source: Host, address: int, target: Any) -> None:
        """Copy the source piece by piece into blocks of the ring, and each from there while the next is copied."""
        dtype, piece = target.dtype, self._ring.piece_for(target.nbytes)
        if target.nbytes <= piece:
            self._send(stream, source, address, target.nbytes, dtype)
            return
        begun = False
        for part in pieces(target.shape, dtype.itemsize, piece):
            values = source[part]
            nbytes = values.size * dtype.itemsize
            self._send(stream, values, address, nbytes, dtype, begun)
            stream.release_held()
            address += nbytes
            begun = True

    def _send(
        self, stream: CudaStream, values: Host, address: int, nbytes: int, dtype: np.dtype[Any], begun: bool = False
    ) -> None:
        waited = False
        while not self._send_now(stream, values, address, nbytes, dtype):
            stream.wait_for_room(self._ring, waited, begun)
            waited = True

    def _send_now(self, stream: CudaStream, values: Host, address: int, nbytes: int, dtype: np.dtype[Any]) -> bool:
        """Do so if the ring has room."""
        ring = self._ring
        with Uninterrupted():  # else a block could be lost between two calls
            block = ring.take(nbytes)
            if block is None:
                return False
            stream.until_recorded(lambda event: ring.release(block, (event,)))
            view = block.view(values.shape, dtype)
            if hooks.host_access is not None:
                hooks.host_access(block.address, nbytes, True)
            copy_host(view, values)
            runtime.memcpyAsync(address, block.address, nbytes, _TO_DEVICE, stream.lane.ptr)
        return True

    def _drain(self, stream: CudaStream, address: int, host: Host) -> None:
        """Copy to the ring piece by piece, and from there to the array while the next piece is on its way."""
        ring, lane = self._ring, stream.lane
        size = ring.piece_for(host.nbytes)
        parts = [host[part] for part in pieces(host.shape, host.itemsize, size)]
        block, waited = None, False
        try:
            while block is None:
                with Uninterrupted():
                    block = ring.take(size * min(len(parts), 2))
                if block is None:
                    ring.wait_for_room(waited)
                    waited = True
            halves = [block.address + i % 2 * size for i in range(len(parts))]
            copied: list[CudaEvent] = []
            for i, part in enumerate(parts):
                if i >= 2:
                    _read(block, halves[i - 2] - block.address, parts[i - 2], copied[i - 2])
                runtime.memcpyAsync(halves[i], address, part.nbytes, _TO_HOST, lane.ptr)
                copied.append(lane.record(stream, 0))
                address += part.nbytes
            for i in range(max(0, len(parts) - 2), len(parts)):
                _read(block, halves[i] - block.address, parts[i], copied[i])
        finally:
            with Uninterrupted():
                if block is not None:
                    ring.release(block, (lane.record(stream, 0),))


def _read(block: PinnedBlock, offset: int, target: Host, copied: CudaEvent) -> None:
    synchronize(copied)
    if copied.error is not None:
        raise copied.error
    if hooks.host_access is not None:
        hooks.host_access(block.address + offset, target.nbytes, False)
    copy_host(target, block.view(target.shape, target.dtype, offset))
