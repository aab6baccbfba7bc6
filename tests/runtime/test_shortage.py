"""When memory runs out: what comes back first, what is told, and that everything else goes on."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from cuplace.errors import OutOfMemoryError
from cuplace.runtime.config import config
from cuplace.runtime.device import Device
from cuplace.runtime.faults import Faults
from cuplace.runtime.memory import COMPUTE
from cuplace.runtime.platform import Platform
from tests import fakecuda
from tests.runtime.streams import ADD_ONE, compute, finish, move, put, read

pytestmark = pytest.mark.order(once=True)

COUNT = 1 << 18
NBYTES = COUNT * 8  # 2 MiB: more than pools keep for themselves
VALUES = np.arange(COUNT, dtype=np.int64)


@contextmanager
def room(device: Device, blocks: int) -> Iterator[None]:
    """No more memory than for so many blocks: by the option, on every platform."""
    before = config.max_device_bytes
    config.update("max_device_bytes", device.memory.in_use + blocks * NBYTES)
    try:
        yield
    finally:
        config.update("max_device_bytes", before)


@contextmanager
def hardware(device: Device, blocks: int) -> Iterator[None]:
    """The same by the hardware: on cuda the fake GPU has no more, elsewhere the pools refuse."""
    if device.platform == "gpu":
        device.memory.trim()
        cupy = device.backend.xp
        with cupy.cuda.Device(device.gpu):
            cupy.get_default_memory_pool().free_all_blocks()  # of tests before
        fakecuda.faults.memory_limit(fakecuda.counters().devices[device.gpu].used + blocks * NBYTES, device.gpu)
        try:
            yield
        finally:
            fakecuda.faults.clear()
        return
    pools: list[Any] = [arena.pool for arena in device.memory.arenas.values()]
    most = device.memory.in_use + blocks * NBYTES
    for pool in pools:
        pool.allocate = partial(_allocate_up_to, device, most, pool.allocate)
    try:
        yield
    finally:
        for pool in pools:
            del pool.allocate


def _allocate_up_to(device: Device, most: int, allocate: Callable[[int], Any], nbytes: int) -> Any:
    if device.memory.in_use + nbytes > most:
        raise MemoryError("no more")
    return allocate(nbytes)


LIMITS = pytest.mark.parametrize("limited", [room, hardware], ids=lambda limit: limit.__name__)
Limit = Callable[[Device, int], Any]


class Cycle:
    """Something that only Python's collector gets rid of."""

    def __init__(self, held: Any) -> None:
        self.held = held
        self.itself = self


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """Python's collector runs only when it is asked to."""
    gc.disable()
    yield
    gc.enable()


@LIMITS
def test_arrays_in_reference_cycles_make_room(platform: Platform, limited: Limit) -> None:
    device = platform.devices[2]
    with limited(device, 3):
        for i in range(4):
            Cycle(put(device, VALUES + i))
        kept = put(device, VALUES)
        np.testing.assert_array_equal(read(kept), VALUES)


@LIMITS
def test_arrays_in_tracebacks_make_room(platform: Platform, limited: Limit) -> None:
    """The usual way to lose memory: the frame that an exception has seen holds the exception."""
    device = platform.devices[2]

    def fails(i: int) -> None:
        values = put(device, VALUES + i)
        try:
            raise ValueError(values)
        except ValueError as error:
            caught = error
        assert caught.__traceback__ is not None

    with limited(device, 2):
        for i in range(3):
            fails(i)
        np.testing.assert_array_equal(read(put(device, VALUES)), VALUES)


@LIMITS
def test_what_is_alive_is_told_and_the_platform_goes_on(platform: Platform, limited: Limit) -> None:
    device = platform.devices[2]
    with limited(device, 4):
        kept = [put(device, VALUES + i) for i in range(4)]
        for _ in range(2):
            with pytest.raises(OutOfMemoryError) as caught:
                put(device, VALUES)
            told = str(caught.value).splitlines()
            assert told[0].startswith(f"Out of memory on {device}: int64[{COUNT}] needs {NBYTES:,} bytes; ")
            assert [line.split()[-1] for line in told[2:6]] == [f"int64[{COUNT}]"] * 4
        for i, buffer in enumerate(kept):
            np.testing.assert_array_equal(read(buffer), VALUES + i)
        del buffer, caught
        del kept[2:]
        np.testing.assert_array_equal(read(compute(ADD_ONE, kept[0])), VALUES + 1)
        np.testing.assert_array_equal(read(put(platform.devices[3], VALUES)), VALUES)


@LIMITS
def test_a_jitted_call_that_does_not_fit_changes_nothing(platform: Platform, limited: Limit) -> None:
    """All memory of a call is there before anything is enqueued."""
    device, other = platform.devices[2:4]
    sources = [put(device, VALUES), put(other, VALUES)]
    more = [put(other, VALUES), put(other, VALUES)]
    made = [((COUNT,), VALUES.dtype, NBYTES)] * 2
    short = f"({device}|{other})" if device.gpu == other.gpu else str(other)  # the memory of a GPU is both partitions'
    with limited(other, 1), platform.scheduler.log.record() as records:
        with pytest.raises(OutOfMemoryError, match=f"Out of memory on {short}:"):
            platform.scheduler.submit_new(ADD_ONE, made, (device, other), [sources])
        assert records == []
    sources.clear()
    more.clear()
    finish(platform)
    assert [each.memory_stats()["bytes_in_use"] for each in (device, other)] == [0, 0]


def test_the_rest_of_a_long_table_is_one_line(platform: Platform) -> None:
    device = platform.devices[0]
    kept = [put(device, np.zeros(100 + i), np.int8) for i in range(20)]
    config.update("max_device_bytes", device.memory.in_use)
    with pytest.raises(OutOfMemoryError) as caught:
        put(device, VALUES)
    rows = str(caught.value).splitlines()[2:-1]
    assert [row.split() for row in rows[:2]] == [["119", "int8[119]"], ["118", "int8[118]"]]
    assert rows[-1].split() == [f"{sum(range(100, 112)):,}", "in", "12", "more"]
    assert len(kept) == 20


def test_a_shortage_on_demand_is_told_likewise(platform: Platform) -> None:
    device = platform.devices[0]
    kept = put(device, VALUES)
    platform.set_faults(Faults(oom_after=0))
    with pytest.raises(OutOfMemoryError, match="The allocator said: out of memory on demand"):
        compute(ADD_ONE, kept)
    platform.set_faults(Faults())
    np.testing.assert_array_equal(read(compute(ADD_ONE, kept)), VALUES + 1)


# ---------------------------------------------------------------------- partitions of one GPU


@pytest.mark.parametrize("platform", ["sim"], indirect=True)
def test_memories_of_other_hardware_are_left_alone(platform: Platform) -> None:
    """Nobody waits for another GPU's work, or empties its pools, when one is short of memory."""
    device, other = platform.devices[:2]
    source = put(other, VALUES)
    latch = platform.scheduler.hold(other.transfer_to(device))
    moved = move(source, device)
    del source
    platform.scheduler.park()
    with hardware(device, 0), pytest.raises(OutOfMemoryError):
        platform.scheduler.allocate(device, (COUNT,), VALUES.dtype, COMPUTE)
    assert other.memory_stats()["bytes_parked"] == NBYTES
    latch.release()
    np.testing.assert_array_equal(read(moved), VALUES)
