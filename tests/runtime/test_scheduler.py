"""The scheduler's doors: what waits for what, what records say, what never waits."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from cuplace.errors import OutOfMemoryError
from cuplace.runtime.config import config
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.platform import Platform
from cuplace.runtime.task import ComputeTask, CopyTask
from tests.memory import foreign_array, host_values
from tests.runtime.streams import (
    ADD_ONE,
    LONG,
    SQUARE,
    compute,
    copy_task,
    failing,
    finish,
    move,
    new,
    put,
    read,
    share_a_queue,
    task,
    used,
)

VALUES = np.arange(12, dtype=np.int64)
SOURCES = {
    "contiguous": lambda n: np.arange(n, dtype=np.float32),
    "strided": lambda n: np.arange(2 * n, dtype=np.float32)[::2],
    "reversed": lambda n: np.arange(n, dtype=np.float32)[::-1],
    "fortran": lambda n: np.asfortranarray(np.arange(n, dtype=np.float32).reshape(2, -1)),
    "other dtype": lambda n: np.arange(n, dtype=np.float64),
    "part of a whole": lambda n: np.arange(2 * n, dtype=np.float32).reshape(4, -1)[1:3],
}


# ---------------------------------------------------------------------- order


@pytest.mark.order(once=True)
def test_a_reader_waits_for_writers_of_other_streams_only(platform: Platform) -> None:
    device, other = platform.devices[:2]
    latches = [platform.scheduler.hold(stream) for stream in (device.upload, device.compute)]
    with platform.scheduler.log.record() as records:
        source = put(device, VALUES)
        first = compute(ADD_ONE, source)
        second = compute(SQUARE, first)
        moved = move(second, other)
    upload, add, square, copy = records
    assert add.waits == (upload.id,)
    assert square.waits == ()
    assert copy.waits == (square.id,)
    for latch in latches:
        latch.release()
    np.testing.assert_array_equal(read(moved), (VALUES + 1) ** 2)


@pytest.mark.order(once=True)
def test_a_writer_waits_for_the_latest_reader_of_each_stream(platform: Platform) -> None:
    device, other, third = platform.devices[:3]
    source = put(device, VALUES)
    read(source)
    latches = [
        platform.scheduler.hold(stream)
        for stream in (device.transfer_to(other), device.transfer_to(third), device.compute)
    ]
    with platform.scheduler.log.record() as records:
        copies = [move(source, other), move(source, other), move(source, third)]
        result = compute(ADD_ONE, source)
        platform.scheduler.upload(source, VALUES * 5)
    first, second, third_, add, upload = records
    assert sorted(upload.waits) == [second.id, third_.id, add.id]
    assert first.id not in upload.waits
    for latch in latches:
        latch.release()
    for buffer in copies:
        np.testing.assert_array_equal(read(buffer), VALUES)
    np.testing.assert_array_equal(read(result), VALUES + 1)
    np.testing.assert_array_equal(read(source), VALUES * 5)


@pytest.mark.order(once=True)
def test_moves_of_one_plan_do_not_wait_for_one_another(platform: Platform) -> None:
    """Four sources on four devices write disjoint quarters of one target."""
    scheduler = platform.scheduler
    *devices, home = platform.devices[:5]
    sources = [put(device, VALUES[3 * i : 3 * i + 3] * 10) for i, device in enumerate(devices)]
    for source in sources:
        read(source)
    latches = [scheduler.hold(device.transfer_to(home)) for device in devices]
    target = scheduler.allocate(home, (12,), np.dtype(np.int64))
    launches = [
        (CopyTask(None, (slice(3 * i, 3 * i + 3),), "local", 24), device.transfer_to(home), source, target)
        for i, (device, source) in enumerate(zip(devices, sources, strict=True))
    ]
    with scheduler.log.record() as records:
        scheduler.submit_moves(launches)
    assert [record.waits for record in records] == [(), (), (), ()]
    doubled = compute(ADD_ONE, target)
    for latch in latches[1:]:
        latch.release()
    assert not scheduler.is_ready([target])
    assert not scheduler.is_ready([doubled])
    latches[0].release()
    np.testing.assert_array_equal(read(target), VALUES * 10)
    np.testing.assert_array_equal(read(doubled), VALUES * 10 + 1)


@pytest.mark.order(once=True)
def test_all_moves_of_a_plan_wait_for_what_was_there(platform: Platform) -> None:
    scheduler = platform.scheduler
    device, other, third = platform.devices[:3]
    target = put(other, VALUES)
    read(target)
    latch = scheduler.hold(other.compute)
    reader = compute(ADD_ONE, target)
    sources = [put(device, VALUES[:6] * 2), put(third, VALUES[:6] * 3)]
    for source in sources:
        read(source)
    boxes = [(slice(0, 6),), (slice(6, 12),)]
    with scheduler.log.record() as records:
        scheduler.submit_moves(
            [
                (CopyTask(None, box, "local", 48), source.device.transfer_to(other), source, target)
                for box, source in zip(boxes, sources, strict=True)
            ]
        )
    assert [len(record.waits) for record in records] == [1, 1]
    latch.release()
    np.testing.assert_array_equal(read(reader), VALUES + 1)
    np.testing.assert_array_equal(read(target), np.concatenate([VALUES[:6] * 2, VALUES[:6] * 3]))


def test_finished_work_is_not_waited_for(platform: Platform) -> None:
    device, other = platform.devices[:2]
    source = put(device, VALUES)
    read(source)
    with platform.scheduler.log.record() as records:
        moved = move(source, other)
    assert records[0].waits == ()
    np.testing.assert_array_equal(read(moved), VALUES)


def test_a_held_stream_holds_nothing_else(platform: Platform) -> None:
    """Calls return, the held result is not ready, other streams of the device and other devices finish."""
    scheduler = platform.scheduler
    device, other, third = platform.devices[:3]
    latch = scheduler.hold(device.compute)
    source = put(device, VALUES)
    held = compute(ADD_ONE, source)
    after = move(held, other)
    behind = share_a_queue(device.transfer_to(other), device.transfer_to(third))
    free = compute(SQUARE, put(third, VALUES) if behind else move(source, third))
    np.testing.assert_array_equal(read(free), VALUES**2)
    read(source)
    assert latch.held
    assert not scheduler.is_ready([held])
    assert not scheduler.is_ready([free, after])
    assert scheduler.is_ready([free, source])
    latch.release()
    latch.release()
    assert not latch.held
    np.testing.assert_array_equal(read(after), VALUES + 1)
    assert scheduler.is_ready([held, after])


def test_all_latches_can_be_released_at_once(platform: Platform) -> None:
    """Also those that nobody holds a reference to."""
    device = platform.devices[0]
    for _ in range(3):
        platform.scheduler.hold(device.compute)
    result = compute(ADD_ONE, put(device, VALUES))
    assert platform.scheduler.release_latches() == 3
    assert platform.scheduler.release_latches() == 0
    np.testing.assert_array_equal(read(result), VALUES + 1)


def test_a_buffer_may_be_read_and_written_by_one_task(platform: Platform) -> None:
    device, other = platform.devices[:2]
    buffer = put(device, VALUES)
    copied = move(buffer, other)
    platform.scheduler.submit(ADD_ONE, device.compute, (buffer,), (buffer,))
    np.testing.assert_array_equal(read(copied), VALUES)
    np.testing.assert_array_equal(read(buffer), VALUES + 1)


def test_a_batch_is_one_task_for_all_shards(platform: Platform) -> None:
    scheduler = platform.scheduler
    sources = [put(device, VALUES + device.id) for device in platform.devices]
    results = [new(device, source) for device, source in zip(platform.devices, sources, strict=True)]
    add = task(lambda x, y: x * y, "scale")
    with scheduler.log.record() as records:
        scheduler.submit_batch(
            add,
            [(r.device.compute, (s,), (r,)) for s, r in zip(sources, results, strict=True)],
            scalars=(np.int64(3),),
        )
    assert [record.device for record in records] == list(platform.devices)
    assert {record.task for record in records} == {add}
    for i, result in enumerate(results):
        np.testing.assert_array_equal(read(result), (VALUES + i) * 3)


@pytest.mark.parametrize("seconds", [0.0, LONG])
def test_a_batch_may_make_its_results(platform: Platform, seconds: float) -> None:
    """Two shards, two results each; each is written on the compute stream of its device."""
    scheduler = platform.scheduler
    devices = platform.devices[2:4]
    sources = [put(device, VALUES * device.id) for device in devices]

    def run(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
        writes[0][...] = reads[0] + scalars[0]
        writes[1][...] = reads[0].sum()

    work = ComputeTask("two", run, seconds)
    made = [((12,), np.dtype(np.int64), 96), ((), np.dtype(np.float32), 4)]
    with scheduler.log.record() as records:
        results = scheduler.submit_new(work, made, devices, [sources], (np.int64(5),))
    assert [record.stream for record in records] == [device.compute for device in devices]
    assert [record.writes for record in records] == [(one.id, two.id) for one, two in zip(*results, strict=True)]
    for device, total, mean in zip(devices, *results, strict=True):
        assert (total.device, mean.device) == (device, device)
        np.testing.assert_array_equal(read(total), VALUES * device.id + 5)
        assert read(mean) == VALUES.sum() * device.id


def test_a_batch_without_memory_for_all_starts_nothing(platform: Platform) -> None:
    scheduler = platform.scheduler
    device, other = platform.devices[:2]
    sources = [put(device, VALUES), put(other, VALUES)]
    config.update("max_device_bytes", 250)
    kept = put(other, VALUES)
    with scheduler.log.record() as records, pytest.raises(OutOfMemoryError):
        scheduler.submit_new(ADD_ONE, [((12,), np.dtype(np.int64), 96)], (device, other), [sources])
    assert records == []
    read(kept)
    finish(platform)
    assert used(platform) == {"bytes_in_use": 3 * 96, "bytes_parked": 0}


@pytest.mark.parametrize("seconds", [0.0, LONG])
def test_sync_waits_in_every_call(platform: Platform, seconds: float) -> None:
    config.update("sync", True)
    device, other = platform.devices[:2]
    source = put(device, VALUES)
    result = compute(task(lambda x: x + 1, seconds=seconds), source)
    moved = move(result, other)
    assert all(event.done for buffer in (source, result, moved) for event in buffer.writes)
    with pytest.raises(ValueError, match="boom"):
        compute(failing("boom", seconds), source)


def test_run_ahead_is_bounded(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the device, no more than so much is unfinished when a call returns."""
    monkeypatch.setattr("cuplace.runtime.scheduler.host.RUN_AHEAD", 10)
    device = platform.devices[0]
    source = put(device, VALUES)
    results = []
    for _ in range(100):
        results.append(compute(ADD_ONE, source))
        assert sum(not event.done for result in results for event in result.writes) <= 10
    for result in results:
        np.testing.assert_array_equal(read(result), VALUES + 1)


