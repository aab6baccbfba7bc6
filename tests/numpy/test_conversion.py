from __future__ import annotations

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import errors
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import PartitionSpec as P
from cuplace.runtime.platform import Platform
from tests.numpy.places import counted, grid, put

only_cpu = pytest.mark.parametrize("platform", ["cpu"], indirect=True)


@only_cpu
@pytest.mark.parametrize(
    ("value", "dtype", "weak"),
    [
        (1, "int32", True), (1.0, "float32", True), (True, "bool", False), (1j, "complex64", True),
        ([1, 2], "int32", False), ([1, 2.5], "float32", False), ([1, True], "int32", False), ([], "float32", False),
        ([[1, 2], [3, 4]], "int32", False), ((1, 2), "int32", False), (range(3), "int32", False),
        (np.int8(3), "int8", False), (np.ones(2, np.float16), "float16", False), ([True], "bool", False),
        ([1, np.float16(2)], "float16", False), ([np.int8(1), np.uint8(2)], "int16", False),
        ([2**31 - 1], "int32", False),
        ([np.ones(2, np.float32), np.ones(2, np.float32)], "float32", False), ([1j, 2], "complex64", False),
    ],
)  # fmt: skip
def test_host_values(value: object, dtype: str, weak: bool, platform: Platform) -> None:
    for function in (jnp.array, jnp.asarray):
        got = function(value)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(value))
        assert (got.dtype.name, got.weak_type, got.committed) == (dtype, weak, False)


@only_cpu
def test_lists_of_arrays_are_stacked(platform: Platform) -> None:
    got = jnp.array([jnp.ones(2), [0, 1], jnp.arange(2)])
    assert (got.tolist(), got.dtype) == ([[1, 1], [0, 1], [0, 1]], np.float32)
    assert jnp.array([jnp.int8(1), jnp.float16(2)]).dtype == np.float16
    inside = cuplace.jit(lambda a: jnp.array([a, 2 * a, 3.0]))(1.0)
    assert inside.tolist() == [1, 2, 3]


@only_cpu
def test_numbers_of_ml_dtypes_in_lists(platform: Platform) -> None:
    small = jnp.bfloat16.dtype.type
    for value, dtype in (
        ([small(1), small(2)], "bfloat16"), ([small(1), 2.5], "bfloat16"), ([small(1), np.float32(2)], "float32"),
        ([np.ones(2, small), [1, 2]], "bfloat16"), ([[small(1)], [True]], "bfloat16"),
    ):  # fmt: skip
        got = jnp.array(value)
        assert (got.dtype.name, got.weak_type) == (dtype, False)
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.array(value, np.float32))


@only_cpu
def test_lists_of_weak_arrays_are_not_weak(platform: Platform) -> None:
    assert not jnp.array([jnp.asarray(1), 2.5]).weak_type
    assert not cuplace.jit(lambda a: jnp.array([a, 1.5]))(2.0).weak_type


@only_cpu
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: jnp.array([None, 1]), ValueError, "^None is not a valid value for jnp.array"),
        (lambda: jnp.array([1e10], "int32"), OverflowError, "out of bounds for int32"),
        (lambda: jnp.array([-1.5], "uint8"), OverflowError, "out of bounds for uint8"),
        (lambda: jnp.array([np.nan], "int32"), ValueError, "cannot convert float NaN to integer"),
        (lambda: jnp.asarray(np.ma.array([1, 2], mask=[0, 1])), ValueError, "^numpy masked arrays are not supported"),
    ],
)
def test_values_that_would_be_lost(call: object, error: type, text: str, platform: Platform) -> None:
    with pytest.raises(error, match=text):
        call()
    assert jnp.array(np.float32([np.nan, 1e10]), "int32").tolist() == [0, 2**31 - 1]


@only_cpu
def test_dtypes_that_are_asked_for(platform: Platform) -> None:
    assert jnp.array([1.7, 2], "int8").tolist() == [1, 2]
    assert jnp.array(3.7, int).tolist() == 3
    assert jnp.asarray(jnp.arange(2), dtype="float16").dtype == np.float16
    assert not jnp.asarray(3.0, dtype="float32").weak_type
    assert jnp.array(np.float64([1, 2]), dtype="float32").dtype == np.float32
    assert jnp.array([1 + 2j], "float32").tolist() == [1]
    assert jnp.array(1, ndmin=3).shape == (1, 1, 1)


@only_cpu
def test_64_bit_values_warn_once_for_each_line(platform: Platform) -> None:
    with pytest.warns(errors.NarrowingWarning, match="narrowed to float32"):
        assert jnp.asarray(np.ones(2)).dtype == np.float32
    with pytest.warns(errors.NarrowingWarning, match="narrowed to int32"):
        assert jnp.add(np.arange(2), 1).dtype == np.int32


@only_cpu
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: jnp.array(None), ValueError, "None is not a valid value for jnp.array"),
        (lambda: jnp.array("a"), TypeError, "Value 'a' with dtype <U1 is not a valid JAX array type"),
        (lambda: jnp.array(["a"]), TypeError, "is not a valid JAX array type"),
        (lambda: jnp.array(object()), TypeError, "with dtype object is not a valid JAX array type"),
        (lambda: jnp.array(np.array(["2020"], "datetime64[s]")), TypeError, "is not a valid JAX array type"),
        (lambda: jnp.array([[1, 2], [3]]), ValueError, "inhomogeneous shape"),
        (lambda: jnp.array(2**40), OverflowError, "Python int 1099511627776 too large to convert to int32"),
        (lambda: jnp.array([2**40]), OverflowError, "Python integer 1099511627776 out of bounds for int32"),
        (lambda: jnp.array([2**70]), (OverflowError, TypeError), "."),
        (lambda: jnp.array(300, "uint8"), OverflowError, "Python integer 300 out of bounds for uint8"),
        (lambda: jnp.asarray(np.int64([2**40])), OverflowError, "does not fit into int32"),
        (lambda: jnp.array(np.ones(2, ">f4")), TypeError, "is not a valid JAX array type"),
    ],
)
def test_values_that_are_refused(call: object, error: type, text: str, platform: Platform) -> None:
    with pytest.raises(error, match=text):
        call()


def test_arrays_stay_where_they_are(platform: Platform) -> None:
    x = put(counted(4, 8), "x", "y")
    assert jnp.asarray(x) is x
    copied = jnp.array(x)
    assert copied is not x
    assert copied.sharding.is_equivalent_to(x.sharding, 2)
    cast = jnp.asarray(x, "int8")
    assert cast.sharding.is_equivalent_to(x.sharding, 2)
    with pytest.raises(ValueError, match="Received incompatible devices for jitted computation"):
        jnp.asarray(x, device=cuplace.devices()[2])


def test_uncommitted_arrays_can_be_placed(platform: Platform) -> None:
    device = cuplace.devices()[2]
    assert jnp.asarray(jnp.arange(4), device=device).devices() == {device}
    sharding = NamedSharding(grid(), P("y"))
    for value in (jnp.arange(4), [0, 1, 2, 3], [jnp.int32(0), 1, 2, 3]):
        placed = jnp.array(value, device=sharding)
        assert placed.sharding.is_equivalent_to(sharding, 1)
        assert placed.tolist() == [0, 1, 2, 3]


def test_values_are_as_of_the_call(platform: Platform) -> None:
    values = counted(64)
    made = [jnp.asarray(values), jnp.array(values), jnp.add(values, 0)]
    values[:] = -1
    for got in made:
        np.testing.assert_array_equal(np.asarray(got), counted(64))
