"""CudaLatch: a kernel that holds a stream until the host writes a word of pinned memory."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING

import numpy as np

from cuplace.runtime.backends.cuda import kernels
from cuplace.runtime.backends.cuda.lane import query

if TYPE_CHECKING:
    from collections.abc import Callable

    from cuplace.runtime.backends.cuda.lane import CudaEvent
    from cuplace.runtime.backends.cuda.stream import CudaStream

TIMEOUT_NS = 10_000_000_000
"""A forgotten latch opens by itself after ten seconds, so that it cannot hang a GPU."""

_SLOTS = 512
_SLOT_BYTES = 64  # a cache line: the GPU polls one word while the host writes others
_OUTCOME = 4  # offset of the kernel's answer


class CudaLatch:
    """A gate in a stream, opened by the host."""

    __slots__ = ("_event", "_gate", "address")

    def __init__(self, address: int) -> None:
        self.address = address
        self._gate = np.ctypeslib.as_array((ctypes.c_uint32 * 2).from_address(address))
        self._gate[:] = 0
        self._event: CudaEvent | None = None

    @property
    def held(self) -> bool:
        """Whether the stream stands, or will stand, at the latch."""
        return not self._gate[0] and not self.passed

    @property
    def timed_out(self) -> bool:
        """Whether it opened by itself, since nobody released it for too long."""
        return int(self._gate[1]) == 2

    @property
    def passed(self) -> bool:
        """Whether the kernel has ended, so that nothing reads the words any more."""
        return self._event is not None and query(self._event)

    def release(self) -> None:
        """Let the stream go on. Releasing twice does nothing."""
        self._gate[0] = 1

    def ends_with(self, event: CudaEvent) -> None:
        """``event`` marks the end of the kernel."""
        self._event = event

    def detach(self) -> None:
        """The words are about to be somebody else's: keep the values."""
        self._gate = self._gate.copy()


class Latches:
    """The words that latches are made of: one page of pinned memory, allocated at the first use."""

    def __init__(self, allocate: Callable[[int], int], free: Callable[[int], None]) -> None:
        self._allocate = allocate
        self._free = free
        self._page = 0
        self._free_slots: list[int] = []
        self._in_use: list[CudaLatch] = []
        self._lock = threading.Lock()

    def hold(self, stream: CudaStream) -> CudaLatch:
        """Enqueue a latch. A slot is used again only after its kernel has ended."""
        with self._lock:
            latch = CudaLatch(self._slot())
            self._in_use.append(latch)
        stream.until_recorded(latch.ends_with)
        if stream.lane.gpu.lost is None:
            kernels.latch(stream.lane, latch.address, latch.address + _OUTCOME, TIMEOUT_NS)
        return latch

    def release(self) -> None:
        """Open all."""
        for latch in self._in_use:
            latch.release()

    def close(self) -> None:
        """Give the page back; all streams must be through."""
        self._forget(self._in_use)
        if self._page:
            self._free(self._page)
            self._page = 0

    def _slot(self) -> int:
        if not self._page:
            self._page = self._allocate(_SLOTS * _SLOT_BYTES)
            self._free_slots = [self._page + i * _SLOT_BYTES for i in range(_SLOTS)]
        if not self._free_slots:
            self._forget([latch for latch in self._in_use if latch.passed])
        if not self._free_slots:
            raise MemoryError(f"more than {_SLOTS} latches are held at the same time")
        return self._free_slots.pop()

    def _forget(self, latches: list[CudaLatch]) -> None:
        for latch in latches:
            latch.detach()
            self._free_slots.append(latch.address)
        self._in_use = [latch for latch in self._in_use if latch not in latches]
