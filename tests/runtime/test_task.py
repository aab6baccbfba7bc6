"""Tasks: what they hand to a stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.platform import Platform
from cuplace.runtime.task import LATCH, ComputeTask, CopyTask, Task
from tests.runtime.streams import LONG, put, read

VALUES = np.arange(24, dtype=np.int64).reshape(4, 6)
BOXES = {
    "whole": (None, None),
    "rows": (np.s_[1:3, :], np.s_[0:2, :]),
    "columns": (np.s_[:, 2:4], np.s_[:, 0:2]),
    "a box": (np.s_[1:3, 2:5], np.s_[2:4, 0:3]),
    "one element": (np.s_[3:4, 5:6], np.s_[0:1, 0:1]),
    "nothing": (np.s_[2:2, :], np.s_[0:0, :]),
}


@pytest.mark.parametrize("seconds", [0.0, LONG])
def test_compute_gets_reads_writes_and_scalars(platform: Platform, seconds: float) -> None:
    device = platform.devices[0]
    got: list[Any] = []

    def run(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
        got.extend([len(reads), len(writes), scalars])
        writes[0][...] = reads[0] + reads[1]
        writes[1][...] = scalars[0]

    work = ComputeTask("two results", run, seconds)
    first, second = put(device, VALUES), put(device, VALUES * 2)
    results = [platform.scheduler.allocate(device, (4, 6), np.dtype(np.int64), TRANSFER) for _ in range(2)]
    platform.scheduler.submit(work, device.compute, (first, second), results, (7, "word"))
    np.testing.assert_array_equal(read(results[0]), VALUES * 3)
    np.testing.assert_array_equal(read(results[1]), np.full((4, 6), 7))
    assert got == [2, 2, (7, "word")]
    assert (work.kind, work.name, work.nbytes, work.path) == ("compute", "two results", 0, "")


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("box", BOXES)
def test_copies_take_boxes_to_boxes(platform: Platform, box: str, held: bool) -> None:
    source_box, target_box = BOXES[box]
    device, other = platform.devices[:2]
    source, target = put(device, VALUES), put(other, np.full((4, 6), -1))
    stream = device.transfer_to(other)
    latch = platform.scheduler.hold(stream) if held else None
    copy = CopyTask(source_box, target_box, "local", 8)
    platform.scheduler.submit_moves([(copy, stream, source, target)])
    if latch is not None:
        latch.release()
    expected = np.full((4, 6), -1)
    expected[... if target_box is None else target_box] = VALUES[... if source_box is None else source_box]
    np.testing.assert_array_equal(read(target), expected)
    assert (copy.kind, copy.name, copy.nbytes, copy.path) == ("move", "move", 8, "local")


def test_a_task_of_no_kind_cannot_be_enqueued(platform: Platform) -> None:
    with pytest.raises(NotImplementedError):
        platform.scheduler.submit(Task("odd", "odd"), platform.devices[0].compute, (), ())
    assert (LATCH.kind, LATCH.name) == ("latch", "latch")
