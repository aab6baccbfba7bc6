"""StridedCopy: a copy between two strided boxes in its simplest form. Pure: numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

MAX_DIMS = 16
"""What the kernels of ``copy.cu`` take."""

UNITS = (16, 8, 4, 2, 1)

ROW_BYTES = 1024
"""Rows of at least so many bytes are left to the copy engines, shorter ones are packed by a kernel: an engine
handles each row as a transfer of its own."""

_SMALL = 1 << 31
_LONGEST_PITCH = (1 << 31) - 1

BOX = np.dtype(
    [
        ("ndim", np.int32), ("unused", np.int32), ("count", np.int64), ("shape", np.int64, (MAX_DIMS,)),
        ("source_strides", np.int64, (MAX_DIMS,)), ("target_strides", np.int64, (MAX_DIMS,)),
    ]
)  # fmt: skip
"""``struct Box`` of ``copy.cu``."""


class Dim(NamedTuple):
    """One dimension: how many steps, and how many bytes a step is on each side."""

    size: int
    source: int
    target: int


class StridedCopy(NamedTuple):
    """Equal boxes on both sides: ``run`` contiguous bytes, repeated along ``dims`` (the last one is the innermost).

    Dimensions of size 1 are left out, those that are contiguous on both sides are merged, and the rest are ordered
    by the target's strides, so that neighbouring threads write neighbouring bytes.
    """

    run: int
    dims: tuple[Dim, ...]

    @property
    def nbytes(self) -> int:
        return self.run * math.prod([dim.size for dim in self.dims])

    @property
    def is_flat(self) -> bool:
        """Whether both sides are contiguous, in the same order."""
        return not self.dims

    @property
    def is_pitched(self) -> bool:
        """Whether both sides are rows at a constant distance, as ``cudaMemcpy2D`` takes them."""
        if len(self.dims) != 1:
            return False
        _, source, target = self.dims[0]
        return self.run <= source <= _LONGEST_PITCH and self.run <= target <= _LONGEST_PITCH

    @property
    def suits_engines(self) -> bool:
        """Whether a copy engine does it well: both sides are contiguous, or rows that are long enough."""
        return self.is_flat or (self.is_pitched and self.run >= ROW_BYTES)

    def unit(self, source: int, target: int) -> int:
        """The largest unit that both addresses, all strides and the run are multiples of."""
        common = math.gcd(source, target, self.run, *[n for dim in self.dims for n in (dim.source, dim.target)])
        return next(unit for unit in UNITS if common % unit == 0)

    def boxes(self, unit: int) -> list[tuple[int, int, np.ndarray]]:
        """What the kernel is launched with: (source offset, target offset, ``Box`` record) of each launch.

        One, unless there are more dimensions than the kernel takes.
        """
        dims = self.dims
        if self.run > unit:
            dims = (*dims, Dim(self.run // unit, unit, unit))
        dims = dims or (Dim(1, unit, unit),)
        split = max(0, len(dims) - MAX_DIMS)
        record = _record(dims[split:])
        offsets = [(0, 0)]
        for size, source, target in dims[:split]:
            offsets = [(s + i * source, t + i * target) for s, t in offsets for i in range(size)]
        return [(source, target, record) for source, target in offsets]


def fits_32_bits(box: np.ndarray) -> bool:
    """Whether the kernels with 32-bit indices serve for this ``Box``."""
    strides = (*box["source_strides"].tolist(), *box["target_strides"].tolist())
    return int(box["count"]) < _SMALL and max(map(abs, strides)) < _SMALL


@lru_cache(maxsize=4096)
def strided_copy(
    shape: tuple[int, ...], itemsize: int, source_strides: tuple[int, ...], target_strides: tuple[int, ...]
) -> StridedCopy | None:
    """The copy of a box of this shape between two arrays with these strides (in bytes); None where it is empty.

    >>> strided_copy((4, 8), 4, (64, 4), (32, 4))
    StridedCopy(run=32, dims=(Dim(size=4, source=64, target=32),))
    """
    if 0 in shape:
        return None
    rest = [
        Dim(*dim) for dim in zip(shape, source_strides, target_strides, strict=True) if dim[0] > 1
    ]  # fmt: skip
    rest.sort(key=lambda dim: (-abs(dim.target), -abs(dim.source)))
    run, dims = itemsize, list[Dim]()
    for dim in reversed(rest):
        if not dims and dim.source == dim.target == run:
            run *= dim.size
        elif dims and _joins(dim, dims[-1]):
            inner = dims[-1]
            dims[-1] = Dim(dim.size * inner.size, inner.source, inner.target)
        else:
            dims.append(dim)
    return StridedCopy(run, tuple(reversed(dims)))


def contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The strides of a C-contiguous array, in bytes."""
    strides, step = [], itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _joins(outer: Dim, inner: Dim) -> bool:
    return outer.source == inner.size * inner.source and outer.target == inner.size * inner.target


def _record(dims: Sequence[Dim]) -> np.ndarray:
    record = np.zeros((), BOX)
    record["ndim"] = len(dims)
    record["count"] = math.prod([dim.size for dim in dims])
    for field, column in zip(("shape", "source_strides", "target_strides"), zip(*dims, strict=True), strict=True):
        record[field][: len(dims)] = column
    return record
