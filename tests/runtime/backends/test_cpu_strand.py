"""Strands: order, continuations, whoever waits works, inline work, latches."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cuplace.runtime.backends.cpu import open_backend
from cuplace.runtime.backends.cpu.strand import INLINE_SECONDS, SHARED_SECONDS
from cuplace.runtime.platform import Platform, open_platform
from tests.runtime.streams import ADD_ONE, LONG, SQUARE, compute, failing, in_threads, jitter, move, put, read, task

pytestmark = pytest.mark.order(once=True)

VALUES = np.arange(12, dtype=np.int64)


def opened(num_devices: int = 2, **options: Any) -> Iterator[Platform]:
    platform = Platform(open_backend(**options), num_devices)
    yield platform
    platform.close()


@pytest.fixture
def alone() -> Iterator[Platform]:
    """No worker at all: only who waits works."""
    yield from opened(workers=0)


@pytest.fixture
def one_worker() -> Iterator[Platform]:
    yield from opened(8, workers=1)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Python handles interrupts, whatever the tests were started by."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def name_of_thread(x: Any) -> Any:
    return np.full_like(x, threading.get_ident())


def test_whoever_waits_works(alone: Platform) -> None:
    device, other = alone.devices
    source = put(device, VALUES)
    ran_by = compute(task(name_of_thread), source)
    result = move(compute(SQUARE, compute(ADD_ONE, source)), other)
    time.sleep(0.001)
    assert not alone.scheduler.is_ready([result])
    np.testing.assert_array_equal(read(result), (VALUES + 1) ** 2)
    assert read(ran_by)[0] == threading.get_ident()


def test_two_waiting_threads_share_the_work(alone: Platform) -> None:
    """Each of two items waits until the other one has started: one thread alone could not run both."""
    meet = threading.Barrier(2)

    def together(x: Any) -> Any:
        meet.wait(20)
        return name_of_thread(x)

    results = [compute(task(together), put(device, VALUES)) for device in alone.devices]
    ran_by = in_threads([lambda buffer=buffer: int(read(buffer)[0]) for buffer in results])
    assert len(set(ran_by)) == 2


def test_a_waiting_thread_also_runs_what_others_need(alone: Platform) -> None:
    """It waits for the second device and runs the first one's work on the way, once it is ready."""
    device, other = alone.devices
    latch = alone.scheduler.hold(device.compute)
    result = move(compute(ADD_ONE, put(device, VALUES)), other)
    unrelated = compute(SQUARE, put(other, VALUES))
    timer = threading.Timer(0.02, latch.release)
    timer.start()
    np.testing.assert_array_equal(read(result), VALUES + 1)
    timer.join()
    np.testing.assert_array_equal(read(unrelated), VALUES**2)


def test_workers_work_though_nobody_waits(one_worker: Platform) -> None:
    result = compute(SQUARE, compute(ADD_ONE, put(one_worker.devices[0], VALUES)))
    deadline = time.monotonic() + 20
    while not one_worker.scheduler.is_ready([result]):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    np.testing.assert_array_equal(read(result), (VALUES + 1) ** 2)


def test_waits_hold_no_worker(one_worker: Platform) -> None:
    """Seven streams wait behind latches; the one worker is free for the eighth."""
    scheduler = one_worker.scheduler
    *held, free = one_worker.devices
    latches = [scheduler.hold(device.compute) for device in held]
    results = [move(compute(ADD_ONE, put(device, VALUES)), free) for device in held]
    done = threading.Event()

    def tell(x: Any) -> Any:
        done.set()
        return x

    last = compute(task(tell), put(free, VALUES))
    assert done.wait(20)
    assert not any(scheduler.is_ready([result]) for result in results)
    for latch in reversed(latches):
        latch.release()
    scheduler.host_wait([last, *results])


def test_small_ready_work_runs_in_the_call(alone: Platform) -> None:
    """Inline work leaves no event behind: there is nothing to wait for."""
    source = put(alone.devices[0], VALUES)
    assert source.writes == ()
    small = compute(task(name_of_thread, seconds=INLINE_SECONDS / 2), source)
    assert small.writes == ()
    assert source.reads is None
    assert read(small)[0] == threading.get_ident()
    copied = move(small, alone.devices[1])
    assert copied.writes == ()
    assert compute(task(name_of_thread, seconds=SHARED_SECONDS * 2), source).writes != ()


def test_middling_work_runs_in_the_call_only_where_no_worker_is_idle(alone: Platform) -> None:
    """A worker gets the interpreter's lock only when the caller lets it go, as the caller does in such work."""
    middling = (INLINE_SECONDS + SHARED_SECONDS) / 2
    assert compute(task(name_of_thread, seconds=middling), put(alone.devices[0], VALUES)).writes == ()
    platform = open_platform("cpu", 2, workers=1)
    try:
        home, other = platform.devices
        first = compute(task(name_of_thread, seconds=middling), put(home, VALUES))
        assert first.writes != ()
        busy = threading.Event()
        held = threading.Event()
        compute(task(lambda x: (busy.set(), held.wait(20), x)[-1]), put(home, VALUES))
        assert busy.wait(20)
        assert read(compute(task(name_of_thread, seconds=middling), put(other, VALUES)))[0] == threading.get_ident()
        held.set()
        assert read(first)[0] != threading.get_ident()
    finally:
        platform.close()


