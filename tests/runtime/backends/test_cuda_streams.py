"""Streams and events of the cuda platform: how many, of which kind, and that the user's own are left alone."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from cuplace.errors import OutOfMemoryError
from cuplace.runtime.memory import COMPUTE, TRANSFER
from cuplace.runtime.platform import Platform, open_platform
from tests import fakecuda
from tests.fakegpus import CASES, Case
from tests.memory import foreign_array
from tests.runtime.streams import ADD_ONE, SQUARE, compute, failing, finish, in_threads, move, new, put, read

pytestmark = pytest.mark.order(once=True)

VALUES = np.arange(24, dtype=np.int64)
MOST_STREAMS = 32


# ---------------------------------------------------------------------- partitions and how many streams there are


@pytest.mark.parametrize(
    ("gpus", "devices", "places"),
    [
        (8, 8, [(i, 0) for i in range(8)]),
        (1, 8, [(0, i) for i in range(8)]),
        (2, 8, [(i // 4, i % 4) for i in range(8)]),
        (8, 2, [(0, 0), (1, 0)]),
        (2, 3, [(0, 0), (0, 1), (1, 0)]),
        (3, 8, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]),
    ],
)
def test_devices_are_spread_evenly_over_gpus(
    fake_gpus: None, gpus: int, devices: int, places: list[tuple[int, int]]
) -> None:
    platform = open_platform("cuda", devices, gpus=gpus)
    assert [(device.gpu, device.partition) for device in platform.devices] == places
    platform.close()


@pytest.mark.parametrize(("gpus", "devices"), [(8, 8), (1, 8), (1, 12), (2, 8), (2, 16), (8, 24)])
def test_a_gpu_has_no_more_streams_than_queues(fake_gpus: None, gpus: int, devices: int) -> None:
    before = fakecuda.counters().streams
    platform = open_platform("cuda", devices, gpus=gpus)
    for source in platform.devices:
        for target in platform.devices:
            source.transfer_to(target)
    made = fakecuda.counters().streams - before
    assert made <= MOST_STREAMS * gpus
    backend: Any = platform.backend
    assert max(len(gpu._lanes) for gpu in backend.gpus) <= MOST_STREAMS
    if devices <= 8:  # then nothing is shared that could be apart
        compute_lanes = {device.compute.lane for device in platform.devices}
        upload_lanes = {device.upload.lane for device in platform.devices}
        assert len(compute_lanes | upload_lanes) == 2 * devices
    platform.close()
    assert fakecuda.counters().streams == before


def test_partitions_of_a_gpu_share_the_stream_to_another_one(fake_gpus: None) -> None:
    platform = open_platform("cuda", 8, gpus=2)
    a, b, c, d = (platform.devices[i] for i in (0, 1, 4, 5))
    assert a.transfer_to(c).lane is b.transfer_to(d).lane
    assert a.transfer_to(c).lane is not c.transfer_to(a).lane
    assert a.transfer_to(b).lane is not b.transfer_to(a).lane
    platform.close()


def test_streams_are_non_blocking_and_transfers_go_first(cuda: Platform) -> None:
    from cupy.cuda import runtime

    device, other = cuda.devices[:2]
    for stream in (device.compute, device.upload, device.download, device.transfer_to(other)):
        assert runtime.streamGetFlags(stream.lane.ptr) & runtime.streamNonBlocking
        priority = runtime.streamGetPriority(stream.lane.ptr)
        assert priority == 0 if stream is device.compute else priority < 0


def test_the_driver_is_asked_for_as_many_queues(cuda: Platform) -> None:
    import os

    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == str(MOST_STREAMS)


# ---------------------------------------------------------------------- the user's device and stream


def upload(platform: Platform) -> None:
    put(platform.devices[2], VALUES)


def run(platform: Platform) -> None:
    compute(SQUARE, put(platform.devices[2], VALUES))


def send(platform: Platform) -> None:
    read(move(put(platform.devices[2], VALUES), platform.devices[3]))


def fail(platform: Platform) -> None:
    with pytest.raises(ValueError, match="boom"):
        read(compute(failing("boom"), put(platform.devices[2], VALUES)))


def take_too_much(platform: Platform) -> None:
    with pytest.raises(OutOfMemoryError):
        platform.scheduler.allocate(platform.devices[2], (1 << 60,), np.dtype(np.int8), COMPUTE)


def hold(platform: Platform) -> None:
    platform.scheduler.hold(platform.devices[2].compute).release()


def adopt_and_lend(platform: Platform) -> None:
    device = platform.devices[2]
    backend: Any = platform.backend
    buffer = platform.scheduler.adopt(foreign_array(device, VALUES), device, backend.exchange.stream(device))
    with platform.scheduler.lend(buffer, backend.exchange.stream(device)):
        pass


def drop(platform: Platform) -> None:
    move(put(platform.devices[2], VALUES), platform.devices[3])
    gc.collect()
    finish(platform)


DOORS = [upload, run, send, fail, take_too_much, hold, adopt_and_lend, drop]


@contextlib.contextmanager
def users_choice(ordinal: int | None) -> Iterator[tuple[int, int]]:
    """A device and a stream of the user's, made current; None: those of a thread that has chosen nothing."""
    import cupy

    if ordinal is None:
        yield cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr
        return
    with cupy.cuda.Device(ordinal), cupy.cuda.Stream(non_blocking=True) as stream:
        yield ordinal, stream.ptr


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
@pytest.mark.parametrize("ordinal", [None, 0, 2, 5])
@pytest.mark.parametrize("in_thread", [False, True])
def test_what_is_current_stays_so(
    cuda: Platform, door: Callable[[Platform], None], ordinal: int | None, in_thread: bool
) -> None:
    import cupy

    def call() -> None:
        with users_choice(ordinal) as chosen:
            door(cuda)
            assert (cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr) == chosen
            for gpu in range(8):
                with cupy.cuda.Device(gpu):
                    assert cupy.cuda.get_current_stream().ptr == (chosen[1] if gpu == chosen[0] else 0)

    if in_thread:
        in_threads([call])
    else:
        call()


