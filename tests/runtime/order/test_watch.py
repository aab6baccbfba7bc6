"""Watching real platforms: switched on and off, seen through any object, and without any effect on what runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cuplace
from cuplace.errors import RaceError
from cuplace.runtime.config import config
from cuplace.runtime.order.watch import check_order
from cuplace.runtime.platform import Platform, activated, open_platform
from cuplace.runtime.scheduler import Scheduler
from tests.runtime.random_program import RandomProgram
from tests.runtime.streams import ADD_ONE, SQUARE, compute, finish, move, new, put, read, task

VALUES = np.arange(12, dtype=np.int64)


@pytest.fixture(params=["cpu", "sim"])
def plain(request: pytest.FixtureRequest, restored_config: None) -> Iterator[Platform]:
    """A current platform that nobody watches."""
    config.update("check_order", False)
    opened = open_platform(request.param, 3)
    with activated(opened):
        yield opened
    opened.close()


def classes(platform: Platform) -> set[type]:
    streams = [stream for device in platform.devices for stream in device.streams()]
    return {type(platform.backend), *map(type, streams)}


def unordered(platform: Platform) -> None:
    """Two streams that nothing orders write the same memory, behind the scheduler's back."""
    first, second = platform.devices[:2]
    latch = platform.scheduler.hold(first.compute)
    try:
        buffer = compute(ADD_ONE, put(first, VALUES))
        buffer.writes = ()
        move(buffer, second)
    finally:
        latch.release()


def test_nothing_is_watched_unless_asked_for(plain: Platform) -> None:
    before = classes(plain)
    unordered(plain)
    with check_order():
        assert not classes(plain) & before
        with pytest.raises(RaceError):
            unordered(plain)
    assert classes(plain) == before
    unordered(plain)


def test_the_option_watches_platforms_from_their_opening(restored_config: None) -> None:
    config.update("check_order", True)
    platform = open_platform("sim", 2)
    with pytest.raises(RaceError):
        unordered(platform)


def test_blocks_may_be_nested(plain: Platform) -> None:
    with check_order():
        with check_order():
            pass
        with pytest.raises(RaceError):
            unordered(plain)
    assert config.check_order is False


def test_work_from_before_needs_no_order_that_was_not_seen(plain: Platform) -> None:
    device, other = plain.devices[:2]
    latch = plain.scheduler.hold(device.compute)
    source = compute(ADD_ONE, put(device, VALUES))
    with check_order():
        moved = move(source, other)
        latch.release()
        np.testing.assert_array_equal(read(moved), VALUES + 1)
    np.testing.assert_array_equal(read(compute(SQUARE, moved)), (VALUES + 1) ** 2)


def test_streams_made_under_watch_are_watched(plain: Platform) -> None:
    with check_order():
        stream = plain.devices[2].transfer_to(plain.devices[0])
        assert type(stream) in classes(plain)
        assert type(stream).__mro__[1] is type(plain.devices[2].compute).__mro__[1]


def test_what_the_host_reads_early_is_reported_at_the_users_line(
    plain: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scheduler, "host_wait", lambda self, buffers: None)
    latch = plain.scheduler.hold(plain.devices[0].compute)
    with check_order():
        result = compute(ADD_ONE, put(plain.devices[0], VALUES))
        with pytest.raises(RaceError) as caught:
            read(result)
        text = str(caught.value)
        assert "reading an array, on the host, reads 96 bytes; from" in text
        assert "streams.py" in text  # whose `read` called the library
        assert "the host does not wait for an event recorded on stream" in text
    latch.release()


def test_a_call_that_races_enqueues_nothing(plain: Platform) -> None:
    """The runtime stays healthy, and the memory keeps its values."""
    device, other = plain.devices[:2]
    latch = plain.scheduler.hold(device.compute)
    with check_order():
        source = compute(ADD_ONE, put(device, VALUES))
        target = new(other, source)
        written = source.writes
        source.writes = ()
        with pytest.raises(RaceError):
            plain.scheduler.submit(SQUARE, other.compute, (source,), (target,))
        source.writes = written
        latch.release()
        np.testing.assert_array_equal(read(source), VALUES + 1)
        plain.scheduler.submit(SQUARE, other.compute, (source,), (target,))
        np.testing.assert_array_equal(read(target), (VALUES + 1) ** 2)
    del source, target
    finish(plain)


def test_memory_lent_to_a_stream_is_followed(plain: Platform) -> None:
    """What a borrower enqueues is an access like any other, ordered by the loan."""
    device = plain.devices[0]
    with check_order():
        latch = plain.scheduler.hold(device.compute)
        source = compute(ADD_ONE, put(device, VALUES))
        target = put(device, np.zeros_like(VALUES))
        with plain.scheduler.lend(source, device.download), plain.scheduler.lend(target, device.download):
            plain.scheduler.submit(task(lambda x: x), device.download, (source,), (target,))
        latch.release()
        np.testing.assert_array_equal(read(target), VALUES + 1)


@pytest.mark.parametrize("seed", range(5))
def test_threads_may_hand_work_to_one_another(plain: Platform, seed: int) -> None:
    """What orders threads cannot be seen, and is taken to be there."""
    with check_order():
        buffers: list[Any] = [put(plain.devices[0], VALUES)]
        for i in range(8):

            def step(i: int = i) -> None:
                moved = move(buffers.pop(), plain.devices[i % 3])
                if i % 2 == seed % 2:
                    read(moved)
                buffers.append(compute(ADD_ONE, moved))

            thread = threading.Thread(target=step)
            thread.start()
            thread.join()
        np.testing.assert_array_equal(read(buffers.pop()), VALUES + 8)


@pytest.mark.parametrize("seed", range(10))
def test_random_programs_on_threads_have_no_race(seed: int, restored_config: None) -> None:
    config.update("check_order", True)
    platform = open_platform("cpu", 3, workers=3)
    try:
        RandomProgram(platform, 500 + seed).run()
    finally:
        platform.close()


def test_a_program_of_arrays_under_watch(plain: Platform) -> None:
    with cuplace.check_order():
        x = cuplace.device_put(np.arange(8, dtype=np.float32), plain.devices[1])
        y = cuplace.device_put(cuplace.numpy.sin(x) + 1, plain.devices[2])
        x.delete()
        np.testing.assert_allclose(np.asarray(y * y), (np.sin(np.arange(8)) + 1) ** 2, rtol=1e-5)
