"""What is done at once: the same values, records and errors as of what is enqueued, and order where both meet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from cuplace.runtime.backends.cpu.strand import Item
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform
from cuplace.runtime.submission import next_id
from cuplace.runtime.task import ComputeTask
from tests.runtime.streams import LONG, compute, copy_task, failing, finish, new, put, read, task, used

pytestmark = pytest.mark.order(once=True)

VALUES = np.arange(6, dtype=np.int64)
MADE = (VALUES.shape, VALUES.dtype, VALUES.nbytes)
ADD = task(lambda x, y: x + y, "add", seconds=0.0)
ADD_ONE = task(lambda x: x + 1, "add_one", seconds=0.0)

only_cpu = pytest.mark.parametrize("platform", ["cpu"], indirect=True)


def put_on_all(platform: Platform, values: np.ndarray = VALUES) -> list[Buffer]:
    return [put(device, values + device.id) for device in platform.devices[:4]]


def run_on_all(work: ComputeTask, *operands: Sequence[Buffer]) -> list[Buffer]:
    places = [buffer.device for buffer in operands[0]]
    (results,) = places[0].scheduler.submit_new(work, [MADE], places, operands)
    return results


def test_the_log_says_what_it_says_of_what_is_enqueued(platform: Platform) -> None:
    scheduler, (device, other, third, _) = platform.scheduler, platform.devices[:4]
    sources = put_on_all(platform)
    sums = run_on_all(ADD, sources, sources)
    moved = [new(to, sums[0], "transfer") for to in (other, third)]
    streams = [device.transfer_to(other), other.transfer_to(third)]
    scheduler.submit_moves([
        (copy_task(source), stream, source, target)
        for stream, source, target in zip(streams, sums, moved, strict=False)
    ])  # fmt: skip
    for i, buffer in enumerate(sums):
        np.testing.assert_array_equal(read(buffer), 2 * (VALUES + i))
    for i, buffer in enumerate(moved):
        np.testing.assert_array_equal(read(buffer), 2 * (VALUES + i))
    records = scheduler.log.recent[-10:]
    uploads, adds, moves = records[:4], records[4:8], records[8:]
    assert [(r.kind, r.name, r.path, r.nbytes) for r in records] == [
        *[("upload", "upload", "host", 48)] * 4, *[("compute", "add", "", 0)] * 4, *[("move", "move", "local", 48)] * 2,
    ]  # fmt: skip
    assert [r.stream for r in records] == [
        *[buffer.device.upload for buffer in sources], *[buffer.device.compute for buffer in sources], *streams
    ]
    assert [(r.reads, r.writes) for r in uploads] == [((), (buffer.id,)) for buffer in sources]
    assert [(r.reads, r.writes) for r in adds] == [
        ((source.id, source.id), (result.id,)) for source, result in zip(sources, sums, strict=True)
    ]
    assert [(r.reads, r.writes) for r in moves] == [
        ((source.id,), (target.id,)) for source, target in zip(sums, moved, strict=False)
    ]
    assert len({r.line for r in adds}) == 1
    assert all(r.line is not None and r.line.function == "run_on_all" for r in adds)
    assert [r.id for r in records] == sorted({r.id for r in records})
    if platform.name == "cpu":
        assert all(0 < r.enqueue <= r.start <= r.end for r in records)
        assert all(before.end <= after.start for before, after in itertools.pairwise(records))


def test_results_of_different_sizes_and_work_without_operands(platform: Platform) -> None:
    def run(reads: Sequence[Any], writes: Sequence[Any], scalars: tuple[Any, ...]) -> None:
        writes[0][...] = scalars[0]
        writes[1][...] = writes[0].sum()

    places = platform.devices[:3]
    made = [MADE, ((), np.dtype(np.int64), 8)]
    ones, totals = platform.scheduler.submit_new(ComputeTask("fill", run, 0.0), made, places, (), (7,))
    for one, total in zip(ones, totals, strict=True):
        np.testing.assert_array_equal(read(one), np.full(6, 7))
        assert read(total) == 42


def latched_stream(platform: Platform, sources: Sequence[Buffer]) -> list[Any]:
    return [platform.scheduler.hold(platform.devices[1].compute)]


def unfinished_operand(platform: Platform, sources: Sequence[Buffer]) -> list[Any]:
    latches = [platform.scheduler.hold(platform.devices[1].upload)]
    platform.scheduler.upload(sources[1], VALUES)
    return latches


@pytest.mark.parametrize("hinder", [latched_stream, unfinished_operand])
def test_what_cannot_start_waits_and_the_rest_does_not(platform: Platform, hinder: Callable[..., list[Any]]) -> None:
    sources = put_on_all(platform)
    latches = hinder(platform, sources)
    results = run_on_all(ADD, sources, sources)
    assert not platform.scheduler.is_ready([results[1]])
    for latch in latches:
        latch.release()
    for i, (source, result) in enumerate(zip(sources, results, strict=True)):
        np.testing.assert_array_equal(read(result), 2 * read(source), err_msg=str(i))
    np.testing.assert_array_equal(read(sources[1]), VALUES + (hinder is latched_stream))


def test_memory_that_is_still_read_is_not_written_over(platform: Platform) -> None:
    device, other = platform.devices[:2]
    stream, operand = device.transfer_to(other), put(device, 2 * VALUES)
    source = compute(ADD_ONE, operand)
    latch = platform.scheduler.hold(stream)
    moved = new(other, source, "transfer")
    platform.scheduler.submit_moves([(copy_task(source), stream, source, moved)])
    del source
    config.update("max_device_bytes", 2 * VALUES.nbytes)
    (result,) = run_on_all(task(lambda x: x + 5, seconds=0.0), [operand])
    assert device.memory_stats()["memory_waits"] == 1
    latch.release()
    np.testing.assert_array_equal(read(moved), 2 * VALUES + 1)
    np.testing.assert_array_equal(read(result), 2 * VALUES + 5)


def test_moves_wait_for_what_is_on_their_way(platform: Platform) -> None:
    device, other = platform.devices[:2]
    stream, source = device.transfer_to(other), put(device, VALUES)
    latch = platform.scheduler.hold(stream)
    target = new(other, source, "transfer")
    platform.scheduler.submit_moves([(copy_task(source), stream, source, target)])
    assert not platform.scheduler.is_ready([target])
    del source
    latch.release()
    np.testing.assert_array_equal(read(target), VALUES)


@pytest.mark.parametrize("seconds", [0.0, LONG])
def test_who_fails_fails_alone(platform: Platform, seconds: float) -> None:
    def run(reads: Sequence[Any], writes: Sequence[Any], scalars: tuple[Any, ...]) -> None:
        if reads[0].flat[0] == 2:
            raise ValueError("boom")
        writes[0][...] = reads[0] * 3

    work = ComputeTask("sometimes", run, seconds)
    sources = put_on_all(platform)
    results = run_on_all(work, sources)
    after = run_on_all(ADD_ONE, results)
    for i, (result, next_one) in enumerate(zip(results, after, strict=True)):
        if i == 2:
            for buffer in (result, next_one):
                with pytest.raises(ValueError, match="boom"):
                    read(buffer)
        else:
            np.testing.assert_array_equal(read(result), 3 * (VALUES + i))
            np.testing.assert_array_equal(read(next_one), 3 * (VALUES + i) + 1)
    for i, result in enumerate(run_on_all(ADD_ONE, sources)):
        np.testing.assert_array_equal(read(result), VALUES + i + 1)


@only_cpu
def test_what_fails_and_what_it_did_before_gives_its_memory_back(platform: Platform) -> None:
    sources = put_on_all(platform)
    with pytest.raises(ValueError, match="boom"):
        read(run_on_all(failing("boom", seconds=0.0), sources)[3])
    before = used(platform)
    with pytest.raises(KeyboardInterrupt):
        run_on_all(ComputeTask("interrupted", _interrupt, 0.0), sources)
    finish(platform)
    assert used(platform)["bytes_in_use"] <= before["bytes_in_use"]
    np.testing.assert_array_equal(read(run_on_all(ADD_ONE, sources)[3]), VALUES + 4)


def _interrupt(reads: Sequence[Any], writes: Sequence[Any], scalars: tuple[Any, ...]) -> None:
    raise KeyboardInterrupt


@only_cpu
def test_a_failure_ends_where_work_succeeds(platform: Platform) -> None:
    """What is adopted as of a stream is as good as the latest work on it."""
    device = platform.devices[0]
    source = put(device, VALUES)
    with pytest.raises(ValueError, match="boom"):
        read(compute(failing("boom", seconds=0.0), source))
    run_on_all(ADD_ONE, [source])
    adopted = platform.scheduler.adopt(VALUES, device, device.compute)
    np.testing.assert_array_equal(read(adopted), VALUES)


@only_cpu
def test_work_that_a_destructor_queues_in_the_middle_is_waited_for(platform: Platform) -> None:
    device = platform.devices[0]
    source, found, latches = put(device, VALUES), [], []

    def run(reads: Sequence[Any], writes: Sequence[Any], scalars: tuple[Any, ...]) -> None:
        latches.append(platform.scheduler.hold(device.compute))
        found.append(compute(task(lambda x: x * 5, seconds=LONG), source))
        writes[0][...] = reads[0]

    (result,) = run_on_all(ComputeTask("with a destructor", run, 0.0), [source])
    event = device.compute.record(next_id())
    assert event is not None
    assert not event.done
    latches[0].release()
    platform.scheduler.drain([device.compute])
    assert platform.scheduler.is_ready(found)
    np.testing.assert_array_equal(read(found[0]), VALUES * 5)
    np.testing.assert_array_equal(read(result), VALUES)


@only_cpu
@pytest.mark.parametrize("fails", [False, True], ids=["right", "failed"])
def test_a_failure_of_what_a_destructor_queues_is_its_own(platform: Platform, fails: bool) -> None:
    """In the middle of work, on the same stream: what was queued comes after it, and is told apart from it."""
    device = platform.devices[0]
    source, found, latches = put(device, VALUES), [], []

    def run(reads: Sequence[Any], writes: Sequence[Any], scalars: tuple[Any, ...]) -> None:
        if not found:
            latches.append(platform.scheduler.hold(device.compute))
            found.append(compute(failing("the destructor's"), source))
        writes[0][...] = reads[0]
        if fails:
            raise ValueError("its own")

    result = compute(ComputeTask("with a destructor", run, 0.0), source)
    assert platform.scheduler.is_ready([result]) is not fails  # a failure is told in the order of the stream
    latches[0].release()
    if fails:
        with pytest.raises(ValueError, match="its own"):
            read(result)
    else:
        np.testing.assert_array_equal(read(result), VALUES)
    platform.scheduler.drain([device.compute])
    assert platform.scheduler.is_ready(found)
    with pytest.raises(ValueError, match="the destructor's"):
        read(found[0])


@only_cpu
def test_a_destructor_may_queue_work_while_failures_are_forgotten(platform: Platform) -> None:
    """The last failure of a stream holds its error, and with it what dies when work begins on the stream."""
    first, second = platform.devices[:2]
    source, found, latches = put(first, VALUES), [], []

    class Computes:
        def __del__(self) -> None:
            latches.append(platform.scheduler.hold(first.compute))
            found.append(compute(task(lambda x: x * 5, seconds=LONG), source))

    stream: Any = second.compute
    sources = [source, put(second, VALUES)]
    failure = Item(stream, platform.scheduler.log.recent[-1], None, ())
    failure.done, failure.error = True, ValueError(Computes())
    stream.last = failure
    del failure
    results = run_on_all(ADD_ONE, sources)
    assert len(latches) == 1
    event = first.compute.record(next_id())
    assert event is not None
    assert not event.done
    latches[0].release()
    platform.scheduler.drain([first.compute])
    np.testing.assert_array_equal(read(found[0]), VALUES * 5)
    for result in results:
        np.testing.assert_array_equal(read(result), VALUES + 1)


@pytest.mark.parametrize("seconds", [0.0, LONG])
def test_shards_must_be_as_many_as_places(platform: Platform, seconds: float) -> None:
    work = task(lambda x: x, seconds=seconds)
    for operand in (put_on_all(platform)[:3], [*put_on_all(platform), *put_on_all(platform)]):
        with pytest.raises(ValueError, match="zip"):
            platform.scheduler.submit_new(work, [MADE], platform.devices[:4], [operand])
    before = platform.scheduler.log.recent[-1].id
    platform.scheduler.upload_batch([])
    assert platform.scheduler.log.recent[-1].id == before


def test_what_work_shares_is_set_up_around_all_of_it(platform: Platform) -> None:
    calls: list[str] = []

    def within(function: Callable[..., Any], *args: Any) -> Any:
        calls.append("begin")
        try:
            return function(*args)
        finally:
            calls.append("end")

    def run(reads: Sequence[Any], writes: Sequence[Any], scalars: tuple[Any, ...]) -> None:
        calls.append("work")
        if scalars:
            raise ValueError("boom")
        writes[0][...] = reads[0]

    work, sources = ComputeTask("shared", run, 0.0, within=within), put_on_all(platform)
    for source, result in zip(sources, run_on_all(work, sources), strict=True):
        np.testing.assert_array_equal(read(result), read(source))
    all_at_once = ["begin", *["work"] * 4, "end"]
    assert calls == (all_at_once if platform.name == "cpu" else ["work"] * 4)
    (failed,) = platform.scheduler.submit_new(work, [MADE], platform.devices[:4], [sources], (1,))
    with pytest.raises(ValueError, match="boom"):
        read(failed[0])
    assert calls.count("begin") == calls.count("end")


def test_recordings_see_each_step(platform: Platform) -> None:
    with platform.scheduler.log.record() as records:
        run_on_all(ADD, *[put_on_all(platform)] * 2)
    assert [r.kind for r in records] == ["upload"] * 4 + ["compute"] * 4
    finish(platform)
    assert [r.id for r in platform.scheduler.log.recent[-8:]] == [r.id for r in records]
