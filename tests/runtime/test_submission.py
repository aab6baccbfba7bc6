"""Submission records: what they say, how long they are kept, and recordings."""

from __future__ import annotations

import time

import numpy as np

from cuplace.runtime.platform import Platform
from cuplace.runtime.submission import LOG_LENGTH, Submission, SubmissionLog, Together
from tests.runtime.streams import ADD_ONE, LONG, compute, move, put, read, task

VALUES = np.arange(6, dtype=np.int64)


def test_a_record_says_what_ran_where_and_why(platform: Platform) -> None:
    device, other = platform.devices[:2]
    with platform.scheduler.log.record() as records:
        source = put(device, VALUES)
        result = compute(ADD_ONE, source)
        moved = move(result, other)
    read(moved)
    upload, add, copy = records
    assert [record.kind for record in records] == ["upload", "compute", "move"]
    assert [record.name for record in records] == ["upload", "add_one", "move"]
    assert [record.nbytes for record in records] == [48, 0, 48]
    assert [record.path for record in records] == ["host", "", "local"]
    assert [record.device for record in records] == [device, device, device]
    assert (add.reads, add.writes) == ((source.id,), (result.id,))
    assert (copy.reads, copy.writes) == ((result.id,), (moved.id,))
    assert copy.stream is device.transfer_to(other)
    assert upload.id < add.id < copy.id
    assert repr(add).startswith(f"Submission({add.id}, compute 'add_one' on {device} compute from {__file__[:-18]}")


def test_streams_are_named(platform: Platform) -> None:
    device, other = platform.devices[:2]
    assert [stream.name for stream in (device.compute, device.upload, device.download, device.transfer_to(other))] == [
        f"{device} compute", f"{device} upload", f"{device} download", f"{device} -> {other}",
    ]  # fmt: skip
    assert device.transfer_to(other).role == "move"
    assert device.transfer_to(other) is device.transfer_to(other)
    assert device.transfer_to(device) is not device.compute


def test_times_are_in_order(platform: Platform) -> None:
    device = platform.devices[0]
    for seconds in (0.0, LONG):
        before = time.perf_counter_ns()
        with platform.scheduler.log.record() as records:
            result = compute(task(lambda x: x + 1, seconds=seconds), put(device, VALUES))
        read(result)
        after = time.perf_counter_ns()
        for record in records:
            if platform.name == "sim":  # in virtual time, which has nothing to do with ours
                assert 0 < record.enqueue <= record.start <= record.end
                continue
            assert before <= record.enqueue <= after
            if platform.name == "cuda":  # events carry no timing
                assert record.start == record.end == 0
            else:
                assert record.enqueue <= record.start <= record.end <= after


def test_start_and_end_are_zero_until_known(platform: Platform) -> None:
    device = platform.devices[0]
    latch = platform.scheduler.hold(device.compute)
    with platform.scheduler.log.record() as records:
        result = compute(ADD_ONE, put(device, VALUES))
    assert (records[-1].start, records[-1].end) == (0, 0)
    latch.release()
    read(result)
    if platform.name != "cuda":  # events carry no timing
        assert 0 < records[-1].start <= records[-1].end


def test_latches_are_recorded_too(platform: Platform) -> None:
    with platform.scheduler.log.record() as records:
        platform.scheduler.hold(platform.devices[0].compute).release()
    assert [(record.kind, record.name) for record in records] == [("latch", "latch")]


def test_the_log_is_bounded() -> None:
    log = SubmissionLog()
    for i in range(LOG_LENGTH + 10):
        log.append(i)  # type: ignore[arg-type]
    assert len(log.recent) == LOG_LENGTH
    assert log.recent[0] == 10


def test_the_log_is_bounded_and_in_order_where_work_ran_at_once(platform: Platform) -> None:
    log, task, stream = SubmissionLog(), ADD_ONE, platform.devices[0].compute
    for i in range(0, 2 * LOG_LENGTH, 4):
        log.append(Submission(i, task, stream, (), (i,), (), None, i))
        ids, buffers = (i + 1, i + 2, i + 3), tuple(range(6))
        log.append_together(Together(ids, [task] * 3, [stream] * 3, 1, buffers, None, i, (5, 6, 7, 8)))
    assert [record.id for record in log.recent] == list(range(LOG_LENGTH, 2 * LOG_LENGTH))
    last = log.recent[-1]
    assert (last.reads, last.writes, last.start, last.end, last.enqueue) == ((2,), (5,), 7, 8, 2 * LOG_LENGTH - 4)
    log.clear()
    assert log.recent == []


def test_recordings_are_complete_and_nest() -> None:
    log = SubmissionLog()
    with log.record() as outer:
        log.append(1)
        with log.record() as inner:
            for i in range(2, LOG_LENGTH + 5):
                log.append(i)
        log.append(-1)
    log.append(-2)
    assert outer == [*range(1, LOG_LENGTH + 5), -1]
    assert inner == list(range(2, LOG_LENGTH + 5))
    assert log.recent[-1] == -2


def test_equal_recordings_are_told_apart() -> None:
    """Two recordings with the same records: the end of one must not end the other."""
    log = SubmissionLog()
    outer, inner = log.record(), log.record()
    first = outer.__enter__()
    second = inner.__enter__()
    log.append(1)  # type: ignore[arg-type]
    outer.__exit__(None, None, None)
    log.append(2)  # type: ignore[arg-type]
    inner.__exit__(None, None, None)
    assert (first, second) == ([1], [1, 2])


def test_a_recording_ends_when_its_block_fails(platform: Platform) -> None:
    log = platform.scheduler.log
    try:
        with log.record() as records:
            raise ValueError
    except ValueError:
        put(platform.devices[0], VALUES)
    assert records == []


def test_records_keep_no_memory(platform: Platform) -> None:
    """The log outlives arrays; it names buffers by number only."""
    device = platform.devices[0]
    source = put(device, VALUES)
    read(source)
    del source
    platform.scheduler.park()
    assert device.memory_stats()["bytes_in_use"] == 0
