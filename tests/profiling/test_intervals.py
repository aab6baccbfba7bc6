from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cuplace.profiling.intervals import common, length, merged

moments = st.integers(0, 30)
intervals = st.lists(st.tuples(moments, moments).map(lambda pair: (min(pair), max(pair))), max_size=8)


def units(many):
    """The unit steps that are covered."""
    return {step for start, end in many for step in range(start, end)}


@given(intervals)
def test_the_union_covers_the_same_and_nothing_twice(many):
    union = merged(many)
    assert units(union) == units(many)
    assert length(union) == len(units(many))
    assert union == sorted(union)


@given(intervals, moments, moments)
def test_what_is_common_is_what_both_cover(many, a, b):
    one = (min(a, b), max(a, b))
    assert common(one, merged(many)) == len(units([one]) & units(many))
