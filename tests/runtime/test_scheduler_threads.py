"""Several threads, latches released elsewhere, and forked processes."""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuplace.errors import ForkedProcessError
from cuplace.runtime.backends.cpu import open_backend
from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform
from tests.runtime.random_program import RandomProgram
from tests.runtime.streams import ADD_ONE, SQUARE, compute, failing, finish, in_threads, jitter, move, put, read, used

VALUES = np.arange(12, dtype=np.int64)


def test_many_threads_wait_for_one_value(platform: Platform) -> None:
    device, other = platform.devices[:2]
    latch = platform.scheduler.hold(device.compute)
    result = move(compute(ADD_ONE, put(device, VALUES)), other)
    timer = threading.Timer(0.02, latch.release)
    timer.start()
    for found in in_threads([lambda: read(result)] * 6):
        np.testing.assert_array_equal(found, VALUES + 1)
    timer.join()


def test_a_failure_reaches_every_waiting_thread(platform: Platform) -> None:
    device = platform.devices[0]
    latch = platform.scheduler.hold(device.compute)
    result = compute(failing("boom"), put(device, VALUES))

    def wait() -> str:
        with pytest.raises(ValueError, match="boom") as caught:
            read(result)
        return str(caught.value)

    timer = threading.Timer(0.02, latch.release)
    timer.start()
    assert in_threads([wait] * 4) == ["boom"] * 4
    timer.join()


def test_programs_of_several_threads_do_not_disturb_each_other(platform: Platform) -> None:
    """Each thread runs random programs on the same devices; each sees NumPy's values."""
    in_threads([RandomProgram(platform, seed, steps=40, latches=False).run for seed in range(4)])
    finish(platform)
    assert used(platform) == {"bytes_in_use": 0, "bytes_parked": 0}


def test_a_destructor_may_compute_wherever_it_runs(platform: Platform) -> None:
    """Garbage is collected at any allocation, also while this thread is in a door or in the pool of workers."""
    device = platform.devices[0]
    locks: list[Any] = [platform.scheduler.lock]
    if platform.name == "cpu":
        locks.append(platform.backend._pool.lock)

    def destructor() -> np.ndarray:
        return read(compute(SQUARE, compute(ADD_ONE, put(device, VALUES))))

    def inside(lock: Any) -> np.ndarray:
        with lock:
            return destructor()

    for lock in locks:
        (found,) = in_threads([lambda lock=lock: inside(lock)])
        np.testing.assert_array_equal(found, (VALUES + 1) ** 2)


