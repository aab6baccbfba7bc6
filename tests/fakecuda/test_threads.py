"""Host threads: each has its own clock; what orders them is what orders real programs."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests import fakecuda


def kinds() -> list[str]:
    return [report.kind for report in fakecuda.take_reports()]


@pytest.fixture
def pinned(cp: ModuleType) -> Any:
    memory = cp.cuda.alloc_pinned_memory(64)
    fakecuda.host_access(memory.ptr, 64, write=True)
    return memory


def in_thread(function: Callable[[], None]) -> None:
    """Run in a thread whose start and end order nothing."""
    done = threading.Event()

    def run() -> None:
        function()
        done.set()

    before = fakecuda.counters().threads
    _thread.start_new_thread(run, ())
    done.wait()
    while fakecuda.counters().threads > before:  # it ends a little after its function
        time.sleep(1e-3)


def write(memory: Any) -> None:
    fakecuda.host_access(memory.ptr, 64, write=True)


def test_two_threads_race_where_nothing_orders_them(pinned: Any) -> None:
    in_thread(lambda: write(pinned))
    write(pinned)
    assert kinds() == ["race"]


def test_start_and_join_order_threads(pinned: Any) -> None:
    write(pinned)
    thread = threading.Thread(target=write, args=(pinned,))
    thread.start()
    thread.join()
    write(pinned)
    assert kinds() == []


def test_a_watched_lock_orders_its_holders(pinned: Any) -> None:
    lock = fakecuda.watched(threading.RLock())

    def locked_write() -> None:
        with lock:
            write(pinned)

    locked_write()
    in_thread(locked_write)
    locked_write()
    assert kinds() == []


def test_a_token_hands_on_what_a_thread_knows(pinned: Any) -> None:
    def produce() -> None:
        write(pinned)
        fakecuda.hand_on(7)

    in_thread(produce)
    fakecuda.take_over(7, forget=True)
    write(pinned)
    assert kinds() == []


def test_an_event_orders_the_thread_that_waits_for_it(cp: ModuleType, pinned: Any) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    x = cp.cuda.runtime.malloc(64)
    events = []

    def upload() -> None:
        write(pinned)
        cp.cuda.runtime.memcpyAsync(x, pinned.ptr, 64, 1, stream.ptr)
        events.append(stream.record(cp.cuda.Event(disable_timing=True)))

    in_thread(upload)
    events[0].synchronize()
    write(pinned)
    assert kinds() == []
    in_thread(upload)
    write(pinned)  # neither this nor the copy waits for the other
    assert set(kinds()) == {"race"}
    cp.cuda.runtime.free(x)


def test_a_thread_that_only_collects_garbage_does_not_act(cp: ModuleType) -> None:
    garbage = [cp.cuda.Stream(non_blocking=True), cp.cuda.Event(), cp.cuda.runtime.malloc(64)]
    before = fakecuda.counters().threads

    def collect() -> None:
        cp.cuda.runtime.free(garbage.pop())
        garbage.clear()
        assert fakecuda.counters().threads == before

    thread = threading.Thread(target=collect)
    thread.start()
    thread.join()
    assert not garbage


def test_many_threads_use_the_fake_at_once(cp: ModuleType, clean: None, mode: str) -> None:
    results: dict[int, list[float]] = {}

    def work(i: int) -> None:
        with cp.cuda.Device(i):
            stream = cp.cuda.Stream(non_blocking=True)
            with stream:
                x = cp.zeros(100) + i
                for _ in range(20):
                    x += 1
                results[i] = x.get().tolist()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: [i + 20.0] * 100 for i in range(8)}


def test_a_host_function_runs_in_stream_order(cp: ModuleType, clean: None, mode: str) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    seen: list[int] = []
    for i in range(10):
        stream.launch_host_func(seen.append, i)
    stream.synchronize()
    assert seen == list(range(10))
