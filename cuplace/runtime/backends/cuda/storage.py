"""CudaPool: storage of one arena of one device, from the allocator that the user has set for CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime

from cuplace.runtime.backends.cuda.failure import is_sticky

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.lane import CudaEvent, Lane
    from cuplace.runtime.backends.cuda.stream import CudaStream


_AT_ONCE = ("Memory", "ManagedMemory")
"""Kinds of CuPy's memory, pooled or not, that exist at once. Other allocators may work in the order of a stream."""

_UNIT = 512  # the pools of CuPy round up to it
_KEPT_BLOCK = 1 << 20
_KEPT_BYTES = 64 << 20


class CudaStorage:
    """One allocation; it goes back to its allocator when ``pointer`` is dropped.

    Attributes:
        in_order: whether the allocator works in the order of a stream.
        from_driver: whether the driver is asked for each allocation, and not a pool of CuPy's.
        born: after what it may be used, where that must be waited for.
    """

    __slots__ = ("born", "from_driver", "in_order", "nbytes", "pointer", "view")

    def __init__(self, pointer: Any, nbytes: int) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.in_order = getattr(pointer.mem, "identity", type(pointer.mem).__name__) not in _AT_ONCE
        self.from_driver = self.in_order or type(pointer.mem).__name__ != "PooledMemory"
        self.born: CudaEvent | None = None
        self.view: Any = None

    def as_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """The start as an array; the same object as long as shape and dtype stay the same."""
        view = self.view
        if view is None or view.shape != shape or view.dtype is not dtype:
            view = self.view = cupy.ndarray(shape, dtype, self.pointer)
        return view


class CudaPool:
    """Allocates with a lane current. CuPy's pools keep what is freed apart by the stream that was current at its
    allocation, so each arena of a partition has free memory of its own.

    Small blocks that come back are kept, up to a bound, for the next request of their size: asking CuPy for them would
    cost as much as launching a kernel.

    Memory of an allocator that works in stream order (``cudaMallocAsync``, RMM) exists from a point of that lane on:
    ``birth`` tells what must be waited for. Memory of CuPy's default pools exists at once.
    """

    def __init__(self, stream: CudaStream, *, used_in_order: bool) -> None:
        """``used_in_order``: all memory is used first on the lane that it is allocated on."""
        self._stream = stream
        self._lane: Lane = stream.lane
        self._used_in_order = used_in_order
        self._kept: dict[int, list[CudaStorage]] = {}
        self._kept_bytes = 0
        self._allocator: Any = None  # where they come from

    def allocate(self, nbytes: int) -> CudaStorage:
        lane = self._lane
        if lane.gpu.lost is not None:
            raise lane.gpu.lost
        size = -(-nbytes // _UNIT) * _UNIT or _UNIT
        if cupy.cuda.get_allocator() == self._allocator:
            kept = self._kept.get(size)
            if kept:  # at once with the next lines: no destructor that allocates comes between
                self._kept_bytes -= size
                return kept.pop()
        return self._new(size)

    def birth(self, storage: CudaStorage) -> Sequence[CudaEvent]:
        """The events after which new storage may be used."""
        return () if storage.born is None else (storage.born,)

    @property
    def unused(self) -> int:
        return self._kept_bytes

    def free(self, storage: CudaStorage) -> None:
        size, lane = storage.nbytes, self._lane
        if storage.in_order:
            lane.gpu.taken -= size
            with lane.device, lane.on:  # its allocator may free it in the order of the stream that is current
                storage.view = storage.pointer = None
        elif size <= _KEPT_BLOCK and self._kept_bytes + size <= _KEPT_BYTES:
            self._kept.setdefault(size, []).append(storage)
            self._kept_bytes += size
        else:
            lane.gpu.taken -= size
            storage.view = storage.pointer = None

    def _new(self, size: int) -> CudaStorage:
        lane = self._lane
        allocator = cupy.cuda.get_allocator()
        if allocator != self._allocator:
            self._forget()
            self._allocator = allocator
        try:
            with lane.device, lane.on:
                storage = CudaStorage(cupy.cuda.alloc(size), size)
        except (runtime.CUDARuntimeError, OverflowError) as error:
            if is_sticky(error):
                raise lane.gpu.failed(error) from None
            raise MemoryError(str(error)) from None
        except RuntimeError as error:
            if type(error).__name__ == "OutOfMemoryError":  # PyTorch's is no MemoryError
                raise MemoryError(str(error)) from None
            raise
        lane.gpu.taken += size
        if storage.in_order and not self._used_in_order:
            storage.born = lane.record(self._stream, 0)
        return storage

    def _forget(self) -> None:
        """Give the kept blocks back to where they came from."""
        self._lane.gpu.taken -= self._kept_bytes
        self._kept.clear()
        self._kept_bytes = 0

    def trim(self) -> int:
        """Return unused memory to the system: what CuPy's pool keeps for this arena, not what it keeps for others.

        Other allocators are left to whoever has set them: they keep the memory of all their users together.
        """
        lane, kept = self._lane, self._kept_bytes
        pool = pool_of(self._allocator)
        if pool is None or lane.gpu.lost is not None:
            self._forget()
            return kept
        with lane.device:
            before = int(pool.total_bytes())
            self._forget()
            pool.free_all_blocks(stream=lane.on)
            return before - int(pool.total_bytes())


def pool_of(allocator: Any) -> Any:
    """CuPy's memory pool that an allocator takes memory from, which keeps what each stream has freed apart; or None."""
    owner = getattr(allocator, "__self__", None)
    return owner if isinstance(owner, cupy.cuda.MemoryPool) else None