# ---------------------------------------------------------------------- uploads and downloads


@pytest.mark.parametrize("layout", SOURCES)
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("count", [2, 1 << 10, 1 << 21])
def test_the_value_of_an_upload_is_as_of_the_call(platform: Platform, layout: str, held: bool, count: int) -> None:
    """8 bytes to 8 MiB, the source overwritten at once; with the upload stream busy and idle."""
    scheduler = platform.scheduler
    device = platform.devices[0]
    host = SOURCES[layout](count)
    expected = host.astype(np.float32)
    buffer = scheduler.allocate(device, host.shape, np.dtype(np.float32))
    latch = scheduler.hold(device.upload) if held else None
    scheduler.upload(buffer, host)
    host[...] = -1
    if latch is not None:
        assert not scheduler.is_ready([buffer])
        latch.release()
    np.testing.assert_array_equal(read(buffer), expected)


def test_an_upload_record_tells_bytes_and_path(platform: Platform) -> None:
    with platform.scheduler.log.record() as records:
        buffer = put(platform.devices[2], VALUES)
    (record,) = records
    assert (record.kind, record.nbytes, record.path) == ("upload", 96, "host")
    assert (record.reads, record.writes) == ((), (buffer.id,))
    assert record.stream is platform.devices[2].upload


@pytest.mark.order(once=True)
def test_uploads_that_cannot_be_cast_raise_and_change_nothing(platform: Platform) -> None:
    device = platform.devices[0]
    buffer = put(device, VALUES)
    latch = platform.scheduler.hold(device.upload)
    with pytest.raises(ValueError, match="invalid literal"):
        platform.scheduler.upload(buffer, np.array(["a"] * 12))
    latch.release()
    np.testing.assert_array_equal(read(buffer), VALUES)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3), (4, 1, 5)], ids=str)
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "bfloat16", "complex64", "float8_e4m3fn"])
def test_what_goes_up_comes_down(platform: Platform, shape: tuple[int, ...], dtype: str) -> None:
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    host = (np.arange(np.prod(shape)) % 2).reshape(shape).astype(kind)
    buffer = put(platform.devices[0], host, kind)
    down = read(buffer)
    assert (down.shape, down.dtype) == (shape, kind)
    assert not down.flags.writeable
    np.testing.assert_array_equal(down.view(), host)