def test_nothing_runs_on_a_default_stream(cuda: Platform) -> None:
    device, other = cuda.devices[:2]
    fakecuda.reset_counters()
    values = np.arange(6000.0).reshape(60, 100)
    read(move(compute(SQUARE, put(device, values, np.float64)), other))
    assert fakecuda.copies()
    assert all(copy.stream for copy in fakecuda.copies())


# ---------------------------------------------------------------------- events


def test_events_are_used_again(cuda: Platform) -> None:
    device = cuda.devices[0]
    source = put(device, VALUES)
    for _ in range(50):
        read(compute(ADD_ONE, source))
    before = fakecuda.counters().events
    for _ in range(200):
        read(compute(ADD_ONE, source))
    assert fakecuda.counters().events <= before


@pytest.mark.parametrize("cuda", [Case("lazy")], indirect=True)
def test_a_complete_event_tells_of_the_earlier_ones(cuda: Platform) -> None:
    device = cuda.devices[0]
    source = put(device, VALUES)
    results = [compute(ADD_ONE, source) for _ in range(5)]
    events = [result.writes[0] for result in results]
    assert not any(event.done for event in events)
    read(results[3])
    assert [event.done for event in events] == [True] * 4 + [False]


@pytest.mark.parametrize("cuda", CASES, indirect=True, ids=lambda case: case.label)
def test_finalizers_call_nothing(cuda: Platform) -> None:
    """Dropping buffers, events and latches while their work is unfinished makes no call of CUDA."""
    device, other = cuda.devices[0], cuda.devices[-1]
    latches = [cuda.scheduler.hold(stream) for stream in (device.compute, device.upload, device.transfer_to(other))]
    source = put(device, VALUES)
    kept = [source, compute(SQUARE, source), move(source, other)]
    fakecuda.reset_counters()
    del source
    kept.clear()
    gc.collect()
    assert fakecuda.counters().calls == {}
    for latch in latches:
        latch.release()
    finish(cuda)


# ---------------------------------------------------------------------- latches


def test_a_latch_holds_its_stream_and_no_other(cuda: Platform) -> None:
    device, other = cuda.devices[:2]
    source, elsewhere = put(device, VALUES), put(other, VALUES)
    latch = cuda.scheduler.hold(device.compute)
    held = compute(SQUARE, source)
    np.testing.assert_array_equal(read(compute(SQUARE, elsewhere)), VALUES**2)
    assert latch.held
    assert not cuda.scheduler.is_ready([held])
    latch.release()
    assert not latch.held
    np.testing.assert_array_equal(read(held), VALUES**2)


def test_there_may_be_many_latches_one_after_the_other(cuda: Platform) -> None:
    device = cuda.devices[0]
    for _ in range(1100):
        cuda.scheduler.hold(device.compute).release()
    np.testing.assert_array_equal(read(compute(ADD_ONE, put(device, VALUES))), VALUES + 1)


def test_many_latches_may_be_held_at_once(cuda: Platform) -> None:
    device = cuda.devices[0]
    latches = [cuda.scheduler.hold(device.compute) for _ in range(600)]  # more than a page of pinned memory has words
    result = compute(ADD_ONE, put(device, VALUES))
    for latch in latches[:-1]:
        latch.release()
    assert not cuda.scheduler.is_ready([result])
    latches[-1].release()
    np.testing.assert_array_equal(read(result), VALUES + 1)


