"""Reading values on the host: copies begin before anybody waits, many at once or piece by piece, in bounded memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuplace
from cuplace import errors
from cuplace.placement.memory_space import PINNED_HOST
from cuplace.runtime.config import config
from tests.array.places import numbers, on, places
from tests.transfer.shardings import transfers

MANY = 1000
IN_PLACE = "cpu"  # the platform whose memory the host reads in place


def recorded(platform):
    return platform.scheduler.log.record()


def downloads(submissions):
    return [s for s in submissions if s.kind == "move" and s.stream.role == "download"]


def pinned(platform):
    """Bytes of pinned memory of arrays: in use, and at most since the platform was opened."""
    platform.scheduler.park()
    memories = [device.memory(PINNED_HOST) for device in platform.devices]
    for memory in memories:
        memory.wait_for_all_parked()
    return sum(m.in_use for m in memories), sum(m.peak for m in memories)


# --- copy_to_host_async


def test_it_starts_the_copy_and_does_not_wait(platform):
    device = platform.devices[1]
    x = cuplace.device_put(numbers(8), device)
    x + x
    latch = platform.scheduler.hold(device.compute)
    y = x + x
    with recorded(platform) as submissions:
        assert y.copy_to_host_async() is None
        y.copy_to_host_async()
    assert not y.is_ready()
    assert len(downloads(submissions)) == (0 if platform.name == IN_PLACE else 1)
    latch.release()
    with recorded(platform) as submissions:
        np.testing.assert_array_equal(y, 2 * numbers(8))
    assert not submissions
    assert np.asarray(y) is np.asarray(y)
    assert not np.asarray(y).flags.writeable


def test_what_was_copied_is_read_without_the_device(platform):
    device = platform.devices[1]
    x = cuplace.device_put(numbers(8), device).block_until_ready()
    x.copy_to_host_async()
    latches = [platform.scheduler.hold(stream) for stream in (device.download, device.compute)]
    np.testing.assert_array_equal(x, numbers(8))
    assert all(latch.held for latch in latches)
    for latch in latches:
        latch.release()


def test_each_distinct_shard_is_copied_once(platform):
    at = places(platform)
    for sharding, shards in [(on(at.full, "x"), 8), (on(at.full), 1), (on(at.grid, "x"), 2)]:
        x = cuplace.device_put(numbers(8), sharding)
        with recorded(platform) as submissions:
            x.copy_to_host_async()
        copies = downloads(submissions)
        assert len(copies) == (0 if platform.name == IN_PLACE else shards)
        assert sum(s.nbytes for s in copies) in (0, 32)
        np.testing.assert_array_equal(x, numbers(8))


@pytest.mark.order
def test_memory_is_written_again_only_after_what_reads_it(platform):
    """Of the devices, and of the host: donated arrays are overwritten, pieces make room for the next."""
    device = platform.devices[0]
    overwrite = cuplace.jit(lambda x: x * 0, donate_argnums=0)
    for i in range(4):
        x, y = (cuplace.device_put(numbers(16) + i, device) + k for k in range(2))
        x.copy_to_host_async()
        pieces = cuplace.iter_host(y, max_bytes=96)
        first = np.array(next(pieces)[1])
        again = x + 0
        again.copy_to_host_async()
        overwrite(x)
        overwrite(y)
        np.testing.assert_array_equal(again, numbers(16) + i)
        found = np.concatenate([first, *[np.array(values) for _, values in pieces]])
        np.testing.assert_array_equal(found, numbers(16) + i + 1)


def test_deleted_arrays_cannot_be_copied_and_give_back_the_memory(platform):
    x = cuplace.device_put(numbers(8), platform.devices[0])
    before, _ = pinned(platform)
    x.copy_to_host_async()
    x.delete()
    assert pinned(platform)[0] == before
    with pytest.raises(errors.DeletedArrayError):
        x.copy_to_host_async()


@pytest.mark.parametrize("platform", ["sim"], indirect=True)
def test_an_error_of_the_work_comes_from_the_reading(platform):
    @cuplace.jit
    def boom(x):
        return x * 2

    with cuplace.testing.faults(fail_op="boom"):
        y = boom(cuplace.device_put(numbers(4), platform.devices[0]))
        y.copy_to_host_async()
        for _ in range(2):
            with pytest.raises(errors.InjectedFaultError):
                np.asarray(y)


# --- device_get


def test_all_copies_begin_before_the_first_is_waited_for(platform, monkeypatch):
    many = MANY if platform.name != "sim" else MANY // 5  # each costs the simulator a millisecond
    tree = {"a": cuplace.device_put([numbers(4) + i for i in range(many)], platform.devices[2]), "b": ["text", 2.5]}
    scheduler = platform.scheduler
    waits = []
    wait = scheduler.host_wait
    with recorded(platform) as submissions, monkeypatch.context() as patch:
        patch.setattr(scheduler, "host_wait", lambda buffers: waits.append(len(submissions)) or wait(buffers))
        values = cuplace.device_get(tree)
    copies = 0 if platform.name == IN_PLACE else many
    assert len(downloads(submissions)) == len(submissions) == copies
    assert waits[0] == copies
    assert values["b"] == ["text", 2.5]
    for i, got in enumerate(values["a"]):
        assert type(got) is np.ndarray
        assert not got.flags.writeable
        np.testing.assert_array_equal(got, numbers(4) + i)
    assert pinned(platform)[0] == 0, "what is kept is not pinned"


def test_copies_ahead_are_bounded(platform):
    config.update("staging_bytes", 1000)
    arrays = cuplace.device_put([numbers(50) + i for i in range(20)], platform.devices[2])
    large = cuplace.device_put(numbers(500), platform.devices[2])
    values = cuplace.device_get([*arrays[:10], large, large, *arrays[10:], arrays[0]])
    for i, got in enumerate([*values[:10], *values[12:22]]):
        np.testing.assert_array_equal(got, numbers(50) + i)
    np.testing.assert_array_equal(values[10], numbers(500))
    assert values[10] is values[11]
    assert values[22] is values[0]
    in_use, peak = pinned(platform)
    assert in_use == 0
    assert peak <= 1000


def test_where_there_is_no_pinned_memory_values_are_read_all_the_same(platform, monkeypatch):
    x = cuplace.device_put(numbers(8), on(places(platform).full, "x"))

    def refuse(*args):
        raise MemoryError

    for device in platform.devices:
        monkeypatch.setattr(device.memory(PINNED_HOST), "allocate", refuse)
    x.copy_to_host_async()
    np.testing.assert_array_equal(cuplace.device_get([x])[0], numbers(8))


def test_a_deleted_leaf_is_found_before_anything_is_copied(platform):
    arrays = cuplace.device_put([numbers(4)] * 5, platform.devices[0])
    arrays[-1].delete()
    with recorded(platform) as submissions, pytest.raises(errors.DeletedArrayError):
        cuplace.device_get(arrays)
    assert not submissions


# --- iter_host


@given(data=st.data())
@settings(max_examples=10)
def test_pieces_cover_any_array_once_in_bounded_memory(platform, data):
    shape, sharding, _ = data.draw(transfers(platform.devices))
    max_bytes = data.draw(st.integers(12, 400))
    x = cuplace.device_put(numbers(*shape), sharding)
    whole, times = np.full(shape, -1, "float32"), np.zeros(shape, int)
    for index, values in cuplace.iter_host(x, max_bytes=max_bytes):
        assert 0 < values.nbytes <= max_bytes // 3
        assert not values.flags.writeable
        whole[index] = values
        times[index] += 1
    np.testing.assert_array_equal(whole, numbers(*shape))
    assert (times == 1).all()


@pytest.mark.parametrize("max_bytes", [12, 120, 360, 4096])
def test_no_more_memory_than_allowed_is_used(platform, max_bytes):
    x = cuplace.device_put(numbers(30, 10), platform.devices[3])
    for _ in cuplace.iter_host(x, max_bytes=max_bytes):
        pass
    del _
    gc.collect()
    in_use, peak = pinned(platform)
    assert in_use == 0
    assert peak <= max_bytes
    assert (peak > 0) == (platform.name != IN_PLACE)


def test_the_next_piece_is_on_its_way_while_the_loop_has_one(platform):
    device = platform.devices[0]
    x = cuplace.device_put(numbers(12), device).block_until_ready()
    with recorded(platform) as submissions:
        pieces = cuplace.iter_host(x, 48)
        assert not submissions
        index, values = next(pieces)
    copies = downloads(submissions)
    assert len(copies) == (0 if platform.name == IN_PLACE else 2)
    latch = platform.scheduler.hold(device.download)  # behind the copies that began
    np.testing.assert_array_equal(values, numbers(12)[index])
    assert latch.held
    latch.release()
    assert [index for index, _ in pieces] == [(slice(4, 8),), (slice(8, 12),)]


def test_it_may_be_stopped_and_outlives_the_array(platform):
    x = cuplace.device_put(numbers(12), platform.devices[1])
    pieces = cuplace.iter_host(x, max_bytes=48)
    x.delete()
    np.testing.assert_array_equal(next(pieces)[1], numbers(12)[:4])
    pieces.close()
    assert list(pieces) == []
    assert pinned(platform)[0] == 0


def test_scalars_and_arrays_without_elements(platform):
    ((index, values),) = cuplace.iter_host(cuplace.device_put(np.float32(2)))
    assert (index, values.shape, float(values)) == ((), (), 2.0)
    assert list(cuplace.iter_host(cuplace.device_put(numbers(0, 3)))) == []


def test_what_cannot_be_iterated_raises_at_once(platform):
    x = cuplace.device_put(np.float32([[1, 2]]))
    with pytest.raises(ValueError, match="iter_host got max_bytes=11, but three elements of the array take 12 bytes"):
        cuplace.iter_host(x, max_bytes=11)
    for value in ([1, 2], np.zeros(3), "text"):
        with pytest.raises(errors.NotAnArrayError):
            cuplace.iter_host(value)
    with pytest.raises(errors.TracerArrayConversionError):
        cuplace.jit(cuplace.iter_host)(x)
    x.delete()
    with pytest.raises(errors.DeletedArrayError):
        cuplace.iter_host(x)


def test_guards_know_these_calls_as_explicit(platform):
    x = cuplace.device_put(numbers(8))
    with cuplace.transfer_guard("disallow"), cuplace.transfer_guard_host_sync("disallow"):
        x.copy_to_host_async()
        np.testing.assert_array_equal(next(cuplace.iter_host(x))[1], numbers(8))
        with pytest.raises(errors.TransferGuardError):
            np.asarray(x)
    with cuplace.transfer_guard_device_to_host("disallow_explicit"):
        for call in (x.copy_to_host_async, lambda: cuplace.iter_host(x), lambda: cuplace.device_get([x])):
            with pytest.raises(errors.TransferGuardError):
                call()