def test_downloads_wait(platform: Platform) -> None:
    device = platform.devices[0]
    source = put(device, VALUES)
    for i in range(20):
        np.testing.assert_array_equal(read(compute(task(lambda x, k: x + k), source, scalars=(i,))), VALUES + i)


# ---------------------------------------------------------------------- foreign memory


def test_adopted_memory_is_a_buffer_like_others(platform: Platform) -> None:
    device, other = platform.devices[:2]
    buffer = platform.scheduler.adopt(foreign_array(device, VALUES.copy()), device)
    np.testing.assert_array_equal(read(compute(ADD_ONE, buffer)), VALUES + 1)
    np.testing.assert_array_equal(read(move(buffer, other)), VALUES)
    assert device.memory_stats()["bytes_in_use"] == 0 or buffer.block.nbytes == 0


@pytest.mark.parametrize("layout", [layout for layout in SOURCES if layout != "other dtype"])
def test_adopted_memory_may_have_any_strides(platform: Platform, layout: str) -> None:
    device, other = platform.devices[:2]
    values = SOURCES[layout](24)
    buffer = platform.scheduler.adopt(foreign_array(device, values), device)
    np.testing.assert_array_equal(read(buffer), values)
    np.testing.assert_array_equal(read(move(buffer, other)), values)


