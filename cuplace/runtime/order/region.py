"""Region: the bytes that a strided view touches, and what holds them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE_BYTES = 2 << 20
"""Memory of GPUs is told apart by pages of so many bytes."""


class Region:
    """Runs of ``run`` bytes each: one at ``start`` plus every combination of multiples of the strides.

    Attributes:
        start, stop: the first address, and the one after the last.
        run: bytes of one contiguous run.
        dims: (count, stride in bytes) of the dimensions over which runs repeat, the largest stride first; empty
            where all is contiguous.
    """

    __slots__ = ("start", "stop", "run", "dims")

    def __init__(self, start: int, run: int, dims: tuple[tuple[int, int], ...] = ()) -> None:
        self.start = start
        self.run = run
        self.dims = dims
        self.stop = start + run + sum([(count - 1) * stride for count, stride in dims])

    @property
    def nbytes(self) -> int:
        return self.run * math.prod([count for count, _ in self.dims])

    def same(self, other: Region) -> bool:
        """Whether it is the same region, described alike."""
        return self.start == other.start and self.run == other.run and self.dims == other.dims

    def overlaps(self, other: Region) -> bool:
        """Whether some byte belongs to both.

        >>> rows = np.zeros((4, 8), np.uint8)
        >>> left, right = region_of(rows[:, :4]), region_of(rows[:, 4:])
        >>> left.overlaps(right), left.overlaps(region_of(rows[1]))
        (False, True)
        """
        if self.start >= other.stop or other.start >= self.stop:
            return False
        if not self.dims and not other.dims:
            return True
        mine, theirs = self._starts(), other._starts()
        # The first of their runs that ends after the start of each of mine: does it begin before mine ends?
        first = np.searchsorted(theirs, mine - other.run, side="right")
        inside = first < len(theirs)
        return bool(np.any(theirs[first[inside]] < mine[inside] + self.run))

    def _starts(self) -> npt.NDArray[np.int64]:
        """The address of each run, in order."""
        starts = np.array([self.start], np.int64)
        for count, stride in self.dims:
            starts = (starts[:, None] + np.arange(count) * stride).reshape(-1)
        return np.sort(starts)


def region_of(array: Any) -> Region | None:
    """The bytes of an array of NumPy or CuPy; None where there are none.

    >>> region_of(np.zeros((4, 8), np.uint8)[:, 2:4]).dims
    ((4, 8),)
    """
    if array.nbytes == 0:
        return None
    start: int = array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr
    dims = []
    for count, stride in zip(array.shape, array.strides, strict=True):
        if count > 1 and stride:
            start += min(0, (count - 1) * stride)
            dims.append((count, abs(stride)))
    run = array.itemsize
    dims.sort(key=lambda dim: -dim[1])
    while dims and dims[-1][1] == run:
        run *= dims.pop()[0]
    return Region(start, run, tuple(dims))


def holders_of(array: Any, region: Region) -> Sequence[Any]:
    """What has a history with the bytes of an array in it: the owner of its memory, or pages of a GPU by number.

    A GPU's addresses are its own, and outlive the objects by which CuPy hands them out. Those of the host do not.
    """
    if isinstance(array, np.ndarray):
        return (memory_of(array),)
    return range(region.start // PAGE_BYTES, (region.stop - 1) // PAGE_BYTES + 1)


def memory_of(array: npt.NDArray[Any]) -> Any:
    """What owns the memory of a NumPy array: the object at the end of the chain of its bases.

    >>> whole = np.zeros(8)
    >>> memory_of(whole[2:][1:]) is whole
    True
    """
    owner: Any = array
    while True:
        base = owner.base
        if base is None:
            return owner
        if not isinstance(base, np.ndarray):
            exported = getattr(base, "buffer", None)  # the host's view of a buffer: what owns the buffer's memory
            if exported is None or not isinstance(exported.array, np.ndarray):
                return owner
            base = exported.array
        owner = base
