"""Many small uploads are few submissions, with the values and the order of single ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuplace import testing
from cuplace.errors import InjectedFaultError
from cuplace.runtime.config import config
from cuplace.runtime.packing import PACKED_BYTES, SMALL_BYTES, packed
from tests.runtime.streams import ADD_ONE, compute, move, read

LARGE = SMALL_BYTES + 4


def arrays(sizes):
    return [np.arange(size, dtype=np.uint8) + i for i, size in enumerate(sizes)]


def pairs_on(platform, values, devices):
    return [(platform.scheduler.allocate(d, v.shape, v.dtype), v) for v, d in zip(values, devices, strict=True)]


def test_small_uploads_of_a_device_are_one_submission(platform):
    """Behind other work; else the calling thread may do each of them at once."""
    latches = [platform.scheduler.hold(device.upload) for device in platform.devices[:4]]
    values = [np.float32([i, i + 1]) for i in range(200)]
    pairs = pairs_on(platform, values, [platform.devices[i % 4] for i in range(200)])
    with platform.scheduler.log.record() as submissions:
        platform.scheduler.upload_batch(pairs)
    assert [(s.kind, s.nbytes, len(s.writes)) for s in submissions] == [("upload", 400, 50)] * 4
    assert sorted(id for s in submissions for id in s.writes) == [buffer.id for buffer, _ in pairs]
    for latch in latches:
        latch.release()
    for buffer, value in pairs:
        np.testing.assert_array_equal(read(buffer), value)


@pytest.mark.order
def test_packed_uploads_wait_for_who_reads_what_they_overwrite(platform):
    device, other = platform.devices[:2]
    values = [np.arange(8) + i for i in range(20)]
    pairs = pairs_on(platform, values, [device] * 20)
    platform.scheduler.upload_batch(pairs)
    moved = [move(buffer, other) for buffer, _ in pairs]
    platform.scheduler.upload_batch([(buffer, value * 7) for buffer, value in pairs])
    platform.scheduler.host_wait([buffer for buffer, _ in pairs])
    for copy, (buffer, value) in zip(moved, pairs, strict=True):
        np.testing.assert_array_equal(read(copy), value)
        np.testing.assert_array_equal(read(buffer), value * 7)


@given(sizes=st.lists(st.sampled_from([0, 1, 5, 4096, SMALL_BYTES, LARGE]), max_size=60))
@settings(max_examples=30)
def test_groups_keep_the_order_of_a_stream_and_are_bounded(platform, sizes):
    pairs = pairs_on(platform, arrays(sizes), [platform.devices[i % 2] for i in range(len(sizes))])
    groups = list(packed(pairs))
    assert sorted(b.id for group in groups for b, _ in group) == [b.id for b, _ in pairs]
    for device in platform.devices[:2]:
        ids = [b.id for group in groups for b, _ in group if b.device is device]
        assert ids == sorted(ids)
    for group in groups:
        assert len({buffer.device for buffer, _ in group}) == 1
        if len(group) > 1:
            assert max(buffer.nbytes for buffer, _ in group) <= SMALL_BYTES
            assert sum(buffer.nbytes for buffer, _ in group) <= PACKED_BYTES


def test_few_uploads_are_not_packed(platform):
    pairs = pairs_on(platform, arrays([4] * 8), platform.devices)
    assert [len(group) for group in packed(pairs)] == [1] * 8


def test_values_are_cast_and_taken_as_of_the_call(platform):
    device = platform.devices[0]
    values = [np.arange(4, dtype=np.int64) + i for i in range(40)]
    buffers = [platform.scheduler.allocate(device, (4,), np.dtype(np.float32)) for _ in values]
    latch = platform.scheduler.hold(device.upload)
    platform.scheduler.upload_batch(list(zip(buffers, values, strict=True)))
    for value in values:
        value[:] = -1
    assert not platform.scheduler.is_ready(buffers[:1])
    latch.release()
    for i, buffer in enumerate(buffers):
        np.testing.assert_array_equal(read(buffer), np.float32([0, 1, 2, 3]) + i)


def test_any_layout_of_a_source_and_any_dtype(platform):
    sources = [np.arange(24).astype(dtype).reshape(4, 6)[::2, ::-1].T for dtype in ("i1", "f8", "c8", "?", "u2") * 5]
    sources += [np.array(3, np.float32), np.zeros((0, 3), np.int16)]
    pairs = pairs_on(platform, sources, [platform.devices[3]] * len(sources))
    platform.scheduler.upload_batch(pairs)
    for buffer, value in pairs:
        np.testing.assert_array_equal(read(buffer), value)


def test_what_was_there_before_is_read_first(platform):
    """Packed uploads into buffers that others still read wait for the readers, and later readers for the uploads."""
    device = platform.devices[0]
    buffers = [platform.scheduler.allocate(device, (3,), np.dtype(np.int64)) for _ in range(20)]
    platform.scheduler.upload_batch([(buffer, np.full(3, i)) for i, buffer in enumerate(buffers)])
    latch = platform.scheduler.hold(device.compute)
    before = [compute(ADD_ONE, buffer) for buffer in buffers]
    platform.scheduler.upload_batch([(buffer, np.full(3, -i)) for i, buffer in enumerate(buffers)])
    after = [compute(ADD_ONE, buffer) for buffer in buffers]
    latch.release()
    assert [read(x).tolist() for x in before] == [[i + 1] * 3 for i in range(20)]
    assert [read(x).tolist() for x in after] == [[1 - i] * 3 for i in range(20)]


def test_a_ring_smaller_than_a_group_takes_them_one_by_one(platform):
    config.update("staging_bytes", 4096)
    pairs = pairs_on(platform, arrays([700] * 40), [platform.devices[1]] * 40)
    platform.scheduler.upload_batch(pairs)
    for buffer, value in pairs:
        np.testing.assert_array_equal(read(buffer), value)


def test_host_memory_of_a_device_takes_packed_uploads_too(platform):
    place = platform.devices[1].place("pinned_host")
    latch = platform.scheduler.hold(place.upload)
    pairs = [(platform.scheduler.allocate(place, (5,), np.dtype(np.int32)), np.arange(5) + i) for i in range(30)]
    with platform.scheduler.log.record() as submissions:
        platform.scheduler.upload_batch(pairs)
    assert len(submissions) == 1
    latch.release()
    for buffer, value in pairs:
        np.testing.assert_array_equal(read(buffer), value)


def test_a_failure_poisons_all_of_the_group(platform):
    pairs = pairs_on(platform, arrays([4] * 20), [platform.devices[0]] * 20)
    with testing.faults(fail_op="upload"):
        platform.scheduler.upload_batch(pairs)
        for buffer, _ in pairs[::6]:
            with pytest.raises(InjectedFaultError):
                read(buffer)
    platform.scheduler.upload_batch(pairs)
    np.testing.assert_array_equal(read(pairs[7][0]), pairs[7][1])


def test_a_source_that_cannot_be_cast_leaves_buffers_usable(platform):
    device = platform.devices[0]
    buffers = [platform.scheduler.allocate(device, (2,), np.dtype(np.float32)) for _ in range(20)]
    sources = [np.float32([1, 2])] * 19 + [np.array(["one", "two"], object)]
    with pytest.raises(ValueError, match="could not convert string"):
        platform.scheduler.upload_batch(list(zip(buffers, sources, strict=True)))
    platform.scheduler.upload_batch([(buffer, np.float32([5, 6])) for buffer in buffers])
    for buffer in buffers:
        np.testing.assert_array_equal(read(buffer), [5, 6])
