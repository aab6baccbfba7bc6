from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.placement.box import Box


@st.composite
def boxes(draw: st.DrawFn, rank: int) -> Box:
    ends = [sorted(draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))) for _ in range(rank)]
    return Box(tuple(start for start, _ in ends), tuple(stop for _, stop in ends))


pairs = st.integers(0, 3).flatmap(lambda rank: st.tuples(boxes(rank), boxes(rank)))


def mask(box: Box) -> np.ndarray:
    inside = np.zeros((6,) * len(box.start), dtype=bool)
    inside[box.slices()] = True
    return inside


@given(pairs)
def test_intersection_is_what_lies_in_both(pair):
    one, other = pair
    shared = one.intersect(other)
    both = mask(one) & mask(other)
    assert (shared is None) == (not both.any())
    if shared is not None:
        np.testing.assert_array_equal(mask(shared), both)
    assert shared == other.intersect(one)


@given(pairs)
def test_size_and_emptiness_count_the_indices(pair):
    for box in pair:
        assert box.size == mask(box).sum()
        assert box.empty == (box.size == 0)
        assert box.shape == mask(box)[box.slices()].shape


@given(pairs)
def test_within_picks_the_box_out_of_a_block(pair):
    inner, outer = pair
    shared = inner.intersect(outer)
    if shared is not None:
        array = np.arange(mask(outer).size).reshape(mask(outer).shape)
        np.testing.assert_array_equal(array[outer.slices()][shared.within(outer)], array[shared.slices()])


def test_a_box_moves_by_an_offset():
    assert Box((1, 2), (3, 4)).shift((10, -2)) == Box((11, 0), (13, 2))


def test_a_box_without_dimensions_holds_one_element():
    scalar = Box.whole(())
    assert (scalar.size, scalar.empty, scalar.slices()) == (1, False, ())
    assert scalar.intersect(scalar) == scalar


def test_a_box_whose_end_lies_before_its_start_is_empty():
    backwards = Box((4,), (1,))
    assert (backwards.shape, backwards.size, backwards.empty) == ((0,), 0, True)


def test_boxes_of_different_rank_do_not_mix():
    with pytest.raises(ValueError):
        Box((0,), (1,)).shift((1, 1))


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 5)), max_size=4), st.integers(1, 30))
def test_pieces_are_contiguous_and_cover_a_box_in_order(dims, most):
    box = Box(tuple([start for start, _ in dims]), tuple([start + size for start, size in dims]))
    positions = np.arange(box.size).reshape(box.shape)
    pieces = list(box.pieces(most))
    assert all(0 < piece.size <= most for piece in pieces)
    taken = [positions[piece.within(box)].ravel() for piece in pieces]
    assert np.concatenate([np.arange(0), *taken]).tolist() == list(range(box.size))
