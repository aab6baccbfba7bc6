"""Arenas: reuse, parking, limits, and what is told when memory runs out."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from cuplace.errors import OutOfMemoryError
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.config import config
from cuplace.runtime.memory import COMPUTE, TRANSFER
from cuplace.runtime.platform import Platform
from cuplace.runtime.submission import MEMORY_WAIT
from tests.runtime.streams import (
    ADD_ONE,
    SQUARE,
    address,
    compute,
    failing,
    finish,
    move,
    put,
    read,
    task,
    used,
)

pytestmark = pytest.mark.order(once=True)

COUNT = 64
NBYTES = COUNT * 8


def numbers(start: int = 0) -> np.ndarray:
    return np.arange(start, start + COUNT, dtype=np.int64)


# ---------------------------------------------------------------------- reuse and parking


def test_a_block_only_its_home_stream_used_is_free_at_once(platform: Platform) -> None:
    """Nothing has run yet, and the memory is in use again: stream order protects it."""
    device = platform.devices[0]
    source = put(device, numbers())
    read(source)
    with platform.scheduler.log.record() as records:
        latch = platform.scheduler.hold(device.compute)
        first = compute(ADD_ONE, source)
        second = compute(SQUARE, first)
        where = address(first)
        del first
        third = compute(ADD_ONE, source)
    if platform.name != "cuda":  # there temporaries come from the same pool
        assert address(third) == where
    assert device.memory_stats()["bytes_parked"] == 0
    assert all(not record.waits for record in records)
    latch.release()
    np.testing.assert_array_equal(read(second), (numbers() + 1) ** 2)
    np.testing.assert_array_equal(read(third), numbers() + 1)


def test_a_block_that_a_held_move_reads_is_parked_and_nobody_waits(platform: Platform) -> None:
    device, other = platform.devices[:2]
    scheduler = platform.scheduler
    base = put(device, numbers())
    source = compute(ADD_ONE, base)
    read(source)
    latch = scheduler.hold(device.transfer_to(other))
    moved = move(source, other)
    where = address(source)
    del source
    with scheduler.log.record() as records:
        again = compute(SQUARE, base)  # asks for memory of that very size
    assert address(again) != where
    assert records[-1].waits == ()
    assert device.memory_stats()["bytes_parked"] == NBYTES
    np.testing.assert_array_equal(read(again), numbers() ** 2)
    assert not scheduler.is_ready([moved])
    latch.release()
    np.testing.assert_array_equal(read(moved), numbers() + 1)
    finish(platform)
    assert device.memory_stats()["bytes_parked"] == 0
    later = [compute(ADD_ONE, base) for _ in range(3)]
    assert where in [address(buffer) for buffer in later]


def test_a_target_of_moves_comes_back_only_when_complete(platform: Platform) -> None:
    """Blocks of the transfer arena have no home stream: any stream may take them, so none is free early."""
    device = platform.devices[0]
    scheduler = platform.scheduler
    base = put(device, numbers())
    read(base)
    latch = scheduler.hold(device.compute)
    used_by_compute = compute(ADD_ONE, base)
    where = address(base)
    del base
    fresh = put(device, numbers(500))
    assert address(fresh) != where
    np.testing.assert_array_equal(read(fresh), numbers(500))
    latch.release()
    np.testing.assert_array_equal(read(used_by_compute), numbers() + 1)


def test_a_complete_block_is_free_without_a_wait(platform: Platform) -> None:
    device = platform.devices[0]
    base = put(device, numbers())
    np.testing.assert_array_equal(read(base), numbers())
    where = address(base)
    del base
    gc.collect()
    finish(platform)
    assert address(put(device, numbers(9))) == where


def test_waits_of_the_host_bring_parked_blocks_back(platform: Platform) -> None:
    """Also blocks of other devices than those that were waited for."""
    device, other = platform.devices[:2]
    scheduler = platform.scheduler
    source = put(device, numbers())
    latch = scheduler.hold(device.transfer_to(other))
    moved = move(source, other)
    del source
    scheduler.park()
    assert device.memory_stats()["bytes_parked"] == NBYTES
    latch.release()
    for _ in range(100):  # a poll of the simulator may find an event that is not yet complete
        scheduler.host_wait([moved])
        if not device.memory.parked:
            break
    assert used(platform) == {"bytes_in_use": NBYTES, "bytes_parked": 0}
    assert not scheduler.parking


def parked(platform: Platform, count: int) -> list[Buffer]:
    """So many blocks of the first device are parked whose last use is complete, and no door has seen that. Returns
    the copies of their values on another device."""
    device, other = platform.devices[:2]
    latch = platform.scheduler.hold(device.transfer_to(other))
    sources = [put(device, numbers(i)) for i in range(count)]
    platform.scheduler.host_wait(sources)
    moved = [move(source, other) for source in sources]
    sources.clear()
    platform.scheduler.park()
    assert device.memory.parked == count
    latch.release()
    for event in moved[-1].writes:
        platform.backend.synchronize(event)
    return moved


def test_an_allocation_brings_back_some_that_are_parked(platform: Platform) -> None:
    device = platform.devices[0]
    moved = parked(platform, 12)
    platform.scheduler.allocate(device, (1,), np.dtype(np.int8))
    assert 0 < device.memory.parked < 12
    for i, buffer in enumerate(moved):
        np.testing.assert_array_equal(read(buffer), numbers(i))


def test_short_memory_does_not_wait_while_what_is_parked_is_complete(platform: Platform) -> None:
    device = platform.devices[0]
    moved = parked(platform, 24)
    config.update("max_device_bytes", 24 * NBYTES)
    large = put(device, np.arange(24 * COUNT))
    assert device.memory_stats()["memory_waits"] == 0
    np.testing.assert_array_equal(read(large), np.arange(24 * COUNT))
    assert len(moved) == 24


def test_a_wait_for_parked_memory_is_one_for_its_last_use(platform: Platform) -> None:
    moved = parked(platform, 1)
    with platform.scheduler.log.record_waits() as waits:
        platform.devices[0].memory.wait_for_all_parked()
    (event,) = moved[0].writes
    assert [(wait.kind, wait.submission) for wait in waits] == [(MEMORY_WAIT, event.submission)]


@pytest.mark.parametrize("arena", [COMPUTE, TRANSFER])
def test_empty_buffers_are_parked_and_come_back_too(platform: Platform, arena: str) -> None:
    device, other = platform.devices[:2]
    scheduler = platform.scheduler
    empty = scheduler.allocate(device, (0, 3), np.dtype(np.float32), arena)
    latch = scheduler.hold(device.transfer_to(other))
    moved = move(empty, other)
    del empty
    scheduler.park()
    assert device.memory.parked == 1
    latch.release()
    assert read(moved).shape == (0, 3)
    finish(platform)
    assert device.memory.parked == 0


def test_counts_are_zero_when_everything_is_dropped(platform: Platform) -> None:
    device, other = platform.devices[:2]
    kept = [put(device, numbers(i)) for i in range(5)]
    kept += [compute(SQUARE, buffer) for buffer in kept]
    kept += [move(buffer, other) for buffer in kept]
    assert used(platform)["bytes_in_use"] == 20 * NBYTES
    assert device.memory_stats()["peak_bytes"] >= 10 * NBYTES
    kept.clear()
    finish(platform)
    assert used(platform) == {"bytes_in_use": 0, "bytes_parked": 0}
    assert all(not arena.live for device in platform.devices for arena in device.memory.arenas.values())


def test_counting_takes_in_nothing_that_is_held(platform: Platform) -> None:
    device = platform.devices[0]
    held = [put(device, numbers(i)) for i in range(4)]
    platform.scheduler.host_wait(held)
    counted = device.memory.stats()["bytes_in_use"]
    later = [put(device, numbers(100 + i)) for i in range(4)]
    platform.scheduler.host_wait(later)
    for i, buffer in enumerate(held):
        np.testing.assert_array_equal(read(buffer), numbers(i))
    assert counted == 4 * NBYTES


def test_failed_work_gives_its_memory_back(platform: Platform) -> None:
    device = platform.devices[0]
    source = put(device, numbers())
    result = compute(failing("boom"), source)
    with pytest.raises(ValueError, match="boom"):
        read(result)
    np.testing.assert_array_equal(read(compute(ADD_ONE, source)), numbers() + 1)
    del source, result
    for _ in range(2):
        finish(platform)  # the scheduler forgets the event and its error,
        gc.collect()  # whose traceback held frames that held the buffers
    finish(platform)
    assert used(platform) == {"bytes_in_use": 0, "bytes_parked": 0}


# ---------------------------------------------------------------------- limits


def test_parked_bytes_are_bounded_by_a_wait(platform: Platform) -> None:
    """Back-pressure: beyond max_inflight_bytes an allocation waits for parked blocks, here for a latch."""
    device, other = platform.devices[:2]
    scheduler = platform.scheduler
    config.update("max_inflight_bytes", 3 * NBYTES)
    latch = scheduler.hold(device.transfer_to(other))
    moved = []
    for i in range(4):
        source = put(device, numbers(i))
        moved.append(move(source, other))
        del source
    scheduler.park()
    assert device.memory_stats()["bytes_parked"] == 4 * NBYTES
    passed = threading.Event()

    def allocate() -> None:
        scheduler.allocate(device, (COUNT,), np.dtype(np.int64))
        passed.set()

    thread = threading.Thread(target=allocate, daemon=True)
    thread.start()
    assert not passed.wait(0.05)
    latch.release()
    assert passed.wait(20)
    thread.join(20)
    assert device.memory_stats()["bytes_parked"] <= 3 * NBYTES
    for i, buffer in enumerate(moved):
        np.testing.assert_array_equal(read(buffer), numbers(i))


def test_short_memory_waits_on_the_device_not_on_the_host(platform: Platform) -> None:
    """At the limit the new owner's stream waits for the parked block's reader; the call itself returns."""
    device, other = platform.devices[:2]
    scheduler = platform.scheduler
    config.update("max_device_bytes", NBYTES)
    source = put(device, numbers())
    read(source)
    latch = scheduler.hold(device.transfer_to(other))
    moved = move(source, other)
    where = address(source)
    del source
    with scheduler.log.record() as records:
        again = scheduler.allocate(device, (COUNT,), np.dtype(np.int64))
        scheduler.upload(again, numbers(7))
    assert address(again) == where
    assert len(records[-1].waits) == 1
    assert device.memory_stats()["memory_waits"] == 1
    assert device.memory_stats()["bytes_limit"] == NBYTES
    assert not scheduler.is_ready([again])
    latch.release()
    np.testing.assert_array_equal(read(moved), numbers())
    np.testing.assert_array_equal(read(again), numbers(7))


def test_short_memory_takes_the_block_whose_last_use_was_enqueued_first(platform: Platform) -> None:
    """However often the parked blocks have been polled since."""
    device, near, far = platform.devices[:3]
    scheduler = platform.scheduler
    latches = [scheduler.hold(device.transfer_to(near)), scheduler.hold(device.transfer_to(far))]
    sources = [put(device, numbers(i)) for i in range(12)]
    for source in sources:
        read(source)
    oldest = address(sources[0])
    moved = [move(source, near if i == 0 else far) for i, source in enumerate(sources)]
    del source, sources
    for _ in range(5):
        scheduler.allocate(device, (1,), np.dtype(np.int8))
    assert device.memory_stats()["bytes_parked"] == 12 * NBYTES
    config.update("max_device_bytes", 12 * NBYTES)
    again = put(device, numbers(7))
    assert address(again) == oldest
    for latch in latches:
        latch.release()
    np.testing.assert_array_equal(read(again), numbers(7))
    for i, buffer in enumerate(moved):
        np.testing.assert_array_equal(read(buffer), numbers(i))


def test_out_of_memory_lists_the_largest_buffers(platform: Platform) -> None:
    device = platform.devices[3]
    config.update("max_device_bytes", 4000)
    kept = [put(device, np.zeros((2, 100)), np.float64), put(device, np.zeros(100), np.int32)]
    with pytest.raises(OutOfMemoryError) as caught:
        platform.scheduler.allocate(device, (50, 10), np.dtype(np.float64))
    text = str(caught.value)
    first, *rest = text.splitlines()
    assert first == (
        f"Out of memory on {device}: float64[50, 10] needs 4,000 bytes; 2,000 of 4,000 (max_device_bytes) are in use."
    )
    assert [line.split() for line in rest[1:3]] == [["1,600", "float64[2,", "100]"], ["400", "int32[100]"]]
    assert "Delete or donate" in rest[-1]
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, RuntimeError)
    del kept


def test_the_process_goes_on_after_out_of_memory(platform: Platform) -> None:
    device = platform.devices[0]
    config.update("max_device_bytes", 4 * NBYTES)
    kept: list[Buffer] = [put(device, numbers(i)) for i in range(4)]
    for _ in range(2):
        with pytest.raises(OutOfMemoryError):
            put(device, numbers())
    for i, buffer in enumerate(kept):
        np.testing.assert_array_equal(read(buffer), numbers(i))
    del buffer
    kept.pop()
    np.testing.assert_array_equal(read(compute(ADD_ONE, kept[0])), numbers() + 1)
    put(platform.devices[1], np.zeros(4 * COUNT))
    kept.clear()
    finish(platform)
    assert used(platform) == {"bytes_in_use": 0, "bytes_parked": 0}


@pytest.mark.parametrize("shape", [(1 << 50,), (1 << 61,), (1 << 40, 1 << 40)], ids=str)
def test_more_memory_than_there_is(platform: Platform, shape: tuple[int, ...]) -> None:
    device = platform.devices[0]
    kept = put(device, numbers())
    with pytest.raises(OutOfMemoryError) as caught:
        platform.scheduler.allocate(device, shape, np.dtype(np.float64))
    first, second, *_ = str(caught.value).splitlines()
    assert first.startswith(f"Out of memory on {device}: float64{list(shape)} needs ")
    assert first.endswith(" bytes; 512 are in use.")
    assert second == "The largest live arrays there, in bytes:"
    assert device.memory_stats()["bytes_in_use"] == NBYTES
    np.testing.assert_array_equal(read(kept), numbers())


def test_a_pool_without_memory_gets_it_from_parked_blocks(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend says no once; parked blocks are waited for, caches trimmed, and the call succeeds."""
    device, other = platform.devices[:2]
    source = put(device, numbers())
    moved = move(source, other)
    del source
    platform.scheduler.park()
    pool: Any = device.memory.arenas[COMPUTE].pool
    allocate, calls = pool.allocate, []

    def refuse_once(nbytes: int) -> Any:
        calls.append(device.memory.parked)
        if len(calls) == 1:
            raise MemoryError
        return allocate(nbytes)

    monkeypatch.setattr(pool, "allocate", refuse_once)
    result = platform.scheduler.allocate(device, (COUNT,), np.dtype(np.int64), COMPUTE)
    assert calls[1] == 0
    np.testing.assert_array_equal(read(moved), numbers())
    del result


