"""Table: all moves of a plan as columns. Large plans are computed and kept this way, and spelled out when read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cuplace.placement.layout import Layout

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

Span: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"
"""Start and stop of a box."""

NOTHING = -1


class Table(NamedTuple):
    """Moves in the order in which they are enqueued.

    Attributes:
        sources: the shard that each move reads: a source shard, or, where ``after`` is not NOTHING, a target shard.
        targets: the target shard that it writes.
        starts, stops: the box that it copies, (moves, ndim).
        after: the earlier move that wrote what it reads; NOTHING where it reads a source shard.
    """

    sources: Ints
    targets: Ints
    starts: Ints
    stops: Ints
    after: Ints

    @property
    def sizes(self) -> Ints:
        """Elements of each move."""
        found: Ints = (self.stops - self.starts).prod(axis=1, dtype=np.int64)
        return found


class Pieces(NamedTuple):
    """What target shards need: each row is the part of a target shard that lies in one block of the source.

    Attributes:
        blocks: the source's block, numbered in C order of its grid.
        targets: the target shard.
        starts, stops: the box.
    """

    blocks: Ints
    targets: Ints
    starts: Ints
    stops: Ints


def cut(old: Layout, new: Layout, wanted: Ints) -> Pieces:
    """Cut every wanted target box along the source's grid.

    Both grids are regular, so the source blocks that a target box touches are an interval in each dimension.
    """
    ndim = len(old.shape)
    box_starts = np.array([box.start for box in new.boxes], dtype=np.int64)
    box_stops = np.array([box.stop for box in new.boxes], dtype=np.int64)
    block_shape = np.array(old.shard_shape, dtype=np.int64)
    first = box_starts[wanted] // np.maximum(block_shape, 1)
    counts = (box_stops[wanted] - 1) // np.maximum(block_shape, 1) - first + 1

    per_target = counts.prod(axis=1, dtype=np.int64)
    row = np.repeat(np.arange(len(wanted)), per_target)
    rank = np.arange(len(row)) - np.repeat(np.cumsum(per_target) - per_target, per_target)
    coordinates = np.empty((len(row), ndim), dtype=np.int64)
    for dim in reversed(range(ndim)):
        rank, coordinates[:, dim] = np.divmod(rank, counts[row, dim])
    coordinates += first[row]

    targets = wanted[row]
    starts = np.maximum(coordinates * block_shape, box_starts[targets])
    stops = np.minimum((coordinates + 1) * block_shape, box_stops[targets])
    return Pieces(coordinates @ strides_of(old), targets, starts, stops)


def strides_of(layout: Layout) -> Ints:
    """What turns the coordinates of a block in the layout's grid into its number."""
    strides = np.ones(len(layout.parts), dtype=np.int64)
    strides[:-1] = np.cumprod(layout.parts[:0:-1], dtype=np.int64)[::-1]
    return strides


def split(start: Sequence[int], stop: Sequence[int], dim: int, count: int) -> Iterator[Span]:
    """The box in parts of nearly equal size along one dimension: ``count`` of them, or as many as that is long.

    >>> list(split((0, 4), (2, 9), 1, 2))
    [((0, 4), (2, 6)), ((0, 6), (2, 9))]
    """
    extent = stop[dim] - start[dim]
    count = min(count, extent)
    for low, high in pairwise(start[dim] + extent * i // count for i in range(count + 1)):
        yield (*start[:dim], low, *start[dim + 1 :]), (*stop[:dim], high, *stop[dim + 1 :])
