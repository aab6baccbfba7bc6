from __future__ import annotations

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import errors
from cuplace.placement.axes import AxisType
from cuplace.placement.spec import PartitionSpec as P
from cuplace.runtime.platform import Platform
from tests.numpy.places import counted, put, spec_of

only_cpu = pytest.mark.parametrize("platform", ["cpu"], indirect=True)

OF_ONE = [
    "negative", "positive", "absolute", "abs", "sign", "square", "reciprocal", "exp", "exp2", "expm1", "log",
    "log1p", "log2", "log10", "sqrt", "sin", "cos", "tan", "arcsin", "asin", "arccos", "acos", "arctan", "atan",
    "sinh", "cosh", "tanh", "floor", "ceil", "trunc", "isnan", "isinf", "isfinite", "logical_not", "real", "imag",
    "conj", "conjugate", "round", "around",
]  # fmt: skip
OF_TWO = [
    "add", "subtract", "multiply", "divide", "true_divide", "floor_divide", "remainder", "mod", "power", "pow",
    "arctan2", "atan2", "maximum", "minimum", "equal", "not_equal", "less", "less_equal", "greater",
    "greater_equal", "logical_and", "logical_or", "logical_xor",
]  # fmt: skip
OF_BITS = [
    "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "bitwise_left_shift",
    "bitwise_right_shift",
]  # fmt: skip
SPECIAL = np.float32([0.0, -0.0, 0.3, -0.7, 1.0, -1.0, 2.5, -3.5, np.inf, -np.inf, np.nan])


def numpys(name: str) -> object:
    return getattr(np, name)


@only_cpu
@pytest.mark.parametrize("name", OF_ONE)
def test_functions_of_one_operand_have_numpy_s_values(name: str, platform: Platform) -> None:
    with np.errstate(all="ignore"):
        truth = numpys(name)(SPECIAL.astype(np.float64)).astype(numpys(name)(SPECIAL).dtype)
    np.testing.assert_allclose(np.asarray(getattr(jnp, name)(SPECIAL)), truth, rtol=2e-6)


@only_cpu
@pytest.mark.parametrize("name", OF_TWO)
def test_functions_of_two_operands_have_numpy_s_values(name: str, platform: Platform) -> None:
    x, y = SPECIAL[:, None], SPECIAL[None, :]
    with np.errstate(all="ignore"):
        truth = numpys(name)(x, y)
    np.testing.assert_allclose(np.asarray(getattr(jnp, name)(x, y)), truth, rtol=2e-6)


@only_cpu
@pytest.mark.parametrize("name", [*OF_BITS, "floor_divide", "remainder", "maximum", "less"])
def test_integers_have_numpy_s_values(name: str, platform: Platform) -> None:
    x, y = np.int32([5, -5, 7, 0])[:, None], np.int32([1, 3, 2, 4])[None, :]
    np.testing.assert_array_equal(np.asarray(getattr(jnp, name)(x, y)), numpys(name)(x, y))


@only_cpu
def test_complex_numbers_have_numpy_s_values(platform: Platform) -> None:
    z = np.complex64([1 + 2j, -0.5j, 3])
    for name in ("absolute", "sign", "sqrt", "exp", "real", "imag", "conj", "square", "tanh"):
        np.testing.assert_allclose(np.asarray(getattr(jnp, name)(z)), numpys(name)(z), rtol=2e-6)
    np.testing.assert_allclose(np.asarray(jnp.exp2(z)), np.exp2(z.real) * np.exp(1j * z.imag * np.log(2)), rtol=2e-6)


def test_operands_in_different_places(platform: Platform) -> None:
    x, r = put(counted(4, 8), "x", "y"), put(counted(8))
    out = jnp.add(jnp.multiply(x, 2), jnp.maximum(r, 3))
    np.testing.assert_array_equal(np.asarray(out), counted(4, 8) * 2 + np.maximum(counted(8), 3))
    assert out.committed
    assert spec_of(out) == P("x", "y")
    assert spec_of(jnp.sin(put(counted(4, 8), "x")) + put(counted(4, 8), None, "y")) == P("x", "y")


def test_chains_over_shards(platform: Platform) -> None:
    x = put(counted(8, 8), "y", "x")
    out = cuplace.jit(lambda a: jnp.where(a > 8, jnp.sqrt(a) * 2, -a).astype("int32"))(x)
    truth = np.where(counted(8, 8) > 8, np.sqrt(counted(8, 8)) * 2, -counted(8, 8)).astype(np.int32)
    np.testing.assert_array_equal(np.asarray(out), truth)


