"""Mover: how a box travels between two devices: inside a GPU, from GPU to GPU, or through pinned memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from cupy.cuda import runtime

from cuplace.runtime.backends.cuda import kernels
from cuplace.runtime.backends.cuda.lane import CudaEvent
from cuplace.runtime.backends.cuda.ring import MOST_PIECES, RingFullError
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.pieces import pieces
from cuplace.runtime.staging import NO_STAGING, Staging, chunking, most_staging
from cuplace.runtime.strided import StridedCopy, contiguous_strides, strided_copy

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.gpu import Gpu
    from cuplace.runtime.backends.cuda.lane import Lane
    from cuplace.runtime.backends.cuda.ring import PinnedRing
    from cuplace.runtime.backends.cuda.stream import CudaStream
    from cuplace.runtime.device import Device

_TO_HOST = 2  # cudaMemcpyDeviceToHost
_TO_DEVICE = 1  # cudaMemcpyHostToDevice
_ON_DEVICE = 3  # cudaMemcpyDeviceToDevice
_ANY = 4  # cudaMemcpyDefault: CUDA finds out from the addresses


class Mover:
    """Copies boxes from one device to another one. ``path`` says how they travel; None: as plans say."""

    path: str | None = ""

    def copy(self, stream: CudaStream, source: Any, target: Any, staging: Staging = NO_STAGING) -> None:
        """Enqueue the copy of one CuPy array to another of equal shape and dtype; they are not empty.

        What has to be packed passes through the memory that ``staging`` gives, else through new memory.

        Raises:
            RingFullError: nothing was enqueued, since pinned memory has to be waited for.
        """
        raise NotImplementedError


class LocalMover(Mover):
    """Inside one GPU: one copy or one kernel."""

    path: str | None = "local"

    def copy(self, stream: CudaStream, source: Any, target: Any, staging: Staging = NO_STAGING) -> None:
        copy_on(stream.lane, box_copy(target, source.strides, target.strides), source.data.ptr, target.data.ptr)


class PeerMover(Mover):
    """From GPU to GPU by their link. Short rows are packed before, and unpacked where they arrive, on the stream
    ``arrival`` of the target's GPU."""

    path = "peer"

    def __init__(self, source: Device, target: Device, gpus: tuple[Gpu, Gpu], arrival: CudaStream) -> None:
        self._source = source
        self._target = target
        self._ordinals = gpus[0].ordinal, gpus[1].ordinal
        self._arrival = arrival

    def copy(self, stream: CudaStream, source: Any, target: Any, staging: Staging = NO_STAGING) -> None:
        strided = box_copy(target, source.strides, target.strides)
        if strided.is_flat:
            self._send(stream.lane, source.data.ptr, target.data.ptr, strided.run)
        elif strided.suits_engines:
            (rows,) = strided.dims
            runtime.memcpy2DAsync(
                target.data.ptr, rows.target, source.data.ptr, rows.source, strided.run, rows.size, _ANY,
                stream.lane.ptr,
            )  # fmt: skip
        else:
            self._copy_packed(stream, source, target, staging)

    def _send(self, lane: Lane, source: int, target: int, nbytes: int) -> None:
        runtime.memcpyPeerAsync(target, self._ordinals[1], source, self._ordinals[0], nbytes, lane.ptr)

    def _copy_packed(self, stream: CudaStream, source: Any, target: Any, staging: Staging) -> None:
        """Pack, copy and unpack, chunk by chunk; a side that is contiguous needs no step of its own."""
        sides: list[_Memory | None] = [
            None if is_contiguous(array) else _staged(memory, device, stream, array.nbytes)
            for array, memory, device in zip((source, target), staging, (self._source, self._target), strict=True)
        ]
        sent, received = sides
        size, count = chunking(target.nbytes, *[side.nbytes for side in sides if side is not None])
        arrival = self._arrival
        cut = list(pieces(target.shape, target.itemsize, size))
        unpacked: list[CudaEvent] = []
        for i, part in enumerate(cut):
            here, there = source[part], target[part]
            from_address, to_address = here.data.ptr, there.data.ptr
            if sent is not None:
                from_address = sent.address + i % count * size
                pack(stream.lane, here, from_address)
            if received is not None:
                to_address = received.address + i % count * size
                if i >= count:
                    stream.lane.wait(unpacked[i - count])
            self._send(stream.lane, from_address, to_address, there.nbytes)
            if received is not None:
                arrival.lane.wait(stream.lane.record(stream, 0))
                stream.ends_on(arrival)
                unpack(arrival.lane, to_address, there)
                if len(cut) > count:
                    unpacked.append(arrival.lane.record(arrival, 0))


