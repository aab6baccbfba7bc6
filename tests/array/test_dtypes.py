"""Promotion against tables of JAX 0.10.2, for all pairs of dtypes; narrowing against what the docs promise."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from cuplace import errors
from cuplace.array import dtypes
from cuplace.runtime.config import config

TABLE = json.loads(Path(__file__).with_name("promotion.json").read_text())
NAMES = TABLE["names"].split()
PYTHON = {"int": int, "float": float, "complex": complex}


@pytest.fixture(params=[False, True], ids=["x32", "x64"])
def x64(request: pytest.FixtureRequest) -> Iterator[bool]:
    config.update("enable_x64", request.param)
    yield request.param
    config.update("enable_x64", False)


def typed(name: str) -> tuple[np.dtype, bool]:
    """The dtype and weakness of a name in the table."""
    if name in PYTHON:
        return dtypes.default_dtype(name), True
    return np.dtype(getattr(ml_dtypes, name, name)), False


def found(function: object, a: str, b: str) -> str:
    try:
        return str(function(typed(a), typed(b)))
    except errors.TypePromotionError:
        return "!"


@pytest.mark.parametrize("row", range(len(NAMES)), ids=NAMES)
def test_result_types_are_jax_s(row: int, x64: bool) -> None:
    expected = TABLE[f"result_type x64={x64}"][row].split()
    assert [found(lambda a, b: dtypes.promote([a, b])[0], NAMES[row], b) for b in NAMES] == expected


@pytest.mark.parametrize("row", range(len(NAMES)), ids=NAMES)
def test_promoted_types_are_jax_s(row: int, x64: bool) -> None:
    expected = TABLE[f"promote_types x64={x64}"][row].split()
    assert [found(dtypes.join, NAMES[row], b) for b in NAMES] == expected


def test_weakness_stays_where_no_strong_type_decides() -> None:
    f32, i32, boolean = (np.dtype(name) for name in ("float32", "int32", "bool"))
    assert dtypes.promote([(i32, True), (f32, True)]) == (f32, True)
    assert dtypes.promote([(i32, False), (f32, True)]) == (f32, True)
    assert dtypes.promote([(boolean, False), (i32, True)]) == (i32, True)
    assert dtypes.promote([(f32, False), (f32, True)]) == (f32, False)
    assert dtypes.promote([(boolean, False), (boolean, False)]) == (boolean, False)


def test_promotion_of_small_floats_says_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"no available implicit dtype promotion path.*x\.astype\('float32'\)"):
        dtypes.promote([(np.dtype(ml_dtypes.float8_e5m2), False), (np.dtype("float32"), False)])


@pytest.mark.parametrize(
    ("value", "dtype", "weak"),
    [(True, "bool", False), (1, "int32", True), (1.0, "float32", True), (1j, "complex64", True)],
)
def test_python_numbers(value: object, dtype: str, weak: bool) -> None:
    assert dtypes.scalar_type(value) == (np.dtype(dtype), weak)


def test_python_integers_must_fit(x64: bool) -> None:
    if x64:
        assert dtypes.scalar_type(2**40) == (np.dtype("int64"), True)
    too_large = 2**63 if x64 else 2**31
    with pytest.raises(OverflowError, match=f"^Python int {too_large} too large to convert to int"):
        dtypes.scalar_type(too_large)
    dtypes.scalar_type(-too_large)


@pytest.mark.parametrize("dtype", [object, str, "datetime64[s]", ">f4", "V8"])
def test_what_is_no_number_is_refused(dtype: object) -> None:
    with pytest.raises(TypeError, match="is not a valid JAX array type"):
        dtypes.checked_dtype(np.dtype(dtype))


def test_requests(x64: bool) -> None:
    assert dtypes.requested(float, "zeros") == np.dtype("float64" if x64 else "float32")
    assert dtypes.requested("int8", "zeros") == np.dtype("int8")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = dtypes.requested(np.float64, "zeros")
    assert given == np.dtype("float64" if x64 else "float32")
    texts = [str(w.message).splitlines()[0] for w in caught]
    assert texts == ([] if x64 else [
        ("Explicitly requested dtype float64 requested in zeros is not available, and will be truncated to dtype "
        "float32. To enable more dtypes, set the jax_enable_x64 configuration option or the JAX_ENABLE_X64 shell "
        "environment variable.")
    ])  # fmt: skip


def test_requests_for_what_arrays_cannot_have() -> None:
    with pytest.raises(
        TypeError, match="JAX only supports number, bool, and string dtypes, got dtype <class 'object'>"
    ):
        dtypes.requested(object, "zeros")
    with pytest.raises(TypeError, match="data type 'foo' not understood"):
        dtypes.requested("foo", "zeros")


# --- narrowing ---------------------------------------------------------------------------------------------


def narrowed(value: np.ndarray) -> tuple[np.ndarray, list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return dtypes.narrow(value), caught


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
def test_wide_numpy_values_are_narrowed_with_one_warning_for_each_line(dtype: str) -> None:
    dtypes._warned.clear()
    value = np.arange(3).astype(dtype)
    counts = []
    for _ in range(3):
        made, caught = narrowed(value)
        counts.append(len(caught))
    assert made.dtype == dtypes.canonicalize(dtype)
    assert counts == [1, 0, 0]
    with pytest.warns(errors.NarrowingWarning):
        dtypes.narrow(value)


def test_the_warning_names_the_line_and_the_remedy() -> None:
    dtypes._warned.clear()
    _, caught = narrowed(np.ones(2))
    assert caught[0].category is errors.NarrowingWarning
    assert caught[0].filename == __file__
    assert "config.update('enable_x64', True)" in str(caught[0].message)


@pytest.mark.parametrize("value", [[2**31], [-(2**31) - 1], [0, 2**40]])
def test_integers_that_do_not_fit_are_refused(value: list[int]) -> None:
    with pytest.raises(OverflowError, match="does not fit into int32"):
        dtypes.narrow(np.array(value, np.int64))
    with pytest.raises(OverflowError, match="does not fit into uint32"):
        dtypes.narrow(np.array([2**32], np.uint64))


def test_integers_at_the_limits_fit() -> None:
    limits = np.array([-(2**31), 2**31 - 1], np.int64)
    made, _ = narrowed(limits)
    np.testing.assert_array_equal(made, limits)
    assert narrowed(np.array([], np.int64))[0].dtype == np.int32


def test_nothing_is_narrowed_where_64_bit_types_are_on(x64: bool) -> None:
    value = np.arange(3.0)
    made, caught = narrowed(value)
    assert (made is value) == x64
    assert not caught or not x64


def test_values_of_other_dtypes_are_passed_on() -> None:
    for dtype in ("bool", "int8", "float16", "float32", "complex64", ml_dtypes.bfloat16):
        value = np.ones(2, dtype)
        assert dtypes.narrow(value) is value


def test_questions() -> None:
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    assert dtypes.is_float(bfloat16)
    assert dtypes.kind(bfloat16) == "f"
    assert not dtypes.is_integer(np.dtype(bool))
    assert dtypes.is_inexact(np.dtype("complex64"))
    assert dtypes.short_name(bfloat16) == "bf16"
    assert dtypes.real_dtype(np.dtype("complex64")) == np.float32
    assert dtypes.to_inexact(np.dtype("int8")) == np.float32
    assert dtypes.to_inexact(bfloat16) == bfloat16
