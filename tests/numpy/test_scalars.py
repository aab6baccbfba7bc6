from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import cuplace.numpy as jnp
from cuplace.runtime.platform import Platform

only_cpu = pytest.mark.parametrize("platform", ["cpu"], indirect=True)


@only_cpu
def test_dtype_names_make_arrays(platform: Platform) -> None:
    x = jnp.float32(3.0)
    assert (repr(x), x.committed, x.weak_type) == ("Array(3., dtype=float32)", False, False)
    assert jnp.int32(3.7).tolist() == 3
    assert jnp.bfloat16([1, 2]).dtype == ml_dtypes.bfloat16
    assert jnp.bool_(3).tolist() is True
    assert jnp.complex64(1).tolist() == 1
    assert jnp.int8(jnp.arange(2)).dtype == np.int8


def test_dtype_names_stand_for_numpy_s_dtypes() -> None:
    for name in ("int8", "uint32", "float16", "float32", "complex64"):
        mine, numpys = getattr(jnp, name), np.dtype(name)
        assert np.dtype(mine) == numpys == mine == getattr(np, name)
        assert hash(mine) == hash(numpys.type)
        assert mine.dtype is numpys
        assert repr(mine) == f"<class 'cuplace.numpy.{name}'>"
    assert jnp.bfloat16 == np.dtype(ml_dtypes.bfloat16)
    assert jnp.float32 != jnp.float16
    assert jnp.float32 != "nonsense"
    assert jnp.bool is jnp.bool_
    assert isinstance(np.float32(1), jnp.float32)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (jnp.bfloat16, jnp.floating, True), ("float32", jnp.inexact, True), (np.int8, jnp.integer, True),
        (np.uint8, jnp.signedinteger, False), ("complex64", jnp.floating, False), (bool, jnp.number, False),
        ("int32", np.int32, True), ("int32", "int8", False), (jnp.floating, jnp.number, True),
        (jnp.floating, jnp.float32, False), (jnp.float8_e5m2, jnp.complexfloating, False),
    ],
)  # fmt: skip
def test_kinds_of_dtypes(first: object, second: object, expected: bool) -> None:
    assert jnp.issubdtype(first, second) is expected


def test_limits() -> None:
    assert jnp.finfo(jnp.float32).max == np.finfo(np.float32).max
    assert float(jnp.finfo("float16").eps) == float(np.finfo(np.float16).eps)
    assert float(jnp.finfo(jnp.bfloat16).max) == pytest.approx(3.38953e38)
    assert jnp.iinfo(jnp.int8).max == 127
    with pytest.raises(ValueError, match="Invalid integer data type"):
        jnp.iinfo(jnp.float32)


@only_cpu
def test_promotion_of_arrays_numbers_and_dtypes(platform: Platform) -> None:
    assert jnp.result_type(jnp.ones(2), 1) == np.float32
    assert jnp.result_type("int8", 1) == np.int8
    assert jnp.result_type(np.float16(1), jnp.bfloat16) == np.float32
    assert jnp.result_type(int, float) == np.float32
    assert jnp.promote_types("int32", "float16") == np.float16
    assert jnp.promote_types("uint32", int) == np.uint32
    with pytest.raises(ValueError, match="at least one"):
        jnp.result_type()
    with pytest.raises(TypeError):
        jnp.promote_types("int8", object)


@only_cpu
def test_questions_about_shapes(platform: Platform) -> None:
    for value in (np.ones((2, 3), np.float32), [[1, 2, 3], [4, 5, 6]], jnp.ones((2, 3))):
        assert (jnp.shape(value), jnp.ndim(value), jnp.size(value), jnp.size(value, 1)) == ((2, 3), 2, 6, 3)
    assert (jnp.shape(3), jnp.ndim(3), jnp.size(3)) == ((), 0, 1)
    assert jnp.iscomplexobj(jnp.complex64(1))
    assert jnp.iscomplexobj([1j])
    assert not jnp.iscomplexobj(1.0)
    assert [jnp.isscalar(v) for v in (3, jnp.float32(1), np.float32(1), jnp.ones(1), "a", None)] == [True] * 3 + [
        False
    ] * 3


def test_names_that_are_not_there_say_so() -> None:
    with pytest.raises(AttributeError, match=r"cuplace\.numpy\.fft is not there yet"):
        jnp.fft
    with pytest.raises(AttributeError, match=r"module 'cuplace\.numpy' has no attribute 'nonsense'"):
        jnp.nonsense
    assert not hasattr(jnp, "__wrapped__")
    assert set(jnp.__all__) <= set(dir(jnp))


def test_constants() -> None:
    assert (jnp.pi, jnp.e, jnp.inf, jnp.newaxis) == (np.pi, np.e, np.inf, None)
    assert np.isnan(jnp.nan)
