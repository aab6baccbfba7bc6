"""An interrupt during a wait: it comes out of the wait, and nothing is spoilt."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from cuplace.runtime.backends.interrupts import Uninterrupted
from cuplace.runtime.platform import Platform
from tests.runtime.streams import ADD_ONE, SQUARE, compute, put, read, task


def interrupt() -> None:
    """What Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def _python_handles_interrupts() -> Any:
    """Whatever started the tests may have had interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_it_is_delivered_at_the_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Uninterrupted():  # noqa: PT012
        interrupt()
        time.sleep(0.001)
        done.append("all of it")
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_blocks_nest() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Uninterrupted():  # noqa: PT012
        with Uninterrupted():
            interrupt()
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


def test_handlers_of_the_user_get_it() -> None:
    got: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
    with Uninterrupted():
        interrupt()
        time.sleep(0.001)
        assert got == []
    assert got == [signal.SIGINT]


def test_it_leaves_ignored_interrupts_alone() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Uninterrupted():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        interrupt()


def test_other_threads_pass() -> None:
    def enter() -> None:
        with Uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    seen: list[Any] = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


class TooLateError(Exception):
    """What a handler raises to end what takes too long."""


def raise_too_late(number: int, frame: Any) -> None:
    raise TooLateError


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """``alarm(seconds)``: afterwards the main thread gets a TooLateError, from the handler of another signal."""
    before = signal.signal(signal.SIGALRM, raise_too_late)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_other_signals_wait_alike(alarm: Callable[[float], None]) -> None:
    done = []
    with pytest.raises(TooLateError), Uninterrupted():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(0.001)
        done.append("all of it")
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGALRM) is raise_too_late


def test_all_that_arrive_are_delivered(alarm: Callable[[float], None]) -> None:
    with pytest.raises(TooLateError) as caught, Uninterrupted():  # noqa: PT012
        interrupt()
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(0.001)
    assert isinstance(caught.value.__context__, KeyboardInterrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_is_set_inside_stays() -> None:
    def handler(number: int, frame: Any) -> None:
        """Does nothing."""

    with Uninterrupted():
        signal.signal(signal.SIGINT, handler)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_wait_ends_with_what_the_handler_of_a_signal_raises(
    platform: Platform, alarm: Callable[[float], None]
) -> None:
    device = platform.devices[0]
    source = put(device, np.arange(5))
    latch = platform.scheduler.hold(device.compute)
    result = compute(SQUARE, source)
    alarm(0.05)
    with pytest.raises(TooLateError):
        read(result)
    latch.release()
    np.testing.assert_array_equal(read(result), np.arange(5) ** 2)


def test_what_a_handler_raises_inside_of_work_is_not_taken_for_its_failure(
    platform: Platform, alarm: Callable[[float], None]
) -> None:
    """Work in the calling thread is broken off and the call with it; queued work is finished first."""
    device = platform.devices[0]

    def late(x: Any) -> Any:
        if not told and threading.current_thread() is threading.main_thread():
            told.append(True)
            os.kill(os.getpid(), signal.SIGALRM)
            time.sleep(0.001)
        return x + 1

    told: list[bool] = []
    source = put(device, np.arange(5))
    read(source)
    results = []
    try:
        for _ in range(20):
            results.append(compute(task(late, seconds=0.0), source))
            read(results[-1])
    except TooLateError:
        told.append(True)
    assert len(told) != 1
    for result in results:
        np.testing.assert_array_equal(read(result), np.arange(1, 6))


def test_a_wait_that_is_interrupted_can_be_taken_up_again(platform: Platform) -> None:
    """The main thread waits for a held stream, and the user gives up."""
    device, other = platform.devices[:2]
    source = put(device, np.arange(5))
    latch = platform.scheduler.hold(device.compute)
    result = compute(SQUARE, source)
    timer = threading.Timer(0.05, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        read(result)
    timer.join()
    np.testing.assert_array_equal(read(compute(ADD_ONE, put(other, np.arange(5)))), np.arange(1, 6))
    latch.release()
    np.testing.assert_array_equal(read(result), np.arange(5) ** 2)


def test_work_that_the_waiting_thread_runs_is_finished_first(platform: Platform) -> None:
    """An interrupt in the middle of queued work neither spoils its value nor gets lost."""
    scheduler = platform.scheduler
    device = platform.devices[0]
    ran = []

    def slow(x: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            ran.append("main")
            interrupt()
            time.sleep(0.001)  # where a handler of signals would run
        return x + 1

    source = put(device, np.arange(5))
    results = []
    interrupted = 0
    for _ in range(30):
        try:
            results.append(compute(task(slow), source))
            read(results[-1])
        except KeyboardInterrupt:
            interrupted += 1
    assert interrupted == len(ran)
    for result in results:
        np.testing.assert_array_equal(read_through(scheduler, result), np.arange(1, 6))


def read_through(scheduler: Any, buffer: Any) -> Any:
    """Read, however often interrupts come out of the wait."""
    while True:
        try:
            return scheduler.download(buffer)
        except KeyboardInterrupt:
            continue
