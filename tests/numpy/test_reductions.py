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
X = counted(4, 6) % 7 - 2.0

MANY = ["sum", "prod", "mean", "var", "std", "max", "min", "amax", "amin", "any", "all"]


@only_cpu
@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1), (), [1]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_have_numpy_s_values(name: str, axis: object, keepdims: bool, platform: Platform) -> None:
    numpys = tuple(axis) if isinstance(axis, list) else axis
    truth = getattr(np, name)(X, axis=numpys, keepdims=keepdims)
    got = getattr(jnp, name)(X, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(np.asarray(got), truth, rtol=1e-5)


@pytest.mark.parametrize("name", [*MANY, "argmax", "argmin", "cumsum", "cumprod"])
def test_sharded_arrays_are_reduced_shard_by_shard(name: str, platform: Platform) -> None:
    values = counted(8, 8) % 5 - 1
    for axis in (0, 1):
        truth = getattr(np, name)(values, axis=axis)
        got = getattr(jnp, name)(put(values, "x", "y", kind=AxisType.Auto), axis=axis)
        np.testing.assert_allclose(np.asarray(got), truth, rtol=1e-5)
        explicit = getattr(jnp, name)(put(values, *(["y", None] if axis else [None, "y"])), axis=axis)
        np.testing.assert_allclose(np.asarray(explicit), truth, rtol=1e-5)
        assert "y" in spec_of(explicit).axes


def test_reduced_dimensions_drop_out(platform: Platform) -> None:
    x = put(counted(4, 8), "x", "y")
    assert spec_of(jnp.sum(x, axis=0)) == P("y")
    assert spec_of(jnp.mean(x, axis=1, keepdims=True)) == P("x")
    assert spec_of(jnp.max(x)) == P()
    assert float(jnp.sum(x)) == counted(4, 8).sum()


@only_cpu
def test_dtypes_and_exactness(platform: Platform) -> None:
    assert jnp.sum(jnp.int8([100, 100])).tolist() == 200
    assert jnp.mean(jnp.int8([100, 101])).tolist() == 100.5
    assert jnp.sum(jnp.full(4096, 0.5, jnp.bfloat16)).tolist() == 2048.0
    assert jnp.mean(jnp.full(100000, 1.0, jnp.float16)).tolist() == 1.0
    assert jnp.cumsum(jnp.full(1000, 0.5, jnp.bfloat16))[-1].tolist() == 500.0
    assert jnp.sum(jnp.float32([1.5, 2]), dtype="int32").tolist() == 3
    assert jnp.var(np.complex64([1 + 1j, 3])).tolist() == pytest.approx(np.var([1 + 1j, 3]))


@only_cpu
def test_masks_and_initial_values(platform: Platform) -> None:
    mask = X > 0
    for name, identity in (("sum", 0), ("prod", 1)):
        truth = getattr(np, name)(X, axis=0, initial=3, where=mask)
        np.testing.assert_allclose(np.asarray(getattr(jnp, name)(X, axis=0, initial=3, where=mask)), truth, rtol=1e-5)
        assert float(getattr(jnp, name)(X, where=False)) == identity
    for name in ("max", "min"):
        truth = getattr(np, name)(X, axis=1, initial=-1, where=mask)
        np.testing.assert_array_equal(np.asarray(getattr(jnp, name)(X, axis=1, initial=-1, where=mask)), truth)
        assert float(getattr(jnp, name)(np.zeros((0,), np.float32), initial=3)) == 3
        with pytest.raises(ValueError, match="does not have an identity"):
            getattr(jnp, name)(X, where=mask)
    for name in ("mean", "var", "std", "any", "all"):
        truth = getattr(np, name)(X, axis=1, where=mask | True)
        np.testing.assert_allclose(np.asarray(getattr(jnp, name)(X, axis=1, where=mask | True)), truth, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(jnp.mean(X, where=mask)), X[mask].mean(), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(jnp.var(X, ddof=1)), X.var(ddof=1), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(jnp.std(X, correction=2)), X.std(ddof=2), rtol=1e-6)


@only_cpu
def test_positions(platform: Platform) -> None:
    for name in ("argmax", "argmin"):
        for keepdims in (False, True):
            for axis in (None, 0, 1):
                truth = getattr(np, name)(X, axis=axis, keepdims=keepdims)
                got = getattr(jnp, name)(X, axis=axis, keepdims=keepdims)
                np.testing.assert_array_equal(np.asarray(got), truth)
                assert got.dtype == jnp.int32
    assert int(jnp.argmax(np.float32([1, np.nan, 3]))) == 1


@only_cpu
def test_along_an_axis(platform: Platform) -> None:
    for axis in (None, 0, 1, -1):
        for name in ("cumsum", "cumprod", "sort"):
            truth = getattr(np, name)(X, axis=axis)
            np.testing.assert_allclose(np.asarray(getattr(jnp, name)(X, axis=axis)), truth, rtol=1e-5)
        np.testing.assert_array_equal(np.asarray(jnp.argsort(X, axis=axis)), np.argsort(X, axis=axis, kind="stable"))


@only_cpu
def test_nothing(platform: Platform) -> None:
    nothing = np.zeros((0, 3), np.float32)
    assert float(jnp.sum(nothing)) == 0
    assert jnp.sum(nothing, axis=0).tolist() == [0, 0, 0]
    assert np.isnan(float(jnp.mean(nothing)))
    with pytest.raises(ValueError, match="zero-size array to reduction operation max which has no identity"):
        jnp.max(nothing)
    with pytest.raises(ValueError, match="attempt to get argmax of an empty sequence"):
        jnp.argmax(nothing)


@only_cpu
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: jnp.sum(X, axis=2), ValueError, "axis 2 is out of bounds for array of dimension 2"),
        (lambda: jnp.sum(X, axis=(0, 0)), ValueError, r"duplicate value in 'axis': \(0, 0\)"),
        (lambda: jnp.sum([1]), TypeError, "sum requires ndarray or scalar arguments, got <class 'list'> at position 0"),
        (lambda: jnp.sum(None), TypeError, "sum requires ndarray or scalar arguments, got <class 'NoneType'>"),
        (lambda: jnp.sum(X, out=X), NotImplementedError, "The 'out' argument to jnp.sum is not supported"),
        (lambda: jnp.std(X, dtype="int8"), ValueError, "^dtype argument to jnp.std must be inexact; got int8"),
        (lambda: jnp.var(X, dtype=bool), ValueError, "^dtype argument to jnp.var must be inexact; got bool"),
        (lambda: jnp.sort(X, kind="stable"), NotImplementedError, "takes neither 'kind' nor 'order'"),
        (lambda: jnp.cumsum(X, axis=3), ValueError, "axis 3 is out of bounds for array of dimension 2"),
    ],
)
def test_arguments_that_are_refused(call: object, error: type, text: str, platform: Platform) -> None:
    with pytest.raises(error, match=text):
        call()