class StagedMover(Mover):
    """From GPU to GPU where they have no direct way: through the pinned ring, piece by piece. The host only
    enqueues: a piece of the ring is used again when the stream has seen that its last copy is complete."""

    path = "staged"

    def __init__(self, source: Device, target: Device, arrival: CudaStream, ring: PinnedRing) -> None:
        self._source = source
        self._target = target
        self._arrival = arrival
        self._ring = ring

    def copy(self, stream: CudaStream, source: Any, target: Any, staging: Staging = NO_STAGING) -> None:
        ring, arrival = self._ring, self._arrival
        piece = piece_for(ring, target.nbytes, staging)
        cut = list(pieces(target.shape, target.itemsize, piece))
        count = min(len(cut), MOST_PIECES)
        block = ring.take_in_order(piece * count, stream.lane.wait)
        if block is None:
            raise RingFullError(ring)
        stream.until_recorded(lambda event: ring.release(block, (event,)))
        there = Packing(self._source, stream, stream.lane, piece, staging.sent)
        here = Packing(self._target, stream, arrival.lane, piece, staging.received)
        arrived: list[CudaEvent] = []
        for i, part in enumerate(cut):
            address = block.address + i % count * piece
            if i >= count:
                stream.lane.wait(arrived[i - count])
            there.fetch(source[part], address)
            arrival.lane.wait(stream.lane.record(stream, 0))
            stream.ends_on(arrival)
            here.deliver(address, target[part])
            if len(cut) > count:
                arrived.append(arrival.lane.record(arrival, 0))


class SlowMover(Mover):
    """As ``mover``, by a link that is made slower on demand: the GPU spins for a while before each copy."""

    def __init__(self, mover: Mover, seconds_per_byte: float) -> None:
        self.path = mover.path
        self._mover = mover
        self._seconds_per_byte = seconds_per_byte

    def copy(self, stream: CudaStream, source: Any, target: Any, staging: Staging = NO_STAGING) -> None:
        kernels.spin(stream.lane, round(target.nbytes * self._seconds_per_byte * 1e9))
        self._mover.copy(stream, source, target, staging)


class Packing:
    """Copies between one device and pinned memory. What the copy engines do badly goes through packed memory of the
    device, the same for all pieces, since they follow one another on one lane."""

    def __init__(self, device: Device, stream: CudaStream, lane: Lane, nbytes: int, memory: Any = None) -> None:
        """``memory`` is an array of at least so many bytes; without it they are allocated when they are needed."""
        self._lane = lane
        self._owner = device, stream
        self._nbytes = nbytes
        self._memory: int | None = None if memory is None else memory.data.ptr

    def fetch(self, source: Any, address: int) -> None:
        if not copy_by_engine(self._lane, source, address, to_host=True):
            pack(self._lane, source, self._packed())
            runtime.memcpyAsync(address, self._packed(), source.nbytes, _TO_HOST, self._lane.ptr)

    def deliver(self, address: int, target: Any) -> None:
        if not copy_by_engine(self._lane, target, address, to_host=False):
            runtime.memcpyAsync(self._packed(), address, target.nbytes, _TO_DEVICE, self._lane.ptr)
            unpack(self._lane, self._packed(), target)

    def _packed(self) -> int:
        if self._memory is None:
            self._memory = stage(*self._owner, self._lane, self._nbytes)
        return self._memory


