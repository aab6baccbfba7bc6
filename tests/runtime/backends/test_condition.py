"""Condition: sleepers are woken, each notification by one, and an interrupt leaves nothing behind."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest

from cuplace.runtime.backends.condition import Condition
from tests.runtime.streams import in_threads


@pytest.fixture(autouse=True)
def _python_handles_interrupts() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def sleepers(condition: Condition) -> int:
    return len(condition._sleepers)


def until_asleep(condition: Condition, count: int) -> None:
    end = time.monotonic() + 20
    while sleepers(condition) < count:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_items_pass_from_thread_to_thread() -> None:
    condition = Condition(threading.RLock())
    items: list[int] = []
    got: list[int] = []

    def give() -> None:
        for i in range(300):
            with condition:
                items.append(i)
                condition.notify()

    def take() -> None:
        for _ in range(200):
            with condition:
                while not items:
                    condition.wait()
                got.append(items.pop())

    in_threads([give, give, take, take, take])
    assert sorted(got) == sorted([*range(300), *range(300)])
    assert sleepers(condition) == 0


def test_one_notification_wakes_one_sleeper() -> None:
    condition = Condition(threading.RLock())
    woken: list[int] = []

    def sleep(i: int) -> None:
        with condition:
            condition.wait()
            woken.append(i)

    threads = [threading.Thread(target=sleep, args=(i,)) for i in range(3)]
    for i, thread in enumerate(threads):
        thread.start()
        until_asleep(condition, i + 1)
    with condition:
        condition.notify()
    threads[0].join(20)
    assert woken == [0]
    with condition:
        condition.notify_all()
    for thread in threads:
        thread.join(20)
    assert sorted(woken) == [0, 1, 2]


def test_a_lock_that_is_held_twice_is_let_go_and_taken_back() -> None:
    lock = threading.RLock()
    condition = Condition(lock)

    def wake() -> None:
        until_asleep(condition, 1)
        with condition:
            condition.notify()

    thread = threading.Thread(target=wake)
    thread.start()
    with condition, condition:
        condition.wait()
        assert in_threads([lambda: lock.acquire(blocking=False)]) == [False]
    thread.join(20)


def test_an_interrupt_ends_a_sleep_and_takes_no_notification() -> None:
    lock = threading.RLock()
    condition = Condition(lock)
    woken = threading.Event()

    def sleep() -> None:
        with condition:
            condition.wait()
        woken.set()

    def interrupt() -> None:
        until_asleep(condition, 1)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt), condition:
        condition.wait()
    assert sleepers(condition) == 0
    thread = threading.Thread(target=sleep)
    thread.start()
    until_asleep(condition, 1)
    with condition:
        condition.notify()
    assert woken.wait(20)
    thread.join()
