"""Host memory of devices at the level of buffers: where work runs, failures that come late, and long queues."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuplace.placement.memory_space import DEVICE, PINNED_HOST, UNPINNED_HOST
from cuplace.runtime.backends import base
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.device import Device
from cuplace.runtime.memory import COMPUTE, TRANSFER
from cuplace.runtime.platform import Platform
from cuplace.runtime.task import ComputeTask, CopyTask
from tests.runtime.backends.test_base import check
from tests.runtime.streams import ADD_ONE, compute, failing, finish, in_threads, put, read, task

pytestmark = pytest.mark.order(once=True)

VALUES = np.arange(64, dtype=np.int64)
KINDS = (PINNED_HOST, UNPINNED_HOST)
SQUARE = task(lambda x: x * x, "square")
QUICK = task(lambda x: x + 1, "quick", seconds=0.0)


def on_host(work: ComputeTask, kind: str, *reads: Buffer) -> Buffer:
    """The result of work on a device's host memory of a kind."""
    place, like = reads[0].device.place(kind), reads[0]
    made = (like.array.shape, like.array.dtype, like.nbytes)
    ((result,),) = place.scheduler.submit_new(work, (made,), (place,), [(buffer,) for buffer in reads])
    return result


def moved(source: Buffer, device: Device, kind: str) -> Buffer:
    """A copy in memory of a device."""
    scheduler = device.scheduler
    target = scheduler.allocate(device.place(kind), source.array.shape, source.array.dtype)
    kinds = (source.block.arena.memory.kind, kind)
    if kinds[0] == DEVICE:
        stream = source.device.download
    else:
        stream = device.upload if kind == DEVICE else device.host
    scheduler.submit_moves([(CopyTask(None, None, "host", source.nbytes), stream, source, target)])
    return target


@pytest.mark.parametrize("kind", KINDS)
def test_the_host_memory_of_a_device_stands_for_it(platform: Platform, kind: str) -> None:
    device = platform.devices[2]
    place = device.place(kind)
    assert device.place(DEVICE) is device
    assert (place.device, place.memory, place.scheduler) == (device, place, device.scheduler)
    assert place.compute is place.upload is device.host
    assert device.host in device.streams()
    assert place in device.memories()
    assert place.xp is np
    check(device.host, base.Stream)
    assert (device.host.device, device.host.role, device.host.path) == (device, "host", None)
    for arena in (COMPUTE, TRANSFER):
        check(place.arenas[arena].pool, base.StoragePool)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("work", [SQUARE, QUICK])