class _Memory(NamedTuple):
    address: int
    nbytes: int


def _staged(memory: Any, device: Device, stream: CudaStream, nbytes: int) -> _Memory:
    """The staging memory that was given, or new memory for a copy of so many bytes."""
    if memory is not None:
        return _Memory(memory.data.ptr, memory.nbytes)
    size = most_staging(nbytes)
    return _Memory(stage(device, stream, stream.lane, size), size)


def piece_for(ring: PinnedRing, nbytes: int, staging: Staging) -> int:
    """What a copy by the pinned ring is cut into: pieces that also fit the staging memory that was given.

    Raises:
        MemoryError: there is no pinned memory at all.
    """
    rooms: list[int] = [memory.nbytes for memory in staging if memory is not None]
    return min(ring.piece_for(nbytes), *rooms, nbytes)


def stage(device: Device, stream: CudaStream, lane: Lane, nbytes: int) -> int:
    """The address of device memory that lives until the end of what ``stream`` is enqueueing; ``lane`` uses it
    first."""
    block, hazards = device.memory.allocate(TRANSFER, nbytes, (nbytes,), np.dtype(np.uint8))
    stream.until_recorded(lambda event: block.arena.release(block, (event,)))
    for event in hazards:
        assert isinstance(event, CudaEvent)
        lane.wait(event)
    return int(block.storage.pointer.ptr)


def box_copy(like: Any, source: tuple[int, ...], target: tuple[int, ...]) -> StridedCopy:
    """The copy of a box with the shape and itemsize of an array, which is not empty, between these strides."""
    strided = strided_copy(like.shape, like.itemsize, source, target)
    assert strided is not None
    return strided


def copy_on(lane: Lane, strided: StridedCopy, source: int, target: int) -> None:
    """Enqueue a copy inside the memory of one GPU."""
    if strided.is_flat:
        runtime.memcpyAsync(target, source, strided.run, _ON_DEVICE, lane.ptr)
    else:
        kernels.copy(lane, strided, source, target)


def pack(lane: Lane, source: Any, address: int) -> None:
    """Enqueue a copy of an array to contiguous memory of the same GPU."""
    dense = contiguous_strides(source.shape, source.itemsize)
    copy_on(lane, box_copy(source, source.strides, dense), source.data.ptr, address)


def unpack(lane: Lane, address: int, target: Any) -> None:
    """Enqueue a copy of contiguous memory to an array of the same GPU."""
    dense = contiguous_strides(target.shape, target.itemsize)
    copy_on(lane, box_copy(target, dense, target.strides), address, target.data.ptr)


def copy_by_engine(lane: Lane, array: Any, address: int, *, to_host: bool) -> bool:
    """Enqueue a copy between an array and contiguous pinned memory, if a copy engine does that well."""
    dense = contiguous_strides(array.shape, array.itemsize)
    strides = (array.strides, dense) if to_host else (dense, array.strides)
    strided = box_copy(array, *strides)
    ends = (address, array.data.ptr) if to_host else (array.data.ptr, address)
    kind = _TO_HOST if to_host else _TO_DEVICE
    if strided.is_flat:
        runtime.memcpyAsync(*ends, strided.run, kind, lane.ptr)
        return True
    if strided.suits_engines:
        (rows,) = strided.dims
        runtime.memcpy2DAsync(
            ends[0], rows.target, ends[1], rows.source, strided.run, rows.size, kind, lane.ptr
        )  # fmt: skip
        return True
    return False


def is_contiguous(array: Any) -> bool:
    """Whether the elements of an array lie one after the other, in C order."""
    return bool(array.flags.c_contiguous)
