"""Storage of the simulator: one range of bytes an arena, reused as soon and as tightly as it can be.

Real memory addresses are reused across arrays of all sizes, so a block that comes back too early is overwritten
soon. A pool by exact sizes would hide that.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

ALIGNMENT = 64
_GROWTH = 1 << 20


class Range:
    """A range of bytes of a segment."""

    __slots__ = ("segment", "start", "nbytes")

    def __init__(self, segment: np.ndarray[Any, Any], start: int, nbytes: int) -> None:
        self.segment = segment
        self.start = start
        self.nbytes = nbytes

    def as_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        return np.ndarray(shape, dtype, self.segment, self.start)


class RangeArena:
    """First fit over the free ranges, the most recently freed first; neighbours join again when freed."""

    birth = None  # memory can be used at once

    def __init__(self) -> None:
        self._free: list[Range] = []

    @property
    def unused(self) -> int:
        return sum(free.nbytes for free in self._free)

    def allocate(self, nbytes: int) -> Range:
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT or ALIGNMENT
        for i in range(len(self._free) - 1, -1, -1):
            try:
                free = self._free[i]
            except IndexError:  # garbage was collected meanwhile, and a destructor has allocated
                continue
            if free.nbytes < size:
                continue
            if free.nbytes == size:
                return self._free.pop(i)
            start = free.start
            free.start += size  # before anything is made, which may collect garbage, which may allocate
            free.nbytes -= size
            return Range(free.segment, start, size)
        self._grow(max(size, _GROWTH))
        return self.allocate(nbytes)

    def free(self, block: Range) -> None:
        merged = Range(block.segment, block.start, block.nbytes)
        for other in list(self._free):
            if other.segment is not merged.segment or other not in self._free:
                continue
            if other.start + other.nbytes == merged.start or merged.start + merged.nbytes == other.start:
                self._free.remove(other)
                merged.start = min(other.start, merged.start)
                merged.nbytes += other.nbytes
        self._free.append(merged)

    def trim(self) -> int:
        """Forget segments that are entirely free; how many bytes they were."""
        nbytes = 0
        for free in list(self._free):
            if free in self._free and free.nbytes == free.segment.nbytes:
                self._free.remove(free)  # at once with the check: no destructor comes between
                nbytes += free.nbytes
        return nbytes

    def _grow(self, nbytes: int) -> None:
        if nbytes > sys.maxsize - ALIGNMENT:
            raise MemoryError(f"{nbytes} bytes are more than there are addresses")
        raw = np.full(nbytes + ALIGNMENT, 0xA5, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        self._free.append(Range(raw[start : start + nbytes], 0, nbytes))
