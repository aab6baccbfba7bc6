from __future__ import annotations

import numpy as np
from hypothesis import given

from cuplace.transfer.table import cut, strides_of
from tests.transfer.shardings import transfers


@given(transfers())
def test_pieces_are_the_overlaps_of_target_boxes_with_blocks_of_the_source(transfer):
    shape, source, target = transfer
    if 0 in shape:
        return
    old, new = source.layout(shape), target.layout(shape)
    held = np.array(source.tiling(len(shape)).blocks, dtype=np.int64) @ strides_of(old)
    pieces = cut(old, new, np.arange(len(new.boxes)))
    columns = (column.tolist() for column in pieces)
    found = {(block, shard, tuple(start), tuple(stop)) for block, shard, start, stop in zip(*columns, strict=True)}
    expected = set()
    for block, box in zip(held.tolist(), old.boxes, strict=True):
        for shard, wanted in enumerate(new.boxes):
            part = box.intersect(wanted)
            if part is not None:
                expected.add((block, shard, part.start, part.stop))
    assert found == expected
    assert len(pieces.targets) == len(expected)
