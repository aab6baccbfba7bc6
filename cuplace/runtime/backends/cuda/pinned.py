"""PinnedPool: the pinned host memory of arrays. Knows nothing of CUDA; arrays in it are NumPy's."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from cuplace.runtime.backends.cuda.ring import ALIGNMENT, SLAB_BYTES, Slab

FIRST_BYTES = 4 << 20  # pinning takes time, so little at first

Host = npt.NDArray[Any]


class PinnedStorage:
    """Some bytes of a slab."""

    __slots__ = ("nbytes", "slab", "start")

    def __init__(self, slab: Slab, start: int, nbytes: int) -> None:
        self.slab = slab
        self.start = start
        self.nbytes = nbytes

    def as_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Host:
        """The start as an array."""
        return np.ndarray(shape, dtype, self.slab.memory, self.start)


class PinnedPool:
    """Pinned memory for all devices, in slabs that stay pinned until they are trimmed.

    It is used under the scheduler's lock.
    """

    birth = None  # memory can be used at once

    def __init__(self, allocate: Callable[[int], int], free: Callable[[int], None]) -> None:
        """``allocate(nbytes) -> address`` and ``free(address)`` are the driver's."""
        self._allocate = allocate
        self._free = free
        self._slabs: list[Slab] = []  # by address

    @property
    def unused(self) -> int:
        """Bytes that are pinned and hold nothing."""
        return sum(size for slab in self._slabs for _, size in slab.free)

    def allocate(self, nbytes: int) -> PinnedStorage:
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT or ALIGNMENT
        for slab in self._slabs:
            start = slab.carve(size)
            if start is not None:
                return PinnedStorage(slab, start, size)
        slab = self._grow(size)
        start = slab.carve(size)
        assert start is not None
        return PinnedStorage(slab, start, size)

    def free(self, storage: PinnedStorage) -> None:
        storage.slab.put_back(storage.start, storage.nbytes)

    def trim(self) -> int:
        """Return slabs that hold nothing to the system; how many bytes they were."""
        empty = [slab for slab in self._slabs if sum(size for _, size in slab.free) == slab.nbytes]
        self._slabs = [slab for slab in self._slabs if slab not in empty]
        for slab in empty:
            self._free(slab.address)
        return sum(slab.nbytes for slab in empty)

    def owns(self, address: int) -> bool:
        """Whether an address lies in this memory."""
        found = bisect_right(self._slabs, address, key=lambda slab: slab.address)
        return found > 0 and address < self._slabs[found - 1].address + self._slabs[found - 1].nbytes

    def _grow(self, size: int) -> Slab:
        nbytes = max(SLAB_BYTES if self._slabs else FIRST_BYTES, size)
        slab = Slab(self._allocate(nbytes), nbytes)
        self._slabs.append(slab)
        self._slabs.sort(key=lambda slab: slab.address)
        return slab


def address_of(array: Host) -> int:
    """The address of the first element."""
    address: int = array.__array_interface__["data"][0]
    return address
