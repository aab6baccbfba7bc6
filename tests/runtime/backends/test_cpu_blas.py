"""BLAS runs on one thread inside strands, and as before outside."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from cuplace.runtime.backends.cpu.blas import SingleThreadedBlas
from cuplace.runtime.platform import Platform, open_platform
from tests.runtime.streams import LONG, compute, failing, in_threads, put, read, task


class Library:
    """A BLAS that counts the threads it was told to use."""

    threading_layer = "pthreads"

    def __init__(self, threads: int) -> None:
        self.num_threads = threads
        self.calls: list[int] = []

    def set_num_threads(self, count: int) -> None:
        self.calls.append(count)
        self.num_threads = count


class OpenMPLibrary:
    """One that counts them for each calling thread."""

    threading_layer = "openmp"

    def __init__(self, threads: int) -> None:
        self.mine = threading.local()
        self.threads = threads

    @property
    def num_threads(self) -> int:
        return getattr(self.mine, "threads", self.threads)

    def set_num_threads(self, count: int) -> None:
        self.mine.threads = count


@pytest.fixture
def guarded() -> tuple[SingleThreadedBlas, list[Library]]:
    guard = SingleThreadedBlas()
    libraries = [Library(4), Library(7)]
    guard._shared, guard._per_thread = libraries, []
    return guard, libraries


def threads_of(libraries: list[Library]) -> list[int]:
    return [library.num_threads for library in libraries]


def test_inside_it_is_one_and_outside_what_it_was(guarded: Any) -> None:
    guard, libraries = guarded
    with guard:
        assert threads_of(libraries) == [1, 1]
    assert threads_of(libraries) == [4, 7]


def test_it_is_restored_after_a_failure(guarded: Any) -> None:
    guard, libraries = guarded
    with pytest.raises(ZeroDivisionError), guard:
        1 / 0
    assert threads_of(libraries) == [4, 7]


def test_the_last_one_out_restores(guarded: Any) -> None:
    guard, libraries = guarded
    inside, leave = threading.Barrier(3), threading.Event()

    def work() -> None:
        with guard:
            inside.wait(10)
            leave.wait(10)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    with guard:
        assert threads_of(libraries) == [1, 1]
    assert threads_of(libraries) == [1, 1]
    leave.set()
    for thread in threads:
        thread.join()
    assert threads_of(libraries) == [4, 7]
    assert libraries[0].calls == [1, 4]


def test_what_the_user_sets_in_between_is_kept(guarded: Any) -> None:
    guard, libraries = guarded
    with guard:
        pass
    libraries[0].num_threads = 2
    with guard:
        pass
    assert threads_of(libraries) == [2, 7]


def test_over_openmp_each_thread_has_its_own_limit() -> None:
    guard = SingleThreadedBlas()
    library = OpenMPLibrary(4)
    guard._shared, guard._per_thread = [], [library]
    inside = threading.Barrier(2)

    def work() -> tuple[int, int]:
        with guard:
            inside.wait(10)
            within = library.num_threads
            inside.wait(10)
        return within, library.num_threads

    assert in_threads([work, work]) == [(1, 4), (1, 4)]
    assert library.num_threads == 4


def blas() -> list[Any]:
    guard = SingleThreadedBlas()
    return guard._shared + guard._per_thread


def counts() -> list[int]:
    return [library.num_threads for library in blas()]


def test_the_numpy_of_this_process_has_a_blas() -> None:
    assert blas(), "threadpoolctl finds no BLAS: the guard would do nothing"


def test_it_works_in_any_thread() -> None:
    """Whoever set the counts first, and whoever comes last."""
    guard = SingleThreadedBlas()

    def work() -> list[int]:
        with guard:
            return counts()

    before = counts()
    for _ in range(3):
        assert in_threads([work, work, work]) == [[1] * len(before)] * 3
        assert counts() == before
        assert work() == [1] * len(before)
        assert counts() == before


def test_strands_use_it() -> None:
    before = counts()  # more than one, on more than one core
    platform: Platform = open_platform("cpu", 2)
    seen: list[list[int]] = []

    def multiply(x: Any) -> Any:
        seen.append(counts())
        return x @ x

    multiplying = task(multiply, seconds=LONG)
    multiplying.library = True
    try:
        sources = [put(device, np.eye(8)) for device in platform.devices]
        results = [compute(multiplying, source) for source in sources]
        in_threads([lambda buffer=buffer: read(buffer) for buffer in results])
        with pytest.raises(ValueError, match="boom"):
            read(compute(failing("boom"), sources[0]))
        read(compute(multiplying, sources[0]))
    finally:
        platform.close()
    assert seen == [[1] * len(before)] * 3
    assert counts() == before
