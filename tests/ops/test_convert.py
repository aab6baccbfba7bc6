from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from cuplace.array import dtypes
from cuplace.ops.convert import CONVERT
from cuplace.ops.rule import infer
from tests.ops.shards import typed

ALL = [np.dtype(name) for name in ("bool", "uint8", "int8", "int32", "float16", "float32", "complex64")]
ALL += [np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)]


@pytest.mark.parametrize("source", ALL, ids=str)
@pytest.mark.parametrize("target", ALL, ids=str)
def test_all_pairs(source: np.dtype, target: np.dtype) -> None:
    x = np.array([0, 1, 2]).astype(source)
    made = CONVERT.compute(np, x, dtype=target, weak_type=False)
    assert made.dtype == target
    expected = [0, 1, 1] if np.dtype(bool) in (source, target) else [0, 1, 2]
    assert made.astype(np.complex64).real.tolist() == expected


def test_only_the_weakness_changes() -> None:
    x = np.ones(2, np.float32)
    assert CONVERT.compute(np, x, dtype=x.dtype, weak_type=True) is x


def test_complex_numbers_lose_their_imaginary_part_quietly() -> None:
    assert CONVERT.compute(np, np.complex64([1 + 2j]), dtype=np.dtype("float32"), weak_type=False).tolist() == [1]
    assert CONVERT.compute(np, np.complex64([2j]), dtype=dtypes.BOOL, weak_type=False).tolist() == [True]


def test_placement_stays() -> None:
    out, _ = infer(CONVERT, [typed((4, 8), "x", "y")], {"dtype": np.dtype("int8"), "weak_type": True})
    assert repr(out) == "ShapedArray(int8[4@x,8@y], weak_type=True)"


@pytest.mark.parametrize("source", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "int32", "uint32", "int64"])
def test_floats_beyond_an_integer_type_become_its_limits(source: str, target: str) -> None:
    dtype = dtypes.as_dtype(getattr(ml_dtypes, source, source))
    x = np.array([np.nan, np.inf, -np.inf, -1.5, 2.75, -0.0]).astype(dtype)
    limits = np.iinfo(target)
    expected = [0, limits.max, limits.min, max(-1, limits.min), 2, 0]
    assert CONVERT.compute(np, x, dtype=np.dtype(target), weak_type=False).tolist() == expected


def test_the_largest_floats_that_fit() -> None:
    x = np.float32([2.0**31, 2.0**31 - 128, -(2.0**31), -(2.0**31) - 256, 2.0**32])
    made = CONVERT.compute(np, x, dtype=np.dtype("int32"), weak_type=False)
    assert made.tolist() == [2**31 - 1, 2**31 - 128, -(2**31), -(2**31), 2**31 - 1]