def test_conflicts_on_explicit_and_auto_axes(platform: Platform) -> None:
    with pytest.raises(errors.ShardingTypeError, match="add got incompatible shardings for broadcasting"):
        jnp.add(put(counted(8, 8), "x"), put(counted(8, 8), "y"))
    a, b = (put(counted(8, 8), entry, kind=AxisType.Auto) for entry in "xy")
    np.testing.assert_array_equal(np.asarray(jnp.add(a, b)), counted(8, 8) * 2)


@only_cpu
def test_powers(platform: Platform) -> None:
    x = np.float32([0.5, 2, -3])
    for n in (-5, -2, -1, 0, 1, 2, 3, 4, 5, 8, 9):
        np.testing.assert_allclose(np.asarray(jnp.power(x, n)), x**n, rtol=2e-6)
    np.testing.assert_allclose(np.asarray(jnp.power(3, x)), np.power(np.float32(3), x), rtol=2e-6)
    assert jnp.power(jnp.int32(3), 4).dtype == jnp.int32
    assert jnp.power(True, 3).dtype == jnp.int32
    assert int(jnp.power(jnp.int32(3), 40)) == 689956897
    assert np.isinf(jnp.power(1.5, 10**12))
    assert jnp.power(jnp.int8([2, 3]), np.int64(3)).dtype == jnp.int8
    for one in (-1, np.int8(-1)):
        with pytest.raises(
            TypeError, match=r"^Integers cannot be raised to negative powers, got integer_pow\(int32\[\], -1\)"
        ):
            jnp.power(jnp.int32(2), one)


@only_cpu
def test_rounding_to_decimals(platform: Platform) -> None:
    assert (
        jnp.round(jnp.float32([1.26, 2.5, -0.05]), 1).tolist() == np.round(np.float32([1.26, 2.5, -0.05]), 1).tolist()
    )
    assert jnp.round(jnp.int32(7), 2).tolist() == 7
    with pytest.raises(NotImplementedError, match="not implemented for decimals < 0"):
        jnp.round(jnp.int32(7), -1)


@only_cpu
def test_clip(platform: Platform) -> None:
    x = jnp.arange(5)
    assert jnp.clip(x, 1, 3).tolist() == [1, 1, 2, 3, 3]
    assert jnp.clip(x, max=2).tolist() == [0, 1, 2, 2, 2]
    assert jnp.clip(x, 2.5).dtype == jnp.float32
    assert jnp.clip(x).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"^Clip received a complex value"):
        jnp.clip(1j, 0)


@only_cpu
def test_closeness(platform: Platform) -> None:
    a, b = np.float32([1, 1, np.inf, np.nan, 1]), np.float32([1, 1.1, np.inf, np.nan, np.inf])
    for equal_nan in (False, True):
        expected = np.isclose(a, b, equal_nan=equal_nan)
        np.testing.assert_array_equal(np.asarray(jnp.isclose(a, b, equal_nan=equal_nan)), expected)
    assert bool(jnp.allclose(a[:1], b[:1]))
    assert not bool(jnp.allclose(a, b))


@only_cpu
def test_uint8_wraps(platform: Platform) -> None:
    assert int(jnp.uint8(200) + 100) == 44
    assert int(-jnp.uint8(1)) == 255


@only_cpu
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: jnp.add([1], 2), r"^add requires ndarray or scalar arguments, got <class 'list'> at position 0\."),
        (
            lambda: jnp.add(1, None),
            r"^add requires ndarray or scalar arguments, got <class 'NoneType'> at position 1",
        ),
        (lambda: jnp.sin((1,)), r"^sin requires ndarray or scalar arguments, got <class 'tuple'> at position 0\."),
        (lambda: jnp.subtract(True, True), r"^sub does not accept dtype bool at position 0\."),
        (lambda: jnp.negative(True), r"^neg does not accept dtype bool\."),
        (lambda: jnp.round(None), r"^round requires ndarray or scalar arguments, got <class 'NoneType'> at position 0"),
        (lambda: jnp.isclose(1, None), r"^isclose requires ndarray or scalar arguments, got <class 'NoneType'> at"),
        (lambda: jnp.round(2.5, 1.0), r"^'float' object cannot be interpreted as an integer"),
        (lambda: jnp.floor_divide(1j, 2), r"^floor_divide does not support complex-valued inputs"),
        (lambda: jnp.bitwise_and(1.0, 2), r"^and does not accept dtype float32 at position 0\."),
    ],
)
def test_operands_that_are_refused(call: object, text: str, platform: Platform) -> None:
    with pytest.raises(TypeError, match=text):
        call()
