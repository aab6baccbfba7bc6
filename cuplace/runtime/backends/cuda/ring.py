"""PinnedRing: pinned host memory that copies between host and GPUs pass through. Knows nothing of CUDA.

Blocks have the size that was asked for. A block that comes back carries the events of the copies that still use it,
and is handed out again when they are complete. The ring grows in slabs up to its limit; then whoever wants a block
waits for the oldest one: back-pressure, which is counted. Whoever holds a block gives it back before asking for
another one, so that no two callers wait for each other.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cuplace.runtime.backends.condition import Condition
from cuplace.runtime.backends.interrupts import Uninterrupted

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Event

ALIGNMENT = 256

FIRST_SLAB_BYTES = 8 << 20
SLAB_BYTES = 64 << 20
"""The ring grows by this much: pinning takes the driver about half a millisecond a MiB, so little at first."""

MOST_PIECES = 4
"""Pieces of the largest block that a caller may ask for."""

_PIECES = 2 * MOST_PIECES  # pieces of a slab: filling one overlaps with copying others, and any block fits somewhere


class Slab:
    """One allocation of pinned memory, with its unused ranges in order of their place."""

    __slots__ = ("address", "free", "memory", "nbytes")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.memory = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        self.free: tuple[tuple[int, int], ...] = ((0, nbytes),)  # (start, size)

    def carve(self, nbytes: int) -> int | None:
        """Take a range from the first gap that is large enough; where it starts, or None."""
        while True:
            before = self.free
            i = next((i for i, (_, size) in enumerate(before) if size >= nbytes), None)
            if i is None:
                return None
            start, size = before[i]
            rest = ((start + nbytes, size - nbytes),) if size > nbytes else ()
            after = before[:i] + rest + before[i + 1 :]
            if self.free is before:  # else a destructor has carved or put back meanwhile
                self.free = after
                return start

    def put_back(self, start: int, nbytes: int) -> None:
        """Give a range back; neighbours join."""
        while True:
            before = self.free
            after = _joined(sorted((*before, (start, nbytes))))
            if self.free is before:
                self.free = after
                return


def _joined(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for start, size in ranges:
        if joined and sum(joined[-1]) == start:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        else:
            joined.append((start, size))
    return tuple(joined)


class PinnedBlock:
    """Some bytes of pinned memory. ``address`` is valid on the host and on every GPU."""

    __slots__ = ("address", "events", "nbytes", "slab", "start", "turn")

    def __init__(self, slab: Slab, start: int, nbytes: int) -> None:
        self.slab = slab
        self.start = start
        self.nbytes = nbytes
        self.address = slab.address + start
        self.events: Sequence[Event] = ()
        self.turn = 0  # in which order blocks came back

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int = 0) -> npt.NDArray[Any]:
        """The bytes from ``offset`` on as a NumPy array."""
        return np.ndarray(shape, dtype, self.slab.memory, self.start + offset)


class RingFullError(Exception):
    """There is no block at present: wait for room in ``ring``, outside of what must not be interrupted."""

    def __init__(self, ring: PinnedRing) -> None:
        super().__init__()
        self.ring = ring


class PinnedRing:
    """Hands out blocks of pinned memory and takes them back.

    Attributes:
        pressure_waits: how often a caller waited since the ring was full.
        peak: the most bytes that were pinned at a time.
    """

    def __init__(
        self, limit: int, allocate: Callable[[int], int], free: Callable[[int], None],
        query: Callable[[Any], bool], synchronize: Callable[[Any], None],
    ) -> None:  # fmt: skip
        """``allocate(nbytes) -> address`` and ``free(address)`` are the driver's; the others are the backend's."""
        self.limit = limit
        self.pressure_waits = 0
        self.peak = 0
        self._allocate = allocate
        self._free = free
        self._query = query
        self._synchronize = synchronize
        # Re-entrant, and nothing is taken for granted after a call: a garbage collection may run a destructor that
        # copies.
        self._changed = Condition(threading.RLock())
        self._slabs: list[Slab] = []
        self._largest = 0  # bytes of the largest slab
        self._may_grow = True
        self._resting: dict[int, deque[PinnedBlock]] = {}  # by size, the blocks that came back, the oldest first
        self._turns = itertools.count()

    def piece_for(self, nbytes: int) -> int:
        """What a copy of so many bytes is cut into: pieces of at most so many bytes.

        Raises:
            MemoryError: there is no pinned memory at all.
        """
        with Uninterrupted(), self._changed:  # else memory that was just pinned could be lost
            if not self._largest:
                self._grow(ALIGNMENT)
            if nbytes > self._largest // _PIECES and self._largest < SLAB_BYTES:
                self._grow(SLAB_BYTES)
        return min(nbytes, max(self._largest // _PIECES // ALIGNMENT, 1) * ALIGNMENT)

    @property
    def pinned_bytes(self) -> int:
        return sum(slab.nbytes for slab in self._slabs)

    def owns(self, address: int) -> bool:
        """Whether an address lies in this memory."""
        return any(slab.address <= address < slab.address + slab.nbytes for slab in self._slabs)

    def acquire(self, nbytes: int) -> PinnedBlock:
        """A block of at least ``nbytes`` (at most ``MOST_PIECES`` pieces) that nothing uses; waits while the ring is
        full.

        Raises:
            MemoryError: there is no pinned memory at all.
        """
        block, waited = self.take(nbytes), False
        while block is None:
            self.wait_for_room(waited)
            block, waited = self.take(nbytes), True
        return block

    def take(self, nbytes: int) -> PinnedBlock | None:
        """The same without a wait: None while the ring is full."""
        size = _rounded(nbytes)
        with self._changed:
            return self._rested(size) or self._carved(size)

    def take_in_order(self, nbytes: int, wait: Callable[[Any], None]) -> PinnedBlock | None:
        """A block that the caller only uses on a stream. Where the ring is full it is one still in use, after the
        stream was made to ``wait`` for its events: the host does not wait. None where no block is large enough."""
        size = _rounded(nbytes)
        with self._changed:
            block = self._rested(size) or self._carved(size)
            if block is None:
                block = self._oldest(at_least=size)
                if block is None or not self._unrest(block, block.turn):
                    return None
                for event in block.events:
                    wait(event)
            return block

    def wait_for_room(self, again: bool = False) -> Event | None:
        """Wait for the copies that use the block that came back first, or until a block comes back. An interrupt ends
        it. ``again``: the caller has waited before, for the same block.

        Returns:
            What was waited for, where it is known.
        """
        with self._changed:
            self.pressure_waits += not again
            oldest = self._oldest()
            if oldest is None:
                self._changed.wait()  # other threads hold all blocks, and give them back
                return None
            events = oldest.events
        for event in events:
            self._synchronize(event)
        return events[-1] if events else None

    def release(self, block: PinnedBlock, events: Sequence[Event]) -> None:
        """Take a block back; ``events`` mark the end of the copies that use it."""
        with self._changed:
            block.events = events
            block.turn = next(self._turns)
            self._resting.setdefault(block.nbytes, deque()).append(block)
            self._changed.notify_all()

    def free_unused(self) -> int:
        """Return the slabs that no copy uses to the system; how many bytes they were."""
        with Uninterrupted(), self._changed:
            self._collect()
            unused = [slab for slab in self._slabs if slab.free == ((0, slab.nbytes),)]
            self._slabs = [slab for slab in self._slabs if slab not in unused]
            for slab in unused:
                self._free(slab.address)
            self._largest = max([slab.nbytes for slab in self._slabs], default=0)
            self._may_grow = True
            return sum(slab.nbytes for slab in unused)

    def _rested(self, size: int) -> PinnedBlock | None:
        """The oldest block of exactly this size, if it is complete."""
        blocks = self._resting.get(size)
        while blocks:
            block = blocks[0]
            turn = block.turn
            if not self._is_complete(block):
                return None
            if self._unrest(block, turn):
                return block
        return None

    def _oldest(self, at_least: int = 0) -> PinnedBlock | None:
        """The block that came back first, of those that are large enough."""
        heads = [blocks[0] for size, blocks in list(self._resting.items()) if blocks and size >= at_least]
        return min(heads, key=lambda block: block.turn, default=None)

    def _carved(self, size: int) -> PinnedBlock | None:
        for slab in self._slabs:
            start = slab.carve(size)
            if start is not None:
                return PinnedBlock(slab, start, size)
        if self._collect() or self._grow(size):
            return self._carved(size)
        return None

    def _grow(self, size: int) -> bool:
        """Add a slab of at least ``size``, if the limit and the driver allow it."""
        pinned = self.pinned_bytes
        nbytes = min(max(SLAB_BYTES if pinned else FIRST_SLAB_BYTES, size), self.limit - pinned)
        if pinned and (not self._may_grow or nbytes < size):
            return False
        try:
            address = self._allocate(nbytes)
        except MemoryError:
            if pinned:
                self._may_grow = False  # what is there must do
                return False
            raise
        self._slabs.append(Slab(address, nbytes))
        self._largest = max(self._largest, nbytes)
        self.peak = max(self.peak, pinned + nbytes)
        return True

    def _collect(self) -> int:
        """Cut complete blocks back into free ranges, for other sizes; how many they were."""
        count = 0
        for blocks in list(self._resting.values()):
            while blocks:
                block = blocks[0]
                turn = block.turn
                if not self._is_complete(block):
                    break
                if self._unrest(block, turn):
                    block.slab.put_back(block.start, block.nbytes)
                    count += 1
        return count

    def _is_complete(self, block: PinnedBlock) -> bool:
        return all(map(self._query, block.events))

    def _unrest(self, block: PinnedBlock, turn: int) -> bool:
        """Take out the first of the resting blocks of its size, if it still is ``block``, and has not been used since
        it came back in this turn: a destructor may have taken it and have given it back."""
        blocks = self._resting[block.nbytes]
        if not blocks or blocks[0] is not block or block.turn != turn:
            return False
        blocks.popleft()
        return True


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT or ALIGNMENT