def test_adopted_memory_counts_for_what_its_stream_has_enqueued(platform: Platform) -> None:
    device = platform.devices[0]
    theirs = device.download
    latch = platform.scheduler.hold(theirs)
    buffer = platform.scheduler.adopt(foreign_array(device, VALUES.copy()), device, theirs)
    assert not platform.scheduler.is_ready([buffer])
    result = compute(ADD_ONE, buffer)
    assert not platform.scheduler.is_ready([result])
    latch.release()
    np.testing.assert_array_equal(read(result), VALUES + 1)


@pytest.mark.order(once=True)
def test_an_owner_lives_as_long_as_work_needs_it_and_no_longer(platform: Platform) -> None:
    device, other = platform.devices[:2]
    foreign = foreign_array(device, VALUES.copy())
    latch = platform.scheduler.hold(device.transfer_to(other))
    buffer = platform.scheduler.adopt(foreign, device)
    block = buffer.block
    moved = move(buffer, other)
    del buffer
    platform.scheduler.park()
    assert block.storage is foreign
    latch.release()
    np.testing.assert_array_equal(read(moved), VALUES)
    finish(platform)
    put(device, VALUES)
    assert block.storage is None


@pytest.mark.order(once=True)
def test_lent_memory_is_complete_for_their_stream_and_read_by_it(platform: Platform) -> None:
    """Their stream waits for our write; our next write waits for their use."""
    scheduler = platform.scheduler
    device, other = platform.devices[:2]
    theirs = device.download
    source = put(device, VALUES)
    read(source)
    held = scheduler.hold(device.compute)
    buffer = compute(ADD_ONE, source)
    seen = scheduler.allocate(device, (12,), np.dtype(np.int64), TRANSFER)
    with scheduler.lend(buffer, theirs) as array:
        use(scheduler, theirs, array, seen.array)
    with scheduler.log.record() as records:
        scheduler.upload(buffer, VALUES * 7)
    assert len(records[0].waits) == 2
    held.release()
    np.testing.assert_array_equal(read(buffer), VALUES * 7)
    np.testing.assert_array_equal(host_values(seen.array), VALUES + 1)
    assert other.memory_stats()["bytes_in_use"] == 0


def use(scheduler: Any, stream: Any, source: Any, target: Any) -> None:
    """Work of somebody else: enqueued on a stream behind the scheduler's back."""
    from cuplace.runtime.submission import Submission

    submission = Submission(-1, copy_task_of(target), stream, (), (), (), None, 0)
    stream.copy(source, target, "local", (), submission)


def copy_task_of(array: Any) -> CopyTask:
    return CopyTask(None, None, "local", array.nbytes)


@pytest.mark.order(once=True)
def test_lending_to_the_host_waits(platform: Platform) -> None:
    device = platform.devices[0]
    result = compute(ADD_ONE, put(device, VALUES))
    with platform.scheduler.lend(result) as array:
        np.testing.assert_array_equal(host_values(array), VALUES + 1)


@pytest.mark.order(once=True)
def test_what_is_known_to_have_failed_is_not_lent(platform: Platform) -> None:
    device = platform.devices[0]
    result = compute(failing("boom"), put(device, VALUES))
    with pytest.raises(ValueError, match="boom"):
        read(result)
    for stream in (None, device.download):
        with pytest.raises(ValueError, match="boom"), platform.scheduler.lend(result, stream):
            raise AssertionError("it was lent")


# ---------------------------------------------------------------------- failures


