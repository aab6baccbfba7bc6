"""Storage of the simulator: one range of bytes an arena, reused as soon and as tightly as it can be.

Real memory addresses are reused across arrays of all sizes, so a block that comes back too early is overwritten
soon. A pool by exact sizes would hide that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
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

    def __init__(self, check: Callable[[], None] | None = None) -> None:
        """``check`` is called at each allocation, and raises MemoryError where there is to be no memory."""
        self._check = check
        self._free: list[Range] = []

    def allocate(self, nbytes: int) -> Range:
        if self._check is not None:
            self._check()
        return self._find(nbytes)

    def _find(self, nbytes: int) -> Range:
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT or ALIGNMENT
        for i in range(len(self._free) - 1, -1, -1):
            free = self._free[i]
            if free.nbytes < size:
                continue
            if free.nbytes == size:
                return self._free.pop(i)
            taken = Range(free.segment, free.start, size)
            free.start += size
            free.nbytes -= size
            return taken
        self._grow(max(size, _GROWTH))
        return self._find(nbytes)

    def free(self, block: Range) -> None:
        merged = block
        for other in [free for free in self._free if free.segment is block.segment]:
            if other.start + other.nbytes == merged.start or merged.start + merged.nbytes == other.start:
                self._free.remove(other)
                start = min(other.start, merged.start)
                merged = Range(block.segment, start, other.nbytes + merged.nbytes)
        self._free.append(merged)

    def trim(self) -> int:
        """Forget segments that are entirely free; how many bytes they were."""
        whole = [free for free in self._free if free.nbytes == free.segment.nbytes]
        self._free = [free for free in self._free if free not in whole]
        return sum(free.nbytes for free in whole)

    def _grow(self, nbytes: int) -> None:
        if nbytes > sys.maxsize - ALIGNMENT:
            raise MemoryError(f"{nbytes} bytes are more than there are addresses")
        raw = np.full(nbytes + ALIGNMENT, 0xA5, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        self._free.append(Range(raw[start : start + nbytes], 0, nbytes))
