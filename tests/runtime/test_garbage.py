"""Garbage is collected inside every call of a backend: arrays die there, and destructors compute there."""

from __future__ import annotations

import gc
import os
import sys
from itertools import pairwise
from types import FrameType
from typing import Any

import numpy as np
import pytest

import cuplace
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.platform import Platform
from tests.memory import address_of
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


class Destructor:
    """Inside the block, at the n-th point of a pool's code where garbage may be collected, blocks are allocated and
    some of them given back. ``arrived`` tells whether there were so many."""

    def __init__(self, pool: Any, live: list[Any], points: int, freed: int) -> None:
        self.pool = pool
        self.live = live
        self.left = points
        self.freed = freed
        self.arrived = False

    def __enter__(self) -> Destructor:
        sys.setprofile(self.at)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)

    def at(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(RUNTIME):
            return
        self.left -= 1
        if self.left == 0:
            self.arrived = True
            self.live += [self.pool.allocate(nbytes) for nbytes in SIZES]
            for _ in range(self.freed):
                self.pool.free(self.live.pop(1))


SIZES = (512, 1024, 512, 512)


def apart(blocks: list[Any]) -> bool:
    """Whether no byte belongs to two blocks."""
    arrays = [block.as_array((block.nbytes,), np.dtype(np.uint8)) for block in blocks]
    ranges = sorted((address_of(array), address_of(array) + array.nbytes) for array in arrays)
    return all(end <= start for (_, end), (start, _) in pairwise(ranges))


@pytest.mark.parametrize("freed", [0, 2])
def test_pools_hand_out_nothing_twice_where_destructors_allocate_inside_them(platform: Platform, freed: int) -> None:
    pool = platform.devices[0].memory.arenas[TRANSFER].pool
    points, destructor = 0, None
    while destructor is None or destructor.arrived:
        points += 1
        live = [pool.allocate(nbytes) for nbytes in SIZES * 2]
        for block in live[::2]:
            live.remove(block)
            pool.free(block)
        destructor = Destructor(pool, live, points, freed)
        with destructor:
            live += [pool.allocate(nbytes) for nbytes in SIZES]
            pool.free(live.pop(2))
            pool.trim()
            live.append(pool.allocate(2048))
        live += [pool.allocate(nbytes) for nbytes in SIZES * 3]
        assert apart(live), points
        while live:
            pool.free(live.pop())
        pool.trim()
    assert points > 8