def test_a_latch_may_be_released_by_another_thread_while_one_waits(cuda: Platform) -> None:
    device = cuda.devices[0]
    latch = cuda.scheduler.hold(device.compute)
    result = compute(ADD_ONE, put(device, VALUES))
    release = threading.Timer(0.02, latch.release)
    release.start()
    np.testing.assert_array_equal(read(result), VALUES + 1)
    release.join()


# ---------------------------------------------------------------------- memory


def test_the_users_allocator_is_respected(cuda: Platform) -> None:
    import cupy

    pool = cupy.cuda.MemoryPool()
    device = cuda.devices[3]
    with cupy.cuda.using_allocator(pool.malloc):
        buffer = put(device, VALUES)
        result = compute(SQUARE, buffer)
    with cupy.cuda.Device(3):
        assert pool.used_bytes() >= 2 * VALUES.nbytes
    np.testing.assert_array_equal(read(result), VALUES**2)


def allocators() -> dict[str, Any]:
    """What users set for CuPy: at once or in stream order, pooled or not."""
    import cupy
    from cupy.cuda import memory, runtime

    return {
        "raw": memory._malloc,
        "async": cupy.cuda.malloc_async,
        "pool of async": cupy.cuda.MemoryPool(cupy.cuda.malloc_async).malloc,
        "python": cupy.cuda.PythonFunctionAllocator(
            lambda size, device: runtime.malloc(size), lambda address, device: runtime.free(address)
        ).malloc,
    }


@pytest.mark.parametrize("name", ["raw", "async", "pool of async", "python"])
@pytest.mark.parametrize("cuda", [Case("eager"), Case("lazy"), Case("random", 5), Case("random", 6)], indirect=True)
def test_memory_of_any_allocator_is_in_order(cuda: Platform, name: str) -> None:
    import cupy

    device, other = cuda.devices[:2]
    with cupy.cuda.using_allocator(allocators()[name]):
        for i in range(5):
            source = put(device, VALUES + i)
            moved = move(compute(SQUARE, source), other)
            np.testing.assert_array_equal(read(compute(ADD_ONE, moved)), (VALUES + i) ** 2 + 1)
        del source, moved
        finish(cuda)


@pytest.mark.parametrize("cuda", [Case("eager")], indirect=True)
def test_the_memory_of_latches_is_used_again(cuda: Platform) -> None:
    from cuplace.runtime.backends.cuda.latch import _SLOTS

    stream = cuda.devices[0].compute
    pinned = []
    for _ in range(3):
        for _ in range(_SLOTS):
            cuda.scheduler.hold(stream).release()
            cuda.scheduler.drain([stream])
        pinned.append(fakecuda.counters().pinned.used)
    assert pinned[0] == pinned[1] == pinned[2]


@pytest.mark.parametrize("name", ["async", "pool of async"])
@pytest.mark.parametrize("cuda", [Case("eager")], indirect=True)
def test_memory_that_was_freed_in_order_is_used_in_order(cuda: Platform, name: str) -> None:
    """The user's work on memory that is freed in the order of a stream ends before others use it."""
    import cupy

    device, other = cuda.devices[:2]
    source, lane = put(other, VALUES), device.upload.lane
    read(move(source, device))
    with cupy.cuda.using_allocator(allocators()[name]):
        held = cuda.scheduler.hold(device.upload)
        with lane.device, lane.on:
            memory = cupy.empty(VALUES.shape, VALUES.dtype)
            memory.fill(7)
            del memory
        moved = move(source, device)
        held.release()
        np.testing.assert_array_equal(read(moved), VALUES)
        del moved
        finish(cuda)


def test_trimming_returns_what_is_unused(cuda: Platform) -> None:
    device = cuda.devices[4]
    kept = put(device, VALUES)
    buffers = [put(device, np.zeros(1 << 18)) for _ in range(4)] + [new(device, kept, TRANSFER)]
    finish(cuda)
    used = fakecuda.counters().devices[4].used
    del buffers
    finish(cuda)
    device.memory.trim()
    assert fakecuda.counters().devices[4].used <= used - (4 << 21)
    np.testing.assert_array_equal(read(kept), VALUES)


def test_a_closed_platform_gives_its_memory_back(fake_gpus: None) -> None:
    before = fakecuda.counters()
    platform = open_platform("cuda", 3)
    big = put(platform.devices[0], np.zeros(1 << 20))
    moved = move(big, platform.devices[1])
    read(moved)
    del big, moved
    platform.scheduler.park()
    platform.close()
    after = fakecuda.counters()
    assert after.pinned.used == before.pinned.used
    assert all(now.used - then.used < 1 << 20 for now, then in zip(after.devices, before.devices, strict=True))
    assert after.streams == before.streams
