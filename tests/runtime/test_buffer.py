"""Buffers and the host's views of their memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from cuplace.runtime.platform import Platform
from tests.runtime.streams import ADD_ONE, SQUARE, address, compute, finish, put, read, used

VALUES = np.arange(24, dtype=np.int64).reshape(4, 6)


def test_a_buffer_says_what_it_is(platform: Platform) -> None:
    buffer = put(platform.devices[1], VALUES, np.float32)
    assert repr(buffer) == f"Buffer({buffer.id}, {platform.devices[1]}, float32[4, 6])"
    assert (buffer.nbytes, buffer.device, buffer.array.shape) == (96, platform.devices[1], (4, 6))
    assert put(platform.devices[1], VALUES).id > buffer.id


@pytest.mark.order(once=True)
def test_views_of_the_host_are_counted_and_read_only(platform: Platform) -> None:
    """Where the host reads the memory in place (cpu) there is an export as long as any view of it lives."""
    in_place = platform.backend.host_view(VALUES) is not None
    buffer = put(platform.devices[0], VALUES)
    view = read(buffer)
    assert len(buffer.exports) == in_place
    part = view[1:, ::2].T
    again = read(buffer)
    assert len(buffer.exports) == 2 * in_place
    del view, again
    assert len(buffer.exports) == in_place
    np.testing.assert_array_equal(part, VALUES[1:, ::2].T)
    for array in (part, read(buffer)):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        if in_place:
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.flags.writeable = True
    del part, array
    assert len(buffer.exports) == 0


@pytest.mark.order(once=True)
def test_a_view_keeps_the_memory_of_a_dropped_buffer(platform: Platform) -> None:
    device = platform.devices[0]
    for make in (lambda: put(device, VALUES), lambda: compute(SQUARE, put(device, VALUES))):
        source = make()
        expected = np.array(read(source))
        view = read(source)
        where = address(source)
        del source
        later = [put(device, VALUES + i) for i in range(3)] + [compute(ADD_ONE, put(device, VALUES)) for _ in range(3)]
        if platform.backend.host_view(VALUES) is not None:
            assert where not in [address(buffer) for buffer in later]
        platform.scheduler.host_wait(later)
        np.testing.assert_array_equal(view, expected)
        del view, later
    finish(platform)
    assert used(platform) == {"bytes_in_use": 0, "bytes_parked": 0}


@pytest.mark.order(once=True)
def test_memory_comes_back_when_the_last_view_goes(platform: Platform) -> None:
    device = platform.devices[0]
    buffer = put(device, VALUES)
    view = read(buffer)
    where = address(buffer)
    del buffer
    part = view[0]
    del view
    assert part[0] == 0
    del part
    gc.collect()
    finish(platform)
    assert used(platform) == {"bytes_in_use": 0, "bytes_parked": 0}
    assert address(put(device, VALUES)) == where


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (2, 0)], ids=str)
def test_small_and_empty_views(platform: Platform, shape: tuple[int, ...]) -> None:
    buffer = put(platform.devices[0], np.full(shape, 7))
    view = read(buffer)
    assert view.shape == shape
    assert not view.flags.writeable
    np.testing.assert_array_equal(view, np.full(shape, 7))


def test_a_copy_of_a_view_is_the_users_own(platform: Platform) -> None:
    buffer = put(platform.devices[0], VALUES)
    mine = np.array(read(buffer))
    mine[...] = -1
    np.testing.assert_array_equal(read(buffer), VALUES)
    assert len(buffer.exports) == 0
