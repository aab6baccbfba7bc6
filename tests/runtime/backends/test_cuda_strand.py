"""The host strand of the cuda platform: between two kernels of a lane, and never in the way of anything else."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from cuplace.errors import DeviceLostError
from cuplace.placement.memory_space import DEVICE, PINNED_HOST, UNPINNED_HOST
from cuplace.runtime.platform import Platform
from cuplace.runtime.submission import Submission
from cuplace.runtime.task import ComputeTask
from tests import fakecuda, fakegpus
from tests.fakegpus import Case
from tests.runtime.streams import ADD_ONE, LONG, put, read, task
from tests.runtime.test_host_memory import QUICK, SQUARE, moved, on_host

pytestmark = pytest.mark.order(once=True)

VALUES = np.arange(64, dtype=np.int64)


@pytest.fixture
def opened(fake_gpus: None, restored_config: None) -> Any:
    """A function that opens the platform; reports are the test's business."""
    platforms: list[Platform] = []

    def open_case(*case: Any, **options: Any) -> Platform:
        platforms.append(fakegpus.open_fake(Case(*case, **options)))
        return platforms[-1]

    yield open_case
    for platform in platforms:
        platform.scheduler.release_latches()
        fakecuda.faults.clear()
        platform.close()


def test_quick_work_on_what_is_there_is_done_by_the_caller_without_cuda(opened: Any) -> None:
    platform = opened("eager")
    device, ran = platform.devices[0], list[Any]()
    source = moved(put(device, VALUES), device, PINNED_HOST)
    read(source)

    def note(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
        ran.append(threading.current_thread())

    fakecuda.reset_counters()
    on_host(ComputeTask("note", note, 0.0), PINNED_HOST, source)
    assert ran == [threading.current_thread()]
    assert not fakecuda.counters().launches
    on_host(ComputeTask("note", note, LONG), PINNED_HOST, source)
    finished = on_host(QUICK, PINNED_HOST, source)
    np.testing.assert_array_equal(read(finished), VALUES + 1)
    assert ran[1] is not threading.current_thread()
    assert fakecuda.take_reports() == []


def test_quick_work_is_done_by_the_caller_where_all_that_it_waits_for_is_complete_by_then(opened: Any) -> None:
    platform = opened("eager")
    device, stream = platform.devices[0], platform.devices[0].host
    latch = platform.scheduler.hold(device.upload)
    (event,) = put(device, VALUES).writes
    stream.wait(event)
    latch.release()
    platform.backend.synchronize(event)
    result = np.zeros_like(VALUES)
    submission = Submission(-1, ADD_ONE, stream, (), (), (), None, 0)
    stream.run(ADD_ONE.run, [VALUES], [result], (), (), 0.0, submission)
    np.testing.assert_array_equal(result, VALUES + 1)
    assert stream.record(-1) is None


def test_nothing_blocks_the_caller(opened: Any) -> None:
    platform = opened("lazy")
    device = platform.devices[0]
    latch = platform.scheduler.hold(device.upload)
    source = put(device, VALUES)
    fakecuda.reset_counters()
    result = moved(on_host(SQUARE, PINNED_HOST, moved(source, device, PINNED_HOST)), device, DEVICE)
    counted = fakecuda.counters()
    assert not counted.blocking
    assert counted.launches == {"arrive": 1, "latch": 1}
    latch.release()
    np.testing.assert_array_equal(read(result), VALUES**2)


def test_partitions_of_a_gpu_share_a_lane_and_a_thread(opened: Any) -> None:
    platform = opened("random", 5, gpus=1)
    threads = set()

    def note(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
        threads.add(threading.current_thread().name)
        writes[0][...] = reads[0] * 2

    work = ComputeTask("note", note, LONG)
    results = [
        on_host(work, kind, moved(put(device, VALUES + i), device, kind))
        for i, device in enumerate(platform.devices)
        for kind in (PINNED_HOST, UNPINNED_HOST)
    ]
    lanes: list[Any] = [device.host for device in platform.devices]
    assert len({id(stream.lane) for stream in lanes}) == 1
    for k, result in enumerate(results):
        np.testing.assert_array_equal(read(result), (VALUES + k // 2) * 2)
    assert threads == {"cuplace-host-0"}
    assert fakecuda.take_reports() == []


def test_work_behind_a_lost_gpu_fails_and_what_was_done_before_stays(opened: Any) -> None:
    platform = opened("lazy")
    device, other = platform.devices[:2]
    done = on_host(SQUARE, PINNED_HOST, moved(put(device, VALUES), device, PINNED_HOST))
    kept = moved(put(device, VALUES), device, UNPINNED_HOST)
    read(done)
    read(kept)
    latch = platform.scheduler.hold(device.upload)
    behind = on_host(SQUARE, PINNED_HOST, moved(put(device, VALUES), device, PINNED_HOST))
    fakecuda.faults.lose_device(0)
    with pytest.raises(DeviceLostError, match="GPU 0"):
        read(behind)
    np.testing.assert_array_equal(read(done), VALUES**2)
    np.testing.assert_array_equal(read(kept), VALUES)
    np.testing.assert_array_equal(read(moved(done, other, DEVICE)), VALUES**2)
    latch.release()


def test_closing_does_the_work_that_is_left(opened: Any) -> None:
    platform = fakegpus.open_fake(Case("lazy"))
    device, ran = platform.devices[0], list[Any]()
    source = moved(put(device, VALUES), device, PINNED_HOST)
    on_host(task(lambda x: ran.append(x.sum()) or x), PINNED_HOST, source)
    platform.close()
    assert ran == [VALUES.sum()]
    assert fakecuda.take_reports() == []


def test_values_for_host_memory_of_a_lost_gpu_are_refused(opened: Any) -> None:
    platform = opened("eager")
    device = platform.devices[0]
    there = platform.scheduler.allocate(device.place(UNPINNED_HOST), VALUES.shape, VALUES.dtype)
    fakecuda.faults.lose_device(0)
    with pytest.raises(DeviceLostError):
        read(put(device, VALUES))
    platform.scheduler.upload(there, VALUES)
    with pytest.raises(DeviceLostError, match="GPU 0"):
        read(there)


def test_work_that_finds_no_pinned_memory_to_wait_by_fails_alone(opened: Any) -> None:
    platform = opened("eager")
    device = platform.devices[0]
    source = platform.scheduler.allocate(device.place(UNPINNED_HOST), VALUES.shape, VALUES.dtype)
    platform.scheduler.upload(source, VALUES)
    fakecuda.faults.fail_pinned_allocation()
    failed = on_host(SQUARE, UNPINNED_HOST, source)
    with pytest.raises(MemoryError, match="could not be pinned"):
        read(failed)
    np.testing.assert_array_equal(read(on_host(SQUARE, UNPINNED_HOST, source)), VALUES**2)
    assert fakecuda.take_reports() == []
