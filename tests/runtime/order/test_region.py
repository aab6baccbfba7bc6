"""Regions hold exactly the bytes of an array, and overlap exactly where those do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.runtime.order.region import Region, memory_of, region_of
from cuplace.runtime.platform import Platform
from tests.runtime.streams import put, read


def addresses(array: np.ndarray) -> set[int]:
    """Every byte of an array, by brute force."""
    found = np.zeros(1, np.int64)
    for count, stride in zip(array.shape, array.strides, strict=True):
        found = (found[:, None] + np.arange(count) * stride).reshape(-1)
    first = array.__array_interface__["data"][0]
    return {first + int(at) + i for at in found for i in range(array.itemsize)}


@st.composite
def views(draw: Any) -> tuple[np.ndarray, np.ndarray]:
    """Two boxes of one array, with steps of either sign, transposed or not."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    dtype = draw(st.sampled_from([np.uint8, np.int16, np.int64]))
    whole = np.zeros(shape, dtype)

    def view() -> np.ndarray:
        box = []
        for size in shape:
            start, stop = sorted((draw(st.integers(0, size)), draw(st.integers(0, size))))
            box.append(slice(start, stop, draw(st.integers(1, 3))))
        part = whole[tuple(box)]
        part = part[tuple(slice(None, None, draw(st.sampled_from([1, -1]))) for _ in shape)]
        return part.T if draw(st.booleans()) else part

    return view(), view()


@given(views())
def test_overlap_is_a_common_byte(pair: tuple[np.ndarray, np.ndarray]) -> None:
    one, other = map(region_of, pair)
    bytes_of_one, bytes_of_other = map(addresses, pair)
    assert (one is None) == (not bytes_of_one)
    assert (other is None) == (not bytes_of_other)
    if one is not None and other is not None:
        assert one.nbytes == len(bytes_of_one)
        assert (one.start, one.stop) == (min(bytes_of_one), max(bytes_of_one) + 1)
        assert one.overlaps(other) == other.overlaps(one) == bool(bytes_of_one & bytes_of_other)
        assert one.same(one)


def test_broadcast_arrays_touch_each_byte_once() -> None:
    region = region_of(np.broadcast_to(np.zeros((1, 4), np.int32), (5, 4)))
    assert region is not None
    assert (region.nbytes, region.dims) == (16, ())


def test_columns_that_interleave_do_not_overlap() -> None:
    whole = np.zeros((100, 8))
    columns = [region_of(whole[:, i]) for i in range(8)]
    assert not any(a.overlaps(b) for i, a in enumerate(columns) for b in columns[:i])  # type: ignore[union-attr,arg-type]
    assert all(column.overlaps(region_of(whole[50])) for column in columns)  # type: ignore[union-attr,arg-type]


def test_same_is_the_description() -> None:
    assert Region(8, 4, ((2, 16),)).same(Region(8, 4, ((2, 16),)))
    assert not Region(8, 4, ((2, 16),)).same(Region(8, 4, ((3, 16),)))
    assert not Region(8, 4).same(Region(12, 4))


def test_memory_is_what_owns_it() -> None:
    whole = np.zeros((4, 4))
    assert memory_of(whole) is whole
    assert memory_of(whole[1:].T[::2]) is whole
    raw = bytearray(32)
    view = np.frombuffer(raw, np.uint8)
    assert memory_of(view[3:]) is view


@pytest.mark.parametrize("platform", ["cpu", "sim"], indirect=True)
def test_arrays_of_one_block_have_one_memory(platform: Platform) -> None:
    """Also the views that the host gets where it reads the memory in place."""
    buffer = put(platform.devices[0], np.arange(8))
    memory = memory_of(buffer.array)
    assert memory_of(buffer.array[2:].reshape(2, 3)) is memory
    if platform.name == "cpu":
        assert memory_of(read(buffer)[1:]) is memory
