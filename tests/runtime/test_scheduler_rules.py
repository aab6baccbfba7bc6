"""What each door does, one rule a test: takes in the dead, bounds what is unfinished, waits under `sync`, and writes
what later work waits for and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuplace.runtime.buffer import Buffer
from cuplace.runtime.config import config
from cuplace.runtime.memory import COMPUTE, TRANSFER, Arena
from cuplace.runtime.platform import Platform
from tests.memory import foreign_array
from tests.runtime.streams import ADD_ONE, LONG, copy_task, failing, finish, move, new, put, read, task

pytestmark = pytest.mark.order(once=True)

VALUES = np.arange(12, dtype=np.int64)

Door = Callable[[], Buffer]
"""A call of a door that is ready to be made; the buffer that it writes."""


def allocates(source: Buffer) -> Door:
    return lambda: new(source.device, source)


def submits(source: Buffer) -> Door:
    result = new(source.device, source)

    def call() -> Buffer:
        source.device.scheduler.submit(ADD_ONE, source.device.compute, (source,), (result,))
        return result

    return call


def submits_new(source: Buffer) -> Door:
    made = (source.array.shape, source.array.dtype, source.nbytes)
    return lambda: source.device.scheduler.submit_new(ADD_ONE, [made], (source.device,), [(source,)])[0][0]


def submits_one(source: Buffer) -> Door:
    made = (source.array.shape, source.array.dtype, source.nbytes)
    return lambda: source.device.scheduler.submit_one(ADD_ONE, made, source.device, (source,))


def submits_moves(source: Buffer) -> Door:
    result = new(source.device, source, TRANSFER)
    stream = source.device.transfer_to(source.device)

    def call() -> Buffer:
        source.device.scheduler.submit_moves([(copy_task(source), stream, source, result)])
        return result

    return call


def uploads(source: Buffer) -> Door:
    result = new(source.device, source, TRANSFER)

    def call() -> Buffer:
        source.device.scheduler.upload(result, VALUES)
        return result

    return call


def uploads_packed(source: Buffer) -> Door:
    results = [new(source.device, source, TRANSFER) for _ in range(16)]

    def call() -> Buffer:
        source.device.scheduler.upload_batch([(result, VALUES) for result in results])
        return results[-1]

    return call


def parks(source: Buffer) -> Door:
    def call() -> Buffer:
        source.device.scheduler.park()
        return source

    return call


def waits(source: Buffer) -> Door:
    def call() -> Buffer:
        source.device.scheduler.host_wait((source,))
        return source

    return call


WRITING = [submits, submits_new, submits_one, submits_moves, uploads, uploads_packed]
each_door = pytest.mark.parametrize("door", WRITING, ids=lambda door: door.__name__)


@pytest.mark.parametrize("door", [*WRITING, allocates, parks, waits], ids=lambda door: door.__name__)
def test_each_door_takes_in_the_dead(platform: Platform, door: Callable[[Buffer], Door]) -> None:
    device = platform.devices[0]
    source = put(device, VALUES)
    dead = put(device, VALUES)
    read(source)
    read(dead)
    call = door(source)
    before = device.memory.in_use
    del dead
    assert platform.scheduler.graveyard
    result = call()
    assert not platform.scheduler.graveyard
    made = VALUES.nbytes if door in (submits_new, submits_one, allocates) else 0
    assert device.memory.in_use == before - VALUES.nbytes + made
    assert result.device is device


def test_a_wait_brings_back_what_was_parked(platform: Platform) -> None:
    device, other = platform.devices[:2]
    source = put(device, VALUES)
    latch = platform.scheduler.hold(device.transfer_to(other))
    moved = move(source, other)
    del source
    platform.scheduler.park()
    assert device.memory_stats()["bytes_parked"] == VALUES.nbytes
    latch.release()
    read(moved)
    assert device.memory_stats()["bytes_parked"] == 0
    assert platform.scheduler.parking == set()


@pytest.mark.parametrize("arena", [COMPUTE, TRANSFER])
def test_memory_that_nothing_used_comes_back(platform: Platform, arena: str) -> None:
    device = platform.devices[0]
    like = put(device, VALUES)
    read(like)
    before = device.memory.in_use  # not its statistics, which find blocks that were lost
    unused = new(device, like, arena)
    assert device.memory.in_use == before + VALUES.nbytes
    del unused
    platform.scheduler.park()
    assert device.memory.in_use == before


@each_door
def test_each_door_bounds_what_is_unfinished(
    platform: Platform, door: Callable[[Buffer], Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuplace.runtime.scheduler.host.RUN_AHEAD", 3)
    source = put(platform.devices[0], VALUES)
    calls = [door(source) for _ in range(12)]
    results = []
    for call in calls:
        results.append(call())
        assert sum(not event.done for result in results for event in result.writes) <= 3


@each_door
def test_each_door_waits_under_sync(platform: Platform, door: Callable[[Buffer], Door]) -> None:
    calls = [door(put(platform.devices[0], VALUES)) for _ in range(8)]
    config.update("sync", True)
    for call in calls:
        assert all(event.done for event in call().writes)


@pytest.mark.parametrize("door", [submits, submits_moves, uploads, uploads_packed], ids=lambda door: door.__name__)
def test_what_a_call_has_enqueued_before_it_failed_is_waited_for(
    platform: Platform, door: Callable[[Buffer], Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, (device, other) = platform.scheduler, platform.devices[:2]
    streams = {submits: device.compute, submits_moves: device.transfer_to(device)}
    source = put(device, VALUES)
    call = door(source)
    target = call()
    read(target)
    scheduler.upload(target, VALUES * 0)
    read(target)
    latch = scheduler.hold(streams.get(door, device.upload))
    with monkeypatch.context() as patch:
        patch.setattr(scheduler.log, "append", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            call()
    was_ready = scheduler.is_ready([target])
    seen = move(target, other)
    with scheduler.log.record() as records:
        scheduler.submit(task(lambda: 0), device.download, (), (source,))
    latch.release()
    for found in (seen, target):
        np.testing.assert_array_equal(read(found), VALUES + 1 if door is submits else VALUES)
    assert not was_ready
    assert len(records[0].waits) == (door in streams), "for the read of the source, where there is one"


def _interrupted(*arguments: Any) -> None:
    raise KeyboardInterrupt


def test_a_dead_block_is_taken_in_later_where_that_was_interrupted(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, other = platform.devices[:2]
    source = put(device, VALUES)
    read(source)
    latch = platform.scheduler.hold(device.transfer_to(other))
    moved = move(source, other)
    del source
    with monkeypatch.context() as patch:
        patch.setattr(Arena, "release", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            platform.scheduler.park()
    platform.scheduler.park()
    assert device.memory.parked_bytes == VALUES.nbytes
    latch.release()
    np.testing.assert_array_equal(read(moved), VALUES)


@pytest.mark.parametrize("door", [submits, submits_moves, uploads, uploads_packed], ids=lambda door: door.__name__)
@pytest.mark.parametrize("held", [True, False])
def test_what_a_write_has_waited_for_is_not_waited_for_again(
    platform: Platform, door: Callable[[Buffer], Door], held: bool
) -> None:
    device, other = platform.devices[:2]
    call = door(put(device, VALUES))
    target = call()
    if held:
        latch = platform.scheduler.hold(device.transfer_to(other))
    move(target, other)
    assert held <= bool(target.reads)
    call()
    assert target.reads is None
    if held:
        with platform.scheduler.log.record() as records:
            platform.scheduler.upload(target, VALUES * 3)
        assert len(records[0].waits) <= 1, "of the latest write, and not of the move that it waits for"
        latch.release()
        np.testing.assert_array_equal(read(target), VALUES * 3)


@pytest.mark.parametrize("door", [submits, submits_moves, uploads, uploads_packed], ids=lambda door: door.__name__)
@pytest.mark.parametrize("seconds", [0.0, LONG])
def test_a_failure_ends_where_it_is_overwritten(
    platform: Platform, door: Callable[[Buffer], Door], seconds: float
) -> None:
    """On the stream that the failed work ran on, too."""
    device = platform.devices[0]
    streams = {submits: device.compute, submits_moves: device.transfer_to(device)}
    source = put(device, VALUES)
    read(source)
    call = door(source)
    target = call()
    read(target)
    for _ in range(2):
        platform.scheduler.submit(failing("boom", seconds), streams.get(door, device.upload), (), (target,))
        with pytest.raises(ValueError, match="boom"):
            read(target)
        call()
        np.testing.assert_array_equal(read(target), VALUES + 1 if door is submits else VALUES)


def test_a_failure_and_a_read_end_where_work_that_is_done_at_once_overwrites_them(platform: Platform) -> None:
    scheduler, (device, other) = platform.scheduler, platform.devices[:2]
    quick = task(lambda x: x + 1, seconds=0.0)
    source, target = put(device, VALUES), put(device, VALUES)
    latch = scheduler.hold(device.transfer_to(other))
    moved = move(target, other)
    latch.release()
    scheduler.host_wait((source, moved))
    scheduler.submit(quick, device.compute, (source,), (target,))
    assert target.reads is None
    scheduler.submit(failing("boom", 0.0), device.compute, (), (target,))
    with pytest.raises(ValueError, match="boom"):
        read(target)
    scheduler.submit(quick, device.compute, (source,), (target,))
    np.testing.assert_array_equal(read(target), VALUES + 1)


def test_a_latch_is_a_record_and_bounds_what_follows(platform: Platform) -> None:
    device = platform.devices[0]
    with platform.scheduler.log.record() as records:
        latch = platform.scheduler.hold(device.compute)
    assert [record.kind for record in records] == ["latch"]
    assert platform.scheduler._run_ahead[-1].submission == records[0].id
    latch.release()


def test_draining_waits_for_all_that_is_enqueued(platform: Platform) -> None:
    device, other = platform.devices[:2]
    source = put(device, VALUES)
    results = [submits_one(source)() for _ in range(4)]
    moved = [move(result, other) for result in results]
    platform.scheduler.drain([device.compute, device.transfer_to(other)])
    assert all(event.done for buffer in (*results, *moved) for event in buffer.writes)


def test_adopted_memory_is_as_of_its_stream(platform: Platform) -> None:
    device = platform.devices[0]
    latch = platform.scheduler.hold(device.download)
    buffer = platform.scheduler.adopt(foreign_array(device, VALUES.copy()), device, device.download)
    assert not platform.scheduler.is_ready([buffer])
    latch.release()
    np.testing.assert_array_equal(read(buffer), VALUES)


def test_poisoned_memory_is_ready_before_it_is_used(platform: Platform) -> None:
    config.update("poison", True)
    device = platform.devices[0]
    for _ in range(5):
        read(put(device, VALUES))
        result = new(device, put(device, VALUES), COMPUTE)
        platform.scheduler.submit(task(VALUES.sum), device.compute, (), (result,))
        np.testing.assert_array_equal(read(result), np.full(12, VALUES.sum()))


def test_adopted_memory_outlives_its_buffer_while_it_is_read(platform: Platform) -> None:
    device, other = platform.devices[:2]
    owner = foreign_array(device, VALUES.copy())
    latch = platform.scheduler.hold(device.transfer_to(other))
    buffer = platform.scheduler.adopt(owner, device)
    moved = move(buffer, other)
    block: Any = buffer.block
    del buffer
    platform.scheduler.park()
    assert block.storage is owner
    latch.release()
    np.testing.assert_array_equal(read(moved), VALUES)
    finish(platform)
    assert block.storage is None
