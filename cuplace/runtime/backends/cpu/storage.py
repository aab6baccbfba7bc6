"""Storage of the cpu platform: blocks of host memory, kept by each device once they have been touched.

A fresh page costs several times the copy into it, so blocks that come back are kept and handed out again by
their exact size.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

ALIGNMENT = 64
_KEPT_BYTES = 256 << 20
"""A device keeps at least this much unused memory; beyond it, no more than it has in use at its peak."""


class HostBlock:
    """Host memory of one size class, and the view that its last owner had."""

    __slots__ = ("dtype", "memory", "nbytes", "shape", "view")

    def __init__(self, nbytes: int) -> None:
        if nbytes > sys.maxsize - ALIGNMENT:
            raise MemoryError(f"{nbytes} bytes are more than there are addresses")
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        self.memory: np.ndarray[Any, Any] = raw[start : start + nbytes]
        self.nbytes = nbytes
        self.view: Any = None
        self.shape: tuple[int, ...] | None = None
        self.dtype: np.dtype[Any] | None = None

    def as_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        if self.shape != shape or self.dtype is not dtype:
            self.view = np.ndarray(shape, dtype, self.memory)
            self.shape, self.dtype = shape, dtype  # at once with the line before: no interrupt comes between stores
        view: np.ndarray[Any, Any] = self.view
        return view


class BlockCache:
    """Unused blocks of one arena of one device, by size. ``unused`` are their bytes."""

    birth = None  # memory can be used at once

    def __init__(self) -> None:
        self.unused = 0
        self._unused: dict[int, list[HostBlock]] = {}
        self._used_bytes = 0
        self._kept_bytes = _KEPT_BYTES

    def allocate(self, nbytes: int) -> HostBlock:
        size = (nbytes + ALIGNMENT - 1) & -ALIGNMENT or ALIGNMENT
        unused = self._unused.get(size)
        if unused:
            block = unused.pop()
            self.unused -= size
        else:
            block = HostBlock(size)
        self._used_bytes += size
        if self._used_bytes > self._kept_bytes:
            self._kept_bytes = self._used_bytes
        return block

    def free(self, block: HostBlock) -> None:
        nbytes = block.nbytes
        self._used_bytes -= nbytes
        if self.unused + nbytes > self._kept_bytes:
            self.trim()
        self.unused += nbytes
        unused = self._unused.get(nbytes)
        if unused is None:
            unused = self._unused.setdefault(nbytes, [])
        unused.append(block)

    def trim(self) -> int:
        """Return all unused blocks to the system; how many bytes they were."""
        returned, self.unused = self.unused, 0
        self._unused.clear()
        return returned
