"""Boxes: half-open intervals of indices in any number of dimensions. All layout arithmetic is done on them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple


class Box(NamedTuple):
    """The indices `start[d] <= i < stop[d]` of every dimension `d`, in elements.

    >>> Box((0, 2), (4, 6)).shape
    (4, 4)
    >>> Box((0, 2), (4, 6)).intersect(Box((2, 0), (8, 4)))
    Box(start=(2, 2), stop=(4, 4))

    A box without dimensions holds one element, as a 0-d array does.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Box:
        """The box of all indices of an array of this shape.

        >>> Box.whole((2, 3))
        Box(start=(0, 0), stop=(2, 3))
        """
        return cls((0,) * len(shape), shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each dimension; a dimension whose stop lies before its start has extent 0."""
        return tuple([max(stop - start, 0) for start, stop in zip(self.start, self.stop, strict=True)])

    @property
    def size(self) -> int:
        """The number of indices inside."""
        return math.prod(self.shape)

    @property
    def empty(self) -> bool:
        """Whether no index lies inside."""
        return any(stop <= start for start, stop in zip(self.start, self.stop, strict=True))

    def intersect(self, other: Box) -> Box | None:
        """The indices that lie in both boxes; None where there are none."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        shared = Box(start, stop)
        return None if shared.empty else shared

    def shift(self, offset: tuple[int, ...]) -> Box:
        """The box moved by `offset[d]` elements along each dimension.

        >>> Box((4,), (8,)).shift((-4,))
        Box(start=(0,), stop=(4,))
        """
        return Box(
            tuple([start + by for start, by in zip(self.start, offset, strict=True)]),
            tuple([stop + by for stop, by in zip(self.stop, offset, strict=True)]),
        )

    def slices(self) -> tuple[slice, ...]:
        """The index that picks this box out of the whole array."""
        return tuple(map(slice, self.start, self.stop))

    def pieces(self, most: int) -> Iterator[Box]:
        """The box in boxes of at most `most` indices (at least one), each contiguous in a C-ordered block of the box.

        >>> list(Box((0, 0), (3, 4)).pieces(8))
        [Box(start=(0, 0), stop=(2, 4)), Box(start=(2, 0), stop=(3, 4))]
        """
        if self.empty:
            return
        if self.size <= most or not self.start:
            yield self
            return
        rows = most // (self.size // (self.stop[0] - self.start[0]))
        if rows:
            for first in range(self.start[0], self.stop[0], rows):
                yield Box((first, *self.start[1:]), (min(first + rows, self.stop[0]), *self.stop[1:]))
            return
        for i in range(self.start[0], self.stop[0]):
            for rest in Box(self.start[1:], self.stop[1:]).pieces(most):
                yield Box((i, *rest.start), (i + 1, *rest.stop))

    def within(self, outer: Box) -> tuple[slice, ...]:
        """The index that picks this box out of a block that holds exactly the box `outer`.

        >>> Box((6,), (8,)).within(Box((4,), (8,)))
        (slice(2, 4, None),)
        """
        return tuple(
            [
                slice(start - origin, stop - origin)
                for start, stop, origin in zip(self.start, self.stop, outer.start, strict=True)
            ]
        )