@only_cpu
def test_sharded_axes_that_must_be_whole(platform: Platform) -> None:
    x = put(counted(4, 8), "x")
    with pytest.raises(errors.ShardingTypeError, match="Input should be unsharded over the axis being reduced"):
        jnp.cumsum(x, axis=0)
    with pytest.raises(errors.ShardingTypeError, match=r"The input should be fully replicated when axis is"):
        jnp.cumsum(x)
    with pytest.raises(errors.ShardingTypeError, match="Arguments to sort must be unsharded over"):
        jnp.sort(x, axis=0)


@only_cpu
def test_equality_of_arrays(platform: Platform) -> None:
    assert bool(jnp.array_equal(jnp.arange(3), np.float32([0, 1, 2])))
    assert not bool(jnp.array_equal(jnp.arange(3), jnp.arange(4)))
    assert not bool(jnp.array_equal(jnp.arange(3), 1))
    nan = np.float32([np.nan, 1])
    assert not bool(jnp.array_equal(nan, nan))
    assert bool(jnp.array_equal(nan, nan, equal_nan=True))
    assert bool(jnp.array_equal(jnp.arange(3), jnp.arange(3), equal_nan=True))


@only_cpu
def test_means_in_an_integer_type_lose_their_fraction(platform: Platform) -> None:
    x = np.int8([[100, 100, 3], [4, -5, 6]])
    for axis in (None, 0, 1):
        truth = np.mean(x, axis=axis, dtype=np.int8)
        np.testing.assert_array_equal(np.asarray(jnp.mean(x, axis=axis, dtype="int8")), truth)
    assert int(jnp.mean(np.float32([-1.5, -2.5, 0.9]), dtype="int32")) == -1
    assert int(jnp.mean(np.uint8([200, 100]), dtype="uint8")) == 22


@only_cpu
@pytest.mark.parametrize("axis", [0, 1, None])
def test_descending_order(axis: int | None, platform: Platform) -> None:
    x = np.float32([[2, 1, 2, np.nan], [3, 3, 0, -1]])
    along = 0 if axis is None else axis
    flat = x.reshape(-1) if axis is None else x
    np.testing.assert_array_equal(
        np.asarray(jnp.sort(x, axis, descending=True)), np.flip(np.sort(flat, axis=along), along)
    )
    order = jnp.argsort(x, axis, descending=True, stable=True, dtype="int16")
    assert order.dtype == np.int16
    np.testing.assert_array_equal(
        np.asarray(order), np.argsort(np.where(np.isnan(flat), -np.inf, -flat), axis=along, kind="stable")
    )


@only_cpu
def test_running_sums_of_a_scalar(platform: Platform) -> None:
    for axis in (None, 0, -1):
        assert jnp.cumsum(2.5, axis).tolist() == [2.5]


@only_cpu
def test_reductions_inside_jit(platform: Platform) -> None:
    f = cuplace.jit(lambda a: (a - jnp.mean(a, axis=1, keepdims=True)) / jnp.std(a, axis=1, keepdims=True))
    values = counted(4, 8) % 5
    truth = (values - values.mean(1, keepdims=True)) / values.std(1, keepdims=True)
    np.testing.assert_allclose(np.asarray(f(put(values, "x", "y"))), truth, rtol=1e-5)
