"""HostMover: boxes between the memory of a GPU and host memory of arrays, on the upload or download stream of a device.

Pinned memory is one copy, or one kernel that reads or writes it over the link: the host only enqueues. Other memory
passes through the pinned ring; its part of the way is work of the device's host strand, piece by piece.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from cupy.cuda import runtime

from cuplace.runtime.backends.cuda import kernels
from cuplace.runtime.backends.cuda.copies import LocalMover, Packing, box_copy, piece_for
from cuplace.runtime.backends.cuda.pinned import address_of
from cuplace.runtime.backends.cuda.ring import MOST_PIECES, RingFullError
from cuplace.runtime.pieces import copy_host, pieces
from cuplace.runtime.staging import NO_STAGING, Staging

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.lane import CudaEvent
    from cuplace.runtime.backends.cuda.pinned import PinnedPool
    from cuplace.runtime.backends.cuda.ring import PinnedBlock, PinnedRing
    from cuplace.runtime.backends.cuda.strand import HostStream
    from cuplace.runtime.backends.cuda.stream import CudaStream

Host = npt.NDArray[Any]

_TO_HOST = 2  # cudaMemcpyDeviceToHost
_TO_DEVICE = 1  # cudaMemcpyHostToDevice


class HostMover(LocalMover):
    """Between a GPU and the host, in either direction, and inside of the GPU."""

    path = None

    def __init__(self, ring: PinnedRing, pins: PinnedPool) -> None:
        self._ring = ring
        self._pins = pins

    def copy(self, stream: CudaStream, source: Any, target: Any, staging: Staging = NO_STAGING) -> None:
        host = next((array for array in (source, target) if isinstance(array, np.ndarray)), None)
        if host is None:
            super().copy(stream, source, target)
        elif self._pins.owns(address_of(host)):
            _copy_pinned(stream, source, target)
        elif host is source:
            self._lift(stream, source, target, staging)
        else:
            self._drop(stream, source, target, staging)

    def _drop(self, stream: CudaStream, source: Any, target: Host, staging: Staging) -> None:
        """From the GPU: into the ring, and from there by the host."""
        piece, cut, block = self._cut(stream, target, staging)
        strand, packing = _strand(stream), Packing(stream.device, stream, stream.lane, piece, staging.sent)
        read: list[CudaEvent] = []
        for i, part in enumerate(cut):
            if i >= MOST_PIECES:
                stream.lane.wait(read[i - MOST_PIECES])
            view = _piece(block, i, piece, target[part])
            packing.fetch(source[part], address_of(view))
            strand.lane.wait(stream.lane.record(stream, 0))
            _enqueue(stream, strand, view, target[part])
            stream.ends_on(strand)
            read.append(strand.lane.record(strand, 0))

    def _lift(self, stream: CudaStream, source: Host, target: Any, staging: Staging) -> None:
        """To the GPU: into the ring by the host, when all that this copy waits for is complete, and from there."""
        piece, cut, block = self._cut(stream, target, staging)
        strand, packing = _strand(stream), Packing(stream.device, stream, stream.lane, piece, staging.received)
        strand.lane.wait(stream.lane.record(stream, 0))
        sent: list[CudaEvent] = []
        for i, part in enumerate(cut):
            if i >= MOST_PIECES:
                strand.lane.wait(sent[i - MOST_PIECES])
            view = _piece(block, i, piece, source[part])
            _enqueue(stream, strand, source[part], view)
            stream.lane.wait(strand.lane.record(strand, 0))
            packing.deliver(address_of(view), target[part])
            sent.append(stream.lane.record(stream, 0))

    def _cut(self, stream: CudaStream, whole: Any, staging: Staging) -> tuple[int, list[Any], PinnedBlock]:
        """The size of pieces, the pieces, and memory of the ring for as many as are under way at a time."""
        piece = piece_for(self._ring, whole.nbytes, staging)
        cut = list(pieces(whole.shape, whole.itemsize, piece))
        block = self._ring.take_in_order(piece * min(len(cut), MOST_PIECES), stream.lane.wait)
        if block is None:
            raise RingFullError(self._ring)
        stream.until_recorded(lambda event: self._ring.release(block, (event,)))
        return piece, cut, block


def _strand(stream: CudaStream) -> HostStream:
    strand: Any = stream.device.host
    return strand  # type: ignore[no-any-return]


def _piece(block: PinnedBlock, number: int, size: int, like: Host) -> Host:
    return block.view(like.shape, like.dtype, number % MOST_PIECES * size)


def _enqueue(stream: CudaStream, strand: HostStream, source: Host, target: Host) -> None:
    call = partial(copy_host, target, source)
    stream.awaits(strand.enqueue(call, ((source,), (target,)), stream.outcomes, stream.submission))


def _copy_pinned(stream: CudaStream, source: Any, target: Any) -> None:
    strided = box_copy(target, source.strides, target.strides)
    lane, kind = stream.lane, _TO_HOST if isinstance(target, np.ndarray) else _TO_DEVICE
    here, there = _address(source), _address(target)
    if strided.is_flat:
        runtime.memcpyAsync(there, here, strided.run, kind, lane.ptr)
    elif strided.suits_engines:
        (rows,) = strided.dims
        runtime.memcpy2DAsync(there, rows.target, here, rows.source, strided.run, rows.size, kind, lane.ptr)
    else:
        kernels.copy(lane, strided, here, there)


def _address(array: Any) -> int:
    return address_of(array) if isinstance(array, np.ndarray) else int(array.data.ptr)
