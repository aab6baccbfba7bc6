"""CudaLatch: a kernel that holds a stream until the host writes a word of pinned memory."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cuplace.runtime.backends.cuda import hooks, kernels
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
_ARRIVED = 8  # offset of the word that tells that the stream has come to it

NEVER_NS = 1 << 62
"""The time-out of latches that work of the host opens, however long it takes."""

Regions = Sequence[hooks.Region]


class CudaLatch:
    """A gate in a stream, opened by the host."""

    __slots__ = ("_event", "_gate", "address", "stands_in")

    def __init__(self, address: int, stands_in: bool = False) -> None:
        self.address = address
        self.stands_in = stands_in  # for work of the host, which opens it
        self._gate = np.ctypeslib.as_array((ctypes.c_uint32 * 3).from_address(address))
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
    def arrived(self) -> bool:
        """Whether the stream has come to a latch that tells so."""
        return bool(self._gate[2])

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
    """The words that latches are made of: pages of pinned memory, allocated when they are needed."""

    def __init__(self, allocate: Callable[[int], int], free: Callable[[int], None]) -> None:
        self._allocate = allocate
        self._free = free
        self._pages: list[int] = []
        self._free_slots: list[int] = []
        self._in_use: list[CudaLatch] = []
        self._lock = threading.RLock()  # re-entrant: a destructor that computes may run under it

    def hold(self, stream: CudaStream) -> CudaLatch:
        """Enqueue a latch. A slot is used again only after its kernel has ended."""
        latch = self._latch(stream, False)
        if stream.lane.gpu.lost is None:
            kernels.latch(stream.lane, latch.address, latch.address + _OUTCOME, TIMEOUT_NS)
        return latch

    def stand_in(self, stream: CudaStream, uses: tuple[Regions, Regions]) -> CudaLatch:
        """Enqueue a latch that stands for work of the host on these regions (those read, those written): it tells
        when the stream has come to it, and holds until it is released."""
        latch, lane = self._latch(stream, True), stream.lane
        if lane.gpu.lost is None:
            kernels.arrive(lane, latch.address + _ARRIVED)
            kernels.latch(lane, latch.address, latch.address + _OUTCOME, NEVER_NS, uses)
        return latch

    def release(self) -> None:
        """Open all that do not stand in for work of the host."""
        for latch in self._in_use:
            if not latch.stands_in:
                latch.release()

    def close(self) -> None:
        """Give the page back; all streams must be through."""
        self._forget(self._in_use)
        for page in self._pages:
            self._free(page)
        self._pages = []

    def _latch(self, stream: CudaStream, stands_in: bool) -> CudaLatch:
        with self._lock:
            latch = CudaLatch(self._slot(), stands_in)
            self._in_use.append(latch)
        stream.until_recorded(latch.ends_with)
        return latch

    def _slot(self) -> int:
        if not self._free_slots:
            self._forget([latch for latch in self._in_use if latch.passed])
        if not self._free_slots:
            page = self._allocate(_SLOTS * _SLOT_BYTES)
            self._pages.append(page)
            self._free_slots += [page + i * _SLOT_BYTES for i in range(_SLOTS)]
        return self._free_slots.pop()

    def _forget(self, latches: list[CudaLatch]) -> None:
        in_use = self._in_use
        for latch in list(latches):
            if latch in in_use:  # at once with the next line: else a destructor that holds a stream could do the same
                in_use.remove(latch)
                latch.detach()
                self._free_slots.append(latch.address)
