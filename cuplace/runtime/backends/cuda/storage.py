"""CudaPool: storage of one arena of one device, from the allocator that the user has set for CuPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import cupy
from cupy.cuda import runtime

from cuplace.runtime.backends.cuda.failure import is_sticky

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.lane import CudaEvent, Lane
    from cuplace.runtime.backends.cuda.stream import CudaStream


class CudaStorage:
    """One allocation; it goes back to its allocator when ``pointer`` is dropped."""

    __slots__ = ("born", "pointer")

    def __init__(self, pointer: Any, born: CudaEvent | None) -> None:
        self.pointer = pointer
        self.born = born


class CudaPool:
    """Allocates with a lane current. CuPy's pools keep what is freed apart by the stream that was current at its
    allocation, so each arena of a partition has free memory of its own.

    Of an allocator that works in stream order (``cudaMallocAsync``) memory exists from a point of that lane on:
    ``birth`` tells who must wait for it. Memory of CuPy's default pools exists at once.
    """

    def __init__(self, stream: CudaStream, *, used_in_order: bool) -> None:
        """``used_in_order``: all memory is used first on the lane that it is allocated on."""
        self._stream = stream
        self._lane: Lane = stream.lane
        self._used_in_order = used_in_order

    def allocate(self, nbytes: int) -> CudaStorage:
        lane = self._lane
        if lane.gpu.lost is not None:
            raise lane.gpu.lost
        try:
            with lane.device, lane.on:
                pointer = cupy.cuda.alloc(nbytes)
        except (runtime.CUDARuntimeError, OverflowError) as error:
            if is_sticky(error):
                raise lane.gpu.failed(error) from None
            raise MemoryError(str(error)) from None
        born = None
        if not self._used_in_order and isinstance(pointer.mem, cupy.cuda.MemoryAsync):
            born = lane.record(self._stream, 0)
        return CudaStorage(pointer, born)

    def birth(self, storage: CudaStorage) -> Sequence[CudaEvent]:
        """The events after which new storage may be used."""
        return () if storage.born is None else (storage.born,)

    def free(self, storage: CudaStorage) -> None:
        storage.pointer = None

    def trim(self) -> int:
        """Return what CuPy's pool keeps for this arena to the system. Allocators that keep nothing return nothing."""
        free_all_blocks: Callable[..., Any] | None = getattr(
            getattr(cupy.cuda.get_allocator(), "__self__", None), "free_all_blocks", None
        )
        lane = self._lane
        if free_all_blocks is None or lane.gpu.lost is not None:
            return 0
        with lane.device:
            before = int(runtime.memGetInfo()[0])
            free_all_blocks(stream=lane.on)
            return int(runtime.memGetInfo()[0]) - before