def test_poison_fills_new_memory(platform: Platform) -> None:
    config.update("poison", True)
    device = platform.devices[0]
    for arena in (COMPUTE, TRANSFER):
        for dtype in (np.uint8, np.float32, np.complex128):
            for shape in ((3, 2), ()):
                buffer = platform.scheduler.allocate(device, shape, np.dtype(dtype), arena)
                assert set(read(buffer).tobytes()) == {0xA5}
    assert read(platform.scheduler.allocate(device, (0,), np.dtype(np.float32))).size == 0


def test_poison_fills_each_buffer_of_a_batch(platform: Platform) -> None:
    config.update("poison", True)
    for arena in (COMPUTE, TRANSFER):
        for buffer in platform.scheduler.allocate_batch(platform.devices[:3], (3, 2), np.dtype(np.float32), arena):
            assert set(read(buffer).tobytes()) == {0xA5}


def test_poison_shows_a_partial_write(platform: Platform) -> None:
    """What the option is for."""
    config.update("poison", True)
    device = platform.devices[0]
    source = put(device, numbers(), np.uint64)

    def forget_the_end(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
        writes[0][:-1] = reads[0][:-1]

    work = task(lambda x: x)
    work.run = forget_the_end
    found = read(compute(work, source))
    assert found[-1] == 0xA5A5A5A5A5A5A5A5


# ---------------------------------------------------------------------- finalizers


def test_buffers_may_die_in_any_thread(platform: Platform) -> None:
    device = platform.devices[0]
    kept = [put(device, numbers(i)) for i in range(200)]
    quarters = [kept[i::4] for i in range(4)]
    kept.clear()
    threads = [threading.Thread(target=quarter.clear) for quarter in quarters]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        put(device, numbers())
    for thread in threads:
        thread.join()
    finish(platform)
    assert used(platform) == {"bytes_in_use": 0, "bytes_parked": 0}


def test_garbage_is_collected_inside_calls(platform: Platform) -> None:
    """Cycles that hold buffers die in the middle of a door; finalizers only note it."""
    device, other = platform.devices[:2]
    threshold = gc.get_threshold()
    gc.set_threshold(3)
    try:
        base = put(device, numbers())
        for i in range(100):
            cycle: list[Any] = [compute(ADD_ONE, base), move(base, other)]
            cycle.append(cycle)
            del cycle
            if i % 10 == 0:
                np.testing.assert_array_equal(read(compute(SQUARE, base)), numbers() ** 2)
    finally:
        gc.set_threshold(*threshold)
    del base
    gc.collect()
    finish(platform)
    assert used(platform) == {"bytes_in_use": 0, "bytes_parked": 0}


