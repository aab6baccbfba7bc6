"""Strided copies in their simplest form, against copies element by element; without any CUDA."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.runtime.strided import (
    MAX_DIMS,
    Dim,
    StridedCopy,
    contiguous_strides,
    fits_32_bits,
    strided_copy,
)


def bytes_of(copy: StridedCopy) -> list[tuple[int, int]]:
    """Offsets of all (source, target) bytes, in no particular order."""
    found = []
    for places in itertools.product(*[range(dim.size) for dim in copy.dims]):
        source = sum(place * dim.source for place, dim in zip(places, copy.dims, strict=True))
        target = sum(place * dim.target for place, dim in zip(places, copy.dims, strict=True))
        found += [(source + i, target + i) for i in range(copy.run)]
    return sorted(found)


@st.composite
def views(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two arrays of equal shape with strides of any kind, the target's bytes being all different."""
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=4)))
    found = []
    for repeats in (True, False):
        axes = draw(st.permutations(range(len(shape))))
        steps = [draw(st.sampled_from((1, 2, -1))) for _ in shape]
        whole = np.empty([shape[axis] * abs(step) for axis, step in zip(axes, steps, strict=True)], np.int32)
        part = whole[tuple(slice(None, None, step) for step in steps)]
        view = part.transpose(np.argsort(axes)) if shape else part
        if repeats and draw(st.booleans()) and shape:
            view = np.broadcast_to(view[:1], shape)
        found.append(view)
    return found[0], found[1]


@given(arrays=views())
def test_exactly_the_bytes_of_the_box_are_copied(arrays: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]) -> None:
    source, target = arrays
    copy = strided_copy(target.shape, 4, source.strides, target.strides)
    assert copy is not None
    wanted = []
    for places in itertools.product(*map(range, target.shape)):
        starts = [sum(place * step for place, step in zip(places, a.strides, strict=True)) for a in (source, target)]
        wanted += [(starts[0] + i, starts[1] + i) for i in range(4)]
    assert bytes_of(copy) == sorted(wanted)
    assert copy.nbytes == target.size * 4
    assert all(dim.size > 1 for dim in copy.dims)


@given(arrays=views(), offset=st.integers(0, 64))
def test_units_divide_everything(arrays: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], offset: int) -> None:
    source, target = arrays
    copy = strided_copy(target.shape, 4, source.strides, target.strides)
    assert copy is not None
    unit = copy.unit(offset * 4, 1 << 20)
    assert unit in (4, 8, 16)
    assert offset * 4 % unit == copy.run % unit == 0
    assert all(dim.source % unit == dim.target % unit == 0 for dim in copy.dims)
    ((_, _, box),) = copy.boxes(unit)
    assert int(box["count"]) * unit == copy.nbytes
    assert math.prod(box["shape"][: int(box["ndim"])].tolist()) == box["count"]


def test_contiguous_arrays_are_one_run() -> None:
    dense = contiguous_strides((3, 4, 5), 8)
    assert dense == (160, 40, 8)
    copy = strided_copy((3, 4, 5), 8, dense, dense)
    assert copy == StridedCopy(480, ())
    assert copy.is_flat
    assert not copy.is_pitched


def test_fortran_order_on_both_sides_is_one_run() -> None:
    assert strided_copy((3, 4), 4, (4, 12), (4, 12)) == StridedCopy(48, ())


def test_rows_and_columns_of_a_matrix_are_pitched() -> None:
    copy = strided_copy((16, 8), 4, (64, 4), (32, 4))
    assert copy == StridedCopy(32, (Dim(16, 64, 32),))
    assert copy.is_pitched


@pytest.mark.parametrize("strides", [((-64, 4), (32, 4)), ((0, 4), (32, 4)), ((1 << 31, 4), (32, 4))], ids=str)
def test_what_a_pitch_cannot_say_is_not_pitched(strides: tuple[tuple[int, int], tuple[int, int]]) -> None:
    copy = strided_copy((16, 8), 4, *strides)
    assert copy is not None
    assert not copy.is_pitched


def test_an_empty_box_is_no_copy() -> None:
    assert strided_copy((3, 0), 4, (4, 4), (4, 4)) is None


def test_neighbouring_threads_write_neighbouring_bytes() -> None:
    """The dimension with the smallest step in the target comes last, whatever the order of the array's axes."""
    copy = strided_copy((4, 8), 4, (4, 100), (4, 16))
    assert copy is not None
    assert [dim.target for dim in copy.dims] == sorted((dim.target for dim in copy.dims), reverse=True)


def test_large_boxes_use_wide_indices() -> None:
    for size, step, narrow in ((100, 400, True), (100, 1 << 31, False), (1 << 31, 8, False)):
        ((_, _, box),) = StridedCopy(4, (Dim(size, step, 16),)).boxes(4)
        assert fits_32_bits(box) is narrow


def test_a_box_of_many_dimensions_is_split_along_the_outer_ones() -> None:
    dims = tuple(Dim(2, 3 << i, 5 << i) for i in reversed(range(MAX_DIMS + 2)))
    launches = StridedCopy(1, dims).boxes(1)
    assert sorted(launch[:2] for launch in launches) == sorted(
        (i * dims[0].source + j * dims[1].source, i * dims[0].target + j * dims[1].target)
        for i in range(2)
        for j in range(2)
    )
    assert all(int(box["ndim"]) == MAX_DIMS for _, _, box in launches)
