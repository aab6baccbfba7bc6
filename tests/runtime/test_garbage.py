"""Garbage is collected inside every call of a backend: arrays die there, and destructors compute there."""

from __future__ import annotations

import gc
import os
import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

import cuplace
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.platform import Platform
from tests.runtime.streams import ADD_ONE, SQUARE, compute, copy_task, finish, in_threads, move, new, put, read, used

RUNTIME = os.path.join(os.path.dirname(cuplace.__file__), "runtime")
MOST = 300
VALUES = np.arange(24, dtype=np.int64)


class Garbage:
    """A cycle that holds a buffer, and whose destructor may compute, move and wait."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.itself = self
        self.buffer = collector.buffers.pop()

    def __del__(self) -> None:
        if not self.collector.computes:
            return
        source, device = self.collector.source, self.collector.platform.devices[1]
        result = move(compute(SQUARE, put(device, VALUES)), source.device)
        self.collector.found += [(read(result), VALUES**2), (read(compute(ADD_ONE, source)), VALUES + 1)]


class Collector:
    """Inside the block, garbage is collected where Python may do so in the runtime's code: at the start of functions
    and after calls of C functions. At each such place once, and at every ``step``-th point; not more often than
    ``MOST`` times, since garbage makes work, too."""

    def __init__(self, platform: Platform, step: int, computes: bool = True) -> None:
        self.platform = platform
        self.computes = computes
        self.step = step
        self.points = 0
        self.times = 0
        self.seen: set[Any] = set()
        self.source = put(platform.devices[0], VALUES)
        self.buffers: list[Buffer] = []
        self.found: list[tuple[Any, Any]] = []

    def __enter__(self) -> Collector:
        read(self.source)
        sys.setprofile(self.at)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)

    def check(self) -> int:
        """That all destructors found right values; how often garbage was collected."""
        for found, expected in self.found:
            np.testing.assert_array_equal(found, expected)
        return self.times

    def at(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(RUNTIME):
            return
        self.points += 1
        place = frame.f_code, frame.f_lasti
        if (place not in self.seen or self.points % self.step == 0) and self.times < MOST:
            self.seen.add(place)
            self.times += 1
            self.buffers.append(put(self.platform.devices[0], VALUES))
            Garbage(self)
            gc.collect(0)


def program(platform: Platform) -> None:
    """Computations, moves of whole buffers and of columns, by all roads; compared with NumPy's values."""
    device, other = platform.devices[:2]
    host = np.arange(24, dtype=np.int64).reshape(4, 6)
    for i in range(2):
        source = put(device, host + i)
        there = move(compute(SQUARE, source), other)
        back = new(device, there, TRANSFER)
        columns = [copy_task(there, (slice(None), part)) for part in (slice(0, 3), slice(3, 6))]
        stream = other.transfer_to(device)
        platform.scheduler.submit_moves([(task, stream, there, back) for task in columns])
        np.testing.assert_array_equal(read(compute(ADD_ONE, back)), (host + i) ** 2 + 1)
        np.testing.assert_array_equal(read(there), (host + i) ** 2)


@pytest.mark.parametrize("step", [11])
def test_garbage_is_collected_inside_every_call(platform: Platform, step: int) -> None:
    program(platform)
    with Collector(platform, step) as collector:
        program(platform)
    assert collector.check() > 100
    del collector
    gc.collect()
    finish(platform)
    assert used(platform) == {"bytes_in_use": 0, "bytes_parked": 0}


def test_arrays_die_inside_every_call_of_several_threads(platform: Platform) -> None:
    def work() -> int:
        with Collector(platform, 5, computes=False) as collector:
            program(platform)
        return collector.check()

    assert sum(in_threads([work] * 3)) > 100
    gc.collect()
    finish(platform)
    assert used(platform) == {"bytes_in_use": 0, "bytes_parked": 0}