@pytest.mark.order(once=True)
@pytest.mark.parametrize("seconds", [0.0, LONG])
def test_a_failure_is_told_by_the_wait_with_the_users_line(platform: Platform, seconds: float) -> None:
    device, other = platform.devices[:2]
    source = put(device, VALUES)
    result = new(device, source)
    platform.scheduler.submit(failing("boom", seconds), device.compute, (source,), (result,))
    line = inspect.currentframe().f_lineno - 1
    dependents = [compute(ADD_ONE, result), move(result, other)]
    dependents.append(compute(SQUARE, dependents[1]))
    raised = []
    for buffer in [result, *dependents]:
        with pytest.raises(ValueError, match="boom") as caught:
            platform.scheduler.host_wait([buffer])
        raised.append(caught.value)
    assert all(error is raised[0] for error in raised)
    function = "test_a_failure_is_told_by_the_wait_with_the_users_line"
    assert raised[0].__notes__ == [f"raised by 'failing', enqueued at {__file__}:{line} ({function})"]


@pytest.mark.order(once=True)
@pytest.mark.parametrize("seconds", [0.0, LONG])
def test_a_failure_concerns_nobody_else(platform: Platform, seconds: float) -> None:
    device, other = platform.devices[:2]
    source, spare = put(device, VALUES), put(other, VALUES)
    result = compute(failing("boom", seconds), source)
    np.testing.assert_array_equal(read(compute(ADD_ONE, source)), VALUES + 1)
    np.testing.assert_array_equal(read(compute(ADD_ONE, spare)), VALUES + 1)
    with pytest.raises(ValueError, match="boom"):
        read(result)
    with pytest.raises(ValueError, match="boom"):
        platform.scheduler.host_wait([source, result])
    platform.scheduler.host_wait([source, spare])
    assert platform.scheduler.is_ready([result])


@pytest.mark.order(once=True)
@pytest.mark.parametrize("seconds", [0.0, LONG])
def test_what_a_failed_reader_read_may_be_written_again(platform: Platform, seconds: float) -> None:
    """Waiting for a reader is a matter of order only; its failure is not the writer's."""
    device = platform.devices[0]
    buffer = put(device, VALUES)
    failed = compute(failing("boom", seconds), buffer)
    platform.scheduler.upload(buffer, VALUES * 2)
    np.testing.assert_array_equal(read(buffer), VALUES * 2)
    platform.scheduler.upload(failed, VALUES * 3)
    np.testing.assert_array_equal(read(failed), VALUES * 3)


@pytest.mark.order(once=True)
def test_half_a_target_that_failed_fails_as_a_whole(platform: Platform) -> None:
    device, other, home = platform.devices[:3]
    good, bad = put(device, VALUES), compute(failing("boom"), put(other, VALUES))
    target = platform.scheduler.allocate(home, (12,), np.dtype(np.int64))
    boxes = [(slice(0, 6),), (slice(6, 12),)]
    platform.scheduler.submit_moves(
        [
            (CopyTask(box, box, "local", 48), source.device.transfer_to(home), source, target)
            for box, source in zip(boxes, (good, bad), strict=True)
        ]
    )
    with pytest.raises(ValueError, match="boom"):
        read(target)
    np.testing.assert_array_equal(read(good), VALUES)


@pytest.mark.order(once=True)
def test_failures_do_not_pile_up(platform: Platform) -> None:
    device = platform.devices[0]
    source = put(device, VALUES)
    for i in range(50):
        with pytest.raises(ValueError, match=rf"^number {i}\b"):
            read(compute(failing(f"number {i}"), source))
    np.testing.assert_array_equal(read(compute(ADD_ONE, source)), VALUES + 1)


@pytest.mark.order(once=True)
def test_a_copy_that_does_not_fit_leaves_no_trace(platform: Platform) -> None:
    """A mistake inside a call: the moves before it are in order all the same."""
    device, other = platform.devices[:2]
    source = put(device, VALUES)
    read(source)
    latch = platform.scheduler.hold(device.transfer_to(other))
    target = new(other, source, TRANSFER)
    stream = device.transfer_to(other)
    broken = CopyTask(("no slices",), None, "local", 8)  # type: ignore[arg-type]
    with pytest.raises((IndexError, ValueError)):
        platform.scheduler.submit_moves([(copy_task(source), stream, source, target), (broken, stream, source, target)])
    assert not platform.scheduler.is_ready([target])
    latch.release()
    np.testing.assert_array_equal(read(target), VALUES)
    del target, source
    finish(platform)
    assert used(platform) == {"bytes_in_use": 0, "bytes_parked": 0}
