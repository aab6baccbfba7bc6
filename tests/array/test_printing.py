from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.array.printing import array_repr


@pytest.mark.parametrize(
    ("values", "weak", "text"),
    [
        (np.float32(1.5), True, "Array(1.5, dtype=float32, weak_type=True)"),
        (np.int32(3), False, "Array(3, dtype=int32)"),
        (np.zeros(0, "float32"), False, "Array([], shape=(0,), dtype=float32)"),
        (np.zeros((2, 0), "bool"), True, "Array([], shape=(2, 0), dtype=bool, weak_type=True)"),
        (np.array([True, False]), False, "Array([ True, False], dtype=bool)"),
        (np.complex64([1 + 2j]), False, "Array([1.+2.j], dtype=complex64)"),
        (np.float32([[0, 1], [2, 3]]), False, "Array([[0., 1.],\n       [2., 3.]], dtype=float32)"),
        (np.ones(2, ml_dtypes.bfloat16), False, "Array([1, 1], dtype=bfloat16)"),
    ],
)
def test_values_print_as_jax_prints_them(values, weak, text):
    assert array_repr(np.asarray(values), weak) == text


@given(st.integers(1, 60), st.integers(20, 100), st.booleans())
def test_no_line_is_longer_than_numpy_allows_and_the_values_are_numpys(count, width, weak):
    values = np.arange(count, dtype="int32")
    with np.printoptions(linewidth=width):
        text = array_repr(values, weak)
        body = text[len("Array(") : text.rindex("dtype=")].rstrip().removesuffix(",")
        assert eval(body) == values.tolist()
    tail = "dtype=int32, weak_type=True)" if weak else "dtype=int32)"
    assert text.endswith(tail)
    assert max(map(len, text.splitlines())) <= max(width, len("Array(") + len(tail))


def test_many_values_are_shortened():
    text = array_repr(np.arange(10_000, dtype="int32"), False)
    assert text == "Array([   0,    1,    2, ..., 9997, 9998, 9999], dtype=int32)"
