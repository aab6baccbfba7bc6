from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.staging.frozen import frozen

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.complex_numbers()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner)
)


@given(values)
def test_equal_values_of_equal_types_are_found_again(value):
    assert {frozen(value): 1}[frozen(value)] == 1


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), ((1,), [1]), (slice(1), slice(True)), ("1", 1), (1.0, 1 + 0j)]
)
def test_values_that_python_calls_equal_are_told_apart(one, other):
    assert frozen(one) != frozen(other)


def test_arrays_count_by_value():
    assert frozen(np.arange(3)) == frozen(np.arange(3))
    assert frozen(np.arange(3)) != frozen(np.arange(3.0))


def test_the_unhashable_is_refused():
    with pytest.raises(TypeError, match="unhashable"):
        frozen({1})