def test_a_buffer_may_die_elsewhere_while_dead_ones_are_taken_in(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its block is taken in at once, too: whoever gets it comes after all that its last owner did."""
    device = platform.devices[0]
    source = put(device, VALUES)
    dying = [compute(ADD_ONE, source), compute(SQUARE, source)]
    finish(platform)
    arena = dying[0].block.arena
    free = arena.free

    def read_and_drop(gone: threading.Event) -> None:
        np.testing.assert_array_equal(read(dying[0]), VALUES + 1)
        dying.clear()
        gone.set()

    def free_slowly(block: Any) -> None:
        if dying:
            gone = threading.Event()
            _thread.start_new_thread(read_and_drop, (gone,))  # its start and its end order nothing
            assert gone.wait(20)
        free(block)

    monkeypatch.setattr(arena, "free", free_slowly)
    dying.pop()
    platform.scheduler.park()
    assert not dying
    for _ in range(3):
        np.testing.assert_array_equal(read(compute(SQUARE, source)), VALUES**2)


def test_threads_and_delays_where_memory_is_short(restored_config: None) -> None:
    config.update("max_device_bytes", 10_000)
    platform = Platform(open_backend(jitter(1), workers=3), 3)
    try:
        in_threads([RandomProgram(platform, seed, steps=60, latches=False).run for seed in range(4)])
        finish(platform)
        assert used(platform) == {"bytes_in_use": 0, "bytes_parked": 0}
    finally:
        platform.close()


def test_a_thread_that_waits_for_memory_lets_others_wait_for_values(platform: Platform) -> None:
    """One thread is inside an allocation that waits for a latch; others read what is complete and then release it."""
    scheduler = platform.scheduler
    device, other = platform.devices[:2]
    ready = compute(SQUARE, put(other, VALUES))
    read(ready)
    config.update("max_inflight_bytes", 1)
    latch = scheduler.hold(device.transfer_to(other))
    moved = move(put(device, VALUES), other)
    thread = threading.Thread(target=put, args=(device, VALUES), daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    assert scheduler.is_ready([ready])
    (found,) = in_threads([lambda: read(ready)])
    np.testing.assert_array_equal(found, VALUES**2)
    latch.release()
    thread.join(20)
    assert not thread.is_alive()
    np.testing.assert_array_equal(read(moved), VALUES)


def test_devices_may_be_used_first_in_any_thread(platform: Platform) -> None:
    def work(i: int) -> Callable[[], Any]:
        device = platform.devices[i]
        return lambda: read(move(compute(ADD_ONE, put(device, VALUES * i)), platform.devices[-1 - i]))

    for i, found in enumerate(in_threads([work(i) for i in range(8)])):
        np.testing.assert_array_equal(found, VALUES * i + 1)


# ---------------------------------------------------------------------- forks


def in_child(function: Callable[[], Any]) -> str:
    """What the function returned or raised, called in a forked child; fails where the child hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            try:
                text = repr(function())
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writing, text.encode())
        finally:
            os._exit(0)
    os.close(writing)
    answer: list[bytes] = []
    reader = threading.Thread(target=lambda: answer.append(os.read(reading, 10_000)), daemon=True)
    reader.start()
    reader.join(20)
    hangs = reader.is_alive()
    if hangs:
        os.kill(child, 9)
    os.waitpid(child, 0)
    os.close(reading)
    assert not hangs, "the child hangs"
    return answer[0].decode()


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_that_devices_stayed_behind(platform: Platform) -> None:
    scheduler = platform.scheduler
    device = platform.devices[0]
    source = put(device, VALUES)
    done = compute(ADD_ONE, source)
    read(done)
    latch = scheduler.hold(device.compute)
    pending = compute(SQUARE, source)
    doors: dict[str, Callable[[], Any]] = {
        "allocate": lambda: scheduler.allocate(device, (2,), np.dtype(np.int64)),
        "upload": lambda: scheduler.upload(source, VALUES),
        "submit": lambda: compute(ADD_ONE, source),
        "move": lambda: scheduler.submit_moves([]),
        "wait for a pending value": lambda: read(pending),
        "wait for a complete value": lambda: read(done),
        "is_ready": lambda: scheduler.is_ready([pending]),
        "adopt": lambda: scheduler.adopt(VALUES, device),
        "hold": lambda: scheduler.hold(device.compute),
        "lend": lambda: scheduler.lend(source).__enter__(),
    }
    for name, door in doors.items():
        answer = in_child(door)
        assert answer.startswith("ForkedProcessError: This process was forked"), name
        assert "get_context('spawn')" in answer
    latch.release()
    np.testing.assert_array_equal(read(pending), VALUES**2)


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_child_forked_while_locks_are_held_does_not_hang(platform: Platform) -> None:
    """The lock of the doors and the backend's own lock stay locked for ever in such a child."""
    device = platform.devices[0]
    pending_latch = platform.scheduler.hold(device.compute)
    pending = compute(ADD_ONE, put(device, VALUES))
    inside, go_on = threading.Event(), threading.Event()
    locks = [platform.scheduler.lock]
    pool = getattr(platform.backend, "_pool", None)
    if pool is not None:
        locks.append(pool.lock)

    def hold_locks() -> None:
        for lock in locks:
            lock.acquire()
        inside.set()
        go_on.wait(20)
        for lock in reversed(locks):
            lock.release()

    thread = threading.Thread(target=hold_locks)
    thread.start()
    inside.wait(20)
    try:
        for door in (lambda: read(pending), lambda: put(device, VALUES)):
            assert in_child(door).startswith("ForkedProcessError")
    finally:
        go_on.set()
        thread.join()
    pending_latch.release()
    np.testing.assert_array_equal(read(pending), VALUES + 1)


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_child_may_open_devices_of_its_own(platform: Platform) -> None:
    def work() -> Any:
        mine = Platform(open_backend(workers=1), 2)
        return int(read(move(compute(ADD_ONE, put(mine.devices[0], VALUES)), mine.devices[1])).sum())

    assert in_child(work) == str(int((VALUES + 1).sum()))


def test_forked_process_errors_are_runtime_errors() -> None:
    assert issubclass(ForkedProcessError, RuntimeError)