def test_work_there_gets_arrays_of_numpy(platform: Platform, kind: str, work: ComputeTask) -> None:
    device, seen = platform.devices[0], list[Any]()

    def look(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
        seen.extend(map(type, (*reads, *writes)))
        work.run(reads, writes, scalars)

    source = moved(put(device, VALUES), device, kind)
    result = on_host(ComputeTask("look", look, work.seconds), kind, source)
    np.testing.assert_array_equal(read(result), VALUES * VALUES if work is SQUARE else VALUES + 1)
    assert seen == [np.ndarray, np.ndarray]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("held", [True, False])
def test_a_failure_poisons_what_comes_after_it_on_both_sides(platform: Platform, kind: str, held: bool) -> None:
    """Held: everything is enqueued before the work fails."""
    device, other = platform.devices[:2]
    latch = platform.scheduler.hold(device.upload) if held else None
    source = moved(put(device, VALUES), device, kind)
    failed = on_host(failing("no such number"), kind, source)
    after = on_host(SQUARE, kind, failed)
    across = moved(after, device, next(other for other in KINDS if other != kind))
    up = moved(after, device, DEVICE)
    computed = compute(ADD_ONE, up)
    down = moved(computed, other, kind)
    fine = on_host(SQUARE, kind, source)
    if latch is not None:
        assert not platform.scheduler.is_ready((fine,))
        latch.release()
    for buffer in (down, computed, up, across, after, failed):
        with pytest.raises(ValueError, match="no such number"):
            read(buffer)
    np.testing.assert_array_equal(read(fine), VALUES**2)
    np.testing.assert_array_equal(read(moved(fine, other, DEVICE)), VALUES**2)


@pytest.mark.parametrize("kind", KINDS)
def test_long_queues_of_work_are_done_in_their_order(platform: Platform, kind: str) -> None:
    device = platform.devices[0]
    latch = platform.scheduler.hold(device.upload)
    value = moved(put(device, VALUES), device, kind)
    for _ in range(600):
        value = on_host(QUICK, kind, value)
    latch.release()
    np.testing.assert_array_equal(read(value), VALUES + 600)
    del value
    finish(platform)
    assert device.memory(kind).stats()["bytes_in_use"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_quick_work_comes_after_what_is_before_it(platform: Platform, kind: str) -> None:
    """Its result is where a value was that work before it is still to read."""
    device = platform.devices[0]
    one, other = (moved(put(device, VALUES + i), device, kind) for i in range(2))
    source = on_host(QUICK, kind, one)
    read(source)
    read(other)
    latch = platform.scheduler.hold(device.host)
    squared = on_host(SQUARE, kind, source)
    del source
    quick = on_host(QUICK, kind, other)
    latch.release()
    np.testing.assert_array_equal(read(squared), (VALUES + 1) ** 2)
    np.testing.assert_array_equal(read(quick), VALUES + 2)


@pytest.mark.order
def test_memory_goes_round_between_strands_and_copies(platform: Platform) -> None:
    """Blocks of all devices come from one pool and come back while copies and strands of others still run."""
    results = []
    for i in range(24):
        device, other = platform.devices[i % 3], platform.devices[(i + 1) % 3]
        kind, next_kind = KINDS[i % 2], KINDS[(i // 2) % 2]
        host = moved(put(device, VALUES + i), device, kind)
        squared = on_host(SQUARE, kind, host)
        back = compute(ADD_ONE, moved(moved(squared, other, next_kind), other, DEVICE))
        results.append(moved(back, device, kind))
        del host, squared, back
    for i, result in enumerate(results):
        np.testing.assert_array_equal(read(result), (VALUES + i) ** 2 + 1)


def test_threads_share_a_strand(platform: Platform) -> None:
    device = platform.devices[0]

    def program(i: int) -> np.ndarray:
        value = moved(put(device, VALUES + i), device, KINDS[i % 2])
        for work in (SQUARE, QUICK, SQUARE):
            value = on_host(work, KINDS[i % 2], value)
        return read(moved(value, device, DEVICE))

    for i, result in enumerate(in_threads([lambda i=i: program(i) for i in range(4)])):  # type: ignore[misc]
        np.testing.assert_array_equal(result, ((VALUES + i) ** 2 + 1) ** 2)


def test_values_from_the_caller_are_as_of_the_call(platform: Platform) -> None:
    device = platform.devices[0]
    latch = platform.scheduler.hold(device.host)
    host = VALUES.copy()
    buffers = [platform.scheduler.allocate(device.place(kind), host.shape, host.dtype) for kind in KINDS]
    for buffer in buffers:
        platform.scheduler.upload(buffer, host)
    host[:] = -1
    latch.release()
    for buffer in buffers:
        np.testing.assert_array_equal(read(buffer), VALUES)


@pytest.mark.parametrize("kind", KINDS)
def test_values_from_the_caller_come_after_what_is_on_its_way_to_the_same_memory(platform: Platform, kind: str) -> None:
    device = platform.devices[0]
    latch = platform.scheduler.hold(device.upload)
    target = moved(put(device, VALUES), device, kind)
    platform.scheduler.upload(target, VALUES * 7)
    latch.release()
    finish(platform)
    np.testing.assert_array_equal(read(target), VALUES * 7)
