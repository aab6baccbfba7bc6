"""The checker's arithmetic on strided ranges, against sets of bytes."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tests.fakecuda import Region, native
from tests.fakecuda.regions import plain_regions, region_of

pytestmark = pytest.mark.usefixtures("installed")

BASE = 1 << 20

regions = st.integers(0, 3).flatmap(
    lambda ndim: st.builds(
        Region,
        address=st.integers(BASE, BASE + 40),
        shape=st.tuples(*[st.integers(0, 5)] * ndim),
        strides=st.tuples(*[st.integers(-20, 20)] * ndim),
        itemsize=st.integers(1, 6),
    )
)


def bytes_of(region: Region) -> set[int]:
    offsets = [0]
    for size, stride in zip(region.shape, region.strides, strict=True):
        offsets = [offset + i * stride for offset in offsets for i in range(size)]
    return {region.address + offset + i for offset in offsets for i in range(region.itemsize)}


def meet(a: Region, b: Region) -> bool:
    x, y = plain_regions([a, b], [])
    return bool(native.library().fake_regions_meet(x, y))


def covers(a: Region, b: Region) -> bool:
    x, y = plain_regions([a, b], [])
    return bool(native.library().fake_region_covers(x, y))


@given(regions, regions)
def test_two_regions_meet_where_they_share_a_byte(a: Region, b: Region) -> None:
    assert meet(a, b) == bool(bytes_of(a) & bytes_of(b))


@given(regions, regions)
def test_what_is_covered_is_a_part(a: Region, b: Region) -> None:
    if bytes_of(a) and bytes_of(b) and covers(a, b):
        assert bytes_of(a) >= bytes_of(b)


def test_boxes_of_one_array_meet_where_they_overlap() -> None:
    x = np.zeros((64, 48, 32), np.float32)
    left, right = x[:, :, :16], x[:, :, 16:]
    assert not meet(region_of(left), region_of(right))
    assert meet(region_of(left), region_of(x[10:12, 5:, 15:17]))
    assert not meet(region_of(x[::2]), region_of(x[1::2]))
    assert not meet(region_of(x[:, ::2, ::3]), region_of(x[:, ::2, 1::3]))
    assert meet(region_of(x[:, ::2, ::3]), region_of(x.T[0]))


def test_a_large_interleaved_pair_is_told_apart() -> None:
    even = Region(BASE, (4096, 4096), (1 << 15, 8), 4)
    odd = Region(BASE + 4, (4096, 4096), (1 << 15, 8), 4)
    assert not meet(even, odd)
    assert meet(even, odd._replace(itemsize=5))