def test_small_work_keeps_its_place_behind_queued_work(alone: Platform) -> None:
    order: list[str] = []

    def note(name: str, seconds: float) -> Any:
        return task(lambda x: order.append(name) or x, seconds=seconds)

    source = put(alone.devices[0], VALUES)
    compute(note("long", LONG), source)
    last = compute(note("short", 0.0), source)
    assert order == []
    read(last)
    assert order == ["long", "short"]


def test_small_work_waits_for_its_operands(alone: Platform) -> None:
    device, other = alone.devices
    slow = compute(ADD_ONE, put(device, VALUES))
    moved = move(slow, other)
    small = compute(task(lambda x: x * 2, seconds=0.0), moved)
    assert small.writes != ()
    np.testing.assert_array_equal(read(small), (VALUES + 1) * 2)


def test_inline_failures_wait_for_somebody_to_look(alone: Platform) -> None:
    """The call returns; the error comes out of the wait, and what depends on it fails alike."""
    source = put(alone.devices[0], VALUES)
    failed = compute(failing("boom", seconds=0.0), source)
    dependent = compute(task(lambda x: x, seconds=0.0), failed)
    for buffer in (failed, dependent):
        with pytest.raises(ValueError, match="boom"):
            read(buffer)
    np.testing.assert_array_equal(read(compute(task(lambda x: x + 1, seconds=0.0), source)), VALUES + 1)


@pytest.fixture
def delayed() -> Iterator[Platform]:
    """Workers that sleep for a random while before each item."""
    yield from opened(8, jitter=jitter(3), workers=4)


def test_items_of_a_strand_run_in_order_on_many_workers(delayed: Platform) -> None:
    order: list[int] = []
    source = put(delayed.devices[0], VALUES)
    results = [compute(task(lambda x, i: order.append(i) or x), source, scalars=(i,)) for i in range(100)]
    delayed.scheduler.host_wait(results)
    assert order == list(range(100))


def test_strands_run_side_by_side(delayed: Platform) -> None:
    meet = threading.Barrier(2)
    together = task(lambda x: meet.wait(20) * 0 + x)
    results = [compute(together, put(device, VALUES)) for device in delayed.devices[:2]]
    for result in results:
        np.testing.assert_array_equal(read(result), VALUES)


def test_a_ring_of_moves_on_delayed_workers(delayed: Platform) -> None:
    """Values go round over eight devices, with a computation at each step."""
    turns = 24
    buffers = [put(device, VALUES + device.id) for device in delayed.devices]
    for _ in range(turns):
        buffers = [compute(ADD_ONE, move(buffer, delayed.devices[(buffer.device.id + 1) % 8])) for buffer in buffers]
    for i, buffer in enumerate(buffers):
        np.testing.assert_array_equal(read(buffer), VALUES + i + turns)


def test_a_latch_is_released_by_another_thread(alone: Platform) -> None:
    latch = alone.scheduler.hold(alone.devices[0].compute)
    result = compute(ADD_ONE, put(alone.devices[0], VALUES))
    timer = threading.Timer(0.02, latch.release)
    timer.start()
    np.testing.assert_array_equal(read(result), VALUES + 1)
    timer.join()


def test_latches_nest_in_one_strand(alone: Platform) -> None:
    device = alone.devices[0]
    first, second = alone.scheduler.hold(device.compute), alone.scheduler.hold(device.compute)
    result = compute(ADD_ONE, put(device, VALUES))
    second.release()
    assert first.held
    assert not second.held
    assert not alone.scheduler.is_ready([result])
    first.release()
    np.testing.assert_array_equal(read(result), VALUES + 1)


def test_an_interrupt_strikes_between_items(alone: Platform, interrupts: None) -> None:
    """The main thread runs everything itself here; each item interrupts it."""
    steps: list[int] = []

    def interrupted(x: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        steps.append(len(steps))
        return x + 1

    result = put(alone.devices[0], VALUES)
    for _ in range(5):
        result = compute(task(interrupted), result)
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            alone.scheduler.host_wait([result])
    assert steps == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(read(result), VALUES + 5)


def test_what_an_interrupted_thread_leaves_is_told_to_others(
    alone: Platform, interrupts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first device's work makes the second one's ready and would be followed by it in the same thread."""
    device, other = alone.devices
    pool: Any = alone.backend._pool
    told: list[int] = []

    def interrupted(x: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return x + 1

    first = compute(task(interrupted), put(device, VALUES))
    second = move(first, other)
    monkeypatch.setattr(pool._changed, "notify", lambda count=1: told.append(count))
    with pytest.raises(KeyboardInterrupt):
        read(second)
    assert told == [1]
    np.testing.assert_array_equal(read(second), VALUES + 1)


def test_nothing_starts_before_the_first_queued_item() -> None:
    before = threading.active_count()
    for platform in opened(2, workers=3):
        read(compute(task(lambda x: x, seconds=0.0), put(platform.devices[0], VALUES)))
        assert threading.active_count() == before
        read(compute(ADD_ONE, put(platform.devices[0], VALUES)))
        assert threading.active_count() == before + 3
    assert threading.active_count() == before


def test_a_closed_pool_still_lets_waits_end(alone: Platform) -> None:
    result = compute(ADD_ONE, put(alone.devices[0], VALUES))
    alone.close()
    np.testing.assert_array_equal(read(result), VALUES + 1)
