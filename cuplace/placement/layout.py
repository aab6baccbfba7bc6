"""Layout: which box of an array of a given shape each device of a sharding holds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar, final

from cuplace.errors import IndivisibleError
from cuplace.placement.box import Box
from cuplace.placement.tiling import Tiling
from cuplace.placement.value import Value

T = TypeVar("T")

Index = tuple[slice, ...]


@final
class Layout(Value):
    """An array of one shape, cut over the devices of one sharding. Devices are numbered in mesh order.

    Layouts come from `Sharding.layout(shape)`, which keeps them: asking twice costs a dictionary lookup.

    >>> from cuplace.placement.sharding import AbstractMesh, NamedSharding, PartitionSpec
    >>> layout = NamedSharding(AbstractMesh((2, 2), ('x', 'y')), PartitionSpec('y')).layout((8,))
    >>> layout.boxes[1], layout.replica_ids
    (Box(start=(4,), stop=(8,)), (0, 0, 1, 1))
    >>> layout.holders[layout.boxes[1]]
    (1, 3)

    Attributes:
        shape: the shape of the whole array, in elements.
        parts: the number of equal pieces of each dimension.
        shard_shape: the shape of each piece.
        boxes: the box that each device holds; devices that hold the same one share the object.
        indices: the same as indices of the whole array, spelt as JAX does: `slice(None)` for a dimension in one piece.
        replica_ids: for each device, how many devices before it hold the same box.
        holders: for each distinct box the devices that hold it; boxes in order of their first holder.
    """

    __slots__ = ("boxes", "holders", "indices", "parts", "replica_ids", "shape", "shard_shape")

    shape: tuple[int, ...]
    parts: tuple[int, ...]
    shard_shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    indices: tuple[Index, ...]
    replica_ids: tuple[int, ...]
    holders: Mapping[Box, tuple[int, ...]]

    def __new__(cls, shape: tuple[int, ...], tiling: Tiling, sharding: object) -> Layout:
        """The layout of a shape, of as many dimensions as the tiling. `sharding` is only named in the error.

        Raises:
            IndivisibleError: a ValueError, where a dimension does not divide into its pieces.
        """
        parts = tiling.parts
        for dim, (size, pieces) in enumerate(zip(shape, parts, strict=True)):
            if size % pieces:
                raise IndivisibleError(
                    f"{sharding!r} implies that array axis {dim} is partitioned {pieces} times, but the dimension "
                    f"size is {size} (full shape: {shape}, per-dimension tiling factors: {parts} should evenly "
                    "divide the shape)\n"
                    f"Pad the dimension to {-(-size // pieces) * pieces}, or name None for it in the spec."
                )
        layout = object.__new__(cls)
        shard_shape = tuple([size // pieces for size, pieces in zip(shape, parts, strict=True)])
        layout._set(shape=shape, parts=parts, shard_shape=shard_shape)
        layout._place(tiling.blocks)
        return layout

    def _place(self, blocks: tuple[tuple[int, ...], ...]) -> None:
        """Fill what is known per device. Boxes and indices are made once for each distinct block."""
        distinct = list(dict.fromkeys(blocks))
        boxes = self._boxes(distinct)
        box_of = dict(zip(distinct, boxes, strict=True))
        index_of = dict(zip(distinct, self._indices(boxes), strict=True))
        # Counted by box, not by block: the blocks of an array without elements may be the same box.
        holders: dict[Box, list[int]] = {}
        replica_ids = []
        for device, block in enumerate(blocks):
            same = holders.setdefault(box_of[block], [])
            replica_ids.append(len(same))
            same.append(device)
        self._set(
            boxes=tuple([box_of[block] for block in blocks]),
            indices=tuple([index_of[block] for block in blocks]),
            replica_ids=tuple(replica_ids),
            holders=MappingProxyType({box: tuple(same) for box, same in holders.items()}),
        )

    def _boxes(self, blocks: list[tuple[int, ...]]) -> list[Box]:
        """The box of each block. Column by column: this is most of the cost of a layout of many devices."""
        starts, stops = [], []
        for pieces, size in zip(zip(*blocks, strict=True), self.shard_shape, strict=True):
            starts.append([piece * size for piece in pieces])
            stops.append([first + size for first in starts[-1]])
        return list(map(Box, _rows(starts, len(blocks)), _rows(stops, len(blocks))))

    def _indices(self, boxes: list[Box]) -> list[Index]:
        starts, stops = zip(*boxes, strict=True)
        columns = []
        for pieces, first, last in zip(self.parts, zip(*starts, strict=True), zip(*stops, strict=True), strict=True):
            columns.append([slice(None)] * len(boxes) if pieces == 1 else list(map(slice, first, last)))
        return _rows(columns, len(boxes))

    def __repr__(self) -> str:
        return f"Layout(shape={self.shape}, parts={self.parts}, devices={len(self.boxes)})"


def _rows(columns: list[list[T]], count: int) -> list[tuple[T, ...]]:
    """The rows of a table of columns; `count` empty ones where there is no column."""
    return list(zip(*columns, strict=True)) if columns else [()] * count
