from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra.numpy import array_shapes, basic_indices

import cuplace
import cuplace.numpy as jnp
from cuplace import errors
from cuplace.numpy import selection
from cuplace.placement.axes import AxisType
from cuplace.placement.spec import PartitionSpec as P
from cuplace.runtime.platform import Platform
from tests.numpy.places import counted, put, spec_of

only_cpu = pytest.mark.parametrize("platform", ["cpu"], indirect=True)
X = counted(4, 6, 3)


@only_cpu
@given(data=st.data())
@settings(max_examples=60)
def test_static_indices_have_numpy_s_values(data: st.DataObject, platform: Platform) -> None:
    values = counted(*data.draw(array_shapes(max_dims=3, max_side=4)))
    index = data.draw(basic_indices(values.shape, allow_newaxis=True))
    got = jnp.asarray(values)[index]
    np.testing.assert_array_equal(np.asarray(got), values[index])
    assert got.shape == values[index].shape


@only_cpu
def test_one_program_serves_for_all_integers(platform: Platform) -> None:
    x = jnp.asarray(X)
    x[0, :, 0], cuplace.jit(lambda x: x[1])(x)
    programs = selection._getitem.eager._staged.programs
    before = len(programs)
    for i in range(-4, 4):
        for j in range(3):
            np.testing.assert_array_equal(np.asarray(x[i, :, j]), X[i, :, j])
            np.testing.assert_array_equal(np.asarray(x[np.int64(i), ..., np.int8(j)]), X[i, :, j])
    assert len(programs) == before
    np.testing.assert_array_equal(np.asarray(cuplace.jit(lambda x: x[1, 2] + x[-1, 0])(x)), X[1, 2] + X[-1, 0])
    for bad in (4, -5):
        with pytest.raises(IndexError, match="out of bounds for axis 0 with size 4"):
            x[bad, :, 0]


@only_cpu
@pytest.mark.parametrize(
    "index",
    [
        np.int32([1, 0, -1]),
        (slice(None), np.int32([[1, 0], [2, 2]])),
        (slice(1, 3), slice(None, None, -1), np.int32([2])),
        (None, np.int32([1]), slice(2)),
        (..., np.int32([0, 2])),
        X[:, 0, 0] > 20,
        X > 20,
        (slice(None), X[0, :, 0] > 5),
        (slice(None), X[0] > 5),
        (..., X[0, 0] > 0),
        True,
        False,
        np.zeros(0, np.int32),
    ],
)
def test_one_array_of_positions_or_truths(index: object, platform: Platform) -> None:
    np.testing.assert_array_equal(np.asarray(jnp.asarray(X)[index]), X[index])


@only_cpu
def test_positions_that_are_arrays_are_clamped(platform: Platform) -> None:
    x = jnp.arange(8)
    assert x[jnp.array([1, -1, 20, -20])].tolist() == [1, 7, 7, 0]
    assert x[jnp.int32(3)].tolist() == 3
    assert x[1 : jnp.int32(3)].tolist() == [1, 2]
    assert x[np.int64(2)].tolist() == 2


@only_cpu
def test_take(platform: Platform) -> None:
    x = jnp.asarray(X)
    positions = np.int32([[1, 0], [-1, 2]])
    for axis in (0, 1, 2, -1):
        np.testing.assert_array_equal(np.asarray(jnp.take(x, positions, axis)), np.take(X, positions, axis))
    np.testing.assert_array_equal(np.asarray(x.take(positions)), np.take(X, positions))
    assert jnp.take(jnp.arange(3), np.int32([5])).tolist() == [-(2**31)]
    assert np.isnan(jnp.take(jnp.arange(3.0), np.int32([5, -5])).tolist()).all()
    assert jnp.take(jnp.arange(3), np.int32([5, -5]), mode="clip").tolist() == [2, 0]
    with pytest.raises(NotImplementedError, match="modes 'fill' and 'clip'"):
        jnp.take(x, 0, mode="wrap")
    with pytest.raises(TypeError, match="take requires integer indices"):
        jnp.take(x, 0.5)


@only_cpu
@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        (4, IndexError, "index 4 is out of bounds for axis 0 with size 4"),
        ((0, -7), IndexError, "index -7 is out of bounds for axis 1 with size 6"),
        ((0, 0, 0, 0), IndexError, "Too many indices: array is 3-dimensional, but 4 were indexed"),
        ((np.int32([0]), slice(None), slice(None), slice(None)), IndexError, "Too many indices"),
        (1.5, TypeError, "Indexer must have integer or boolean type, got indexer with type float64"),
        (np.float32([1]), TypeError, "Indexer must have integer or boolean type, got indexer with type float32"),
        ([1, 2], TypeError, "Using a non-tuple sequence for multidimensional indexing is not allowed"),
        ("a", TypeError, "JAX does not support string indexing; got idx='a'"),
        ((np.int32([0]), np.int32([0])), TypeError, "Indexing with several arrays"),
        ((0, np.int32([0])), TypeError, "Indexing with several arrays, or with an array and integers"),
        (slice(0.5), TypeError, "Slice entries must be static integers or None"),
    ],
)
def test_indices_that_are_refused(index: object, error: type, text: str, platform: Platform) -> None:
    with pytest.raises(error, match=text):
        jnp.asarray(X)[index]


def test_sharded_dimensions_must_be_taken_whole(platform: Platform) -> None:
    x = put(counted(4, 8), "x")
    assert spec_of(x[:, 2:4]) == P("x")
    assert spec_of(x[None, :, -1]) == P(None, "x")
    assert spec_of(x[::-1]) == P("x")
    np.testing.assert_array_equal(np.asarray(x[::-1, ::-2]), counted(4, 8)[::-1, ::-2])
    np.testing.assert_array_equal(np.asarray(x[:, np.int32([3, 1])]), counted(4, 8)[:, [3, 1]])
    for index in (0, slice(2), np.int32([1])):
        with pytest.raises(errors.ShardingTypeError, match="could not be resolved unambiguously"):
            x[index]
    alone = cuplace.device_put(counted(4, 8), cuplace.NamedSharding(cuplace.make_mesh((1,), ("x",)), P("x")))
    assert str(cuplace.typeof(alone[1:3])) == "float32[2@x,8]"
    assert str(cuplace.typeof(alone[1, 2:])) == "float32[6]"
    auto = put(counted(4, 8), "x", "y", kind=AxisType.Auto)
    np.testing.assert_array_equal(np.asarray(auto[1:3, 0]), counted(4, 8)[1:3, 0])


@only_cpu
def test_indexing_inside_jit(platform: Platform) -> None:
    assert cuplace.jit(lambda a, i: a[i] + a[1:2])(jnp.arange(4), 3).tolist() == [4]
    with pytest.raises(IndexError, match="Array boolean indices must be concrete"):
        cuplace.jit(lambda a: a[a > 1])(jnp.arange(4))
    with pytest.raises(IndexError, match="out of bounds"):
        cuplace.jit(lambda a: a[4])(jnp.arange(4))


def test_where(platform: Platform) -> None:
    x = put(counted(4, 8), "x", "y")
    np.testing.assert_array_equal(np.asarray(jnp.where(x > 9, x, 0)), np.where(counted(4, 8) > 9, counted(4, 8), 0))
    assert spec_of(jnp.where(x > 9, 1.0, x)) == P("x", "y")
    with pytest.raises(errors.ShardingTypeError, match="select cases must have the same shardings"):
        jnp.where(True, x, put(counted(4, 8), "x"))
    whole = put(counted(4, 8)) > 9
    assert spec_of(jnp.where(whole, 1.0, x)) == P("x", "y")  # operands that are broadcast are laid out alike first
    with pytest.raises(errors.ShardingTypeError, match="select `which` must be scalar or have the same sharding"):
        jnp.where(whole, x, x)
    with pytest.raises(ValueError, match=r"^Incompatible shapes for broadcasting: shapes=\[\(3,\), \(4,\), \(\)\]"):
        jnp.where(np.ones(3), np.ones(4, np.float32), 0)
    with pytest.raises(TypeError, match="where requires ndarray or scalar arguments, got <class 'NoneType'> at"):
        jnp.where(x > 9, x)
    with pytest.raises(TypeError, match="where requires ndarray or scalar arguments, got <class 'list'> at position 0"):
        jnp.where([True], 1, 2)


@only_cpu
def test_positions_of_truths(platform: Platform) -> None:
    mask = counted(3, 4) % 3 == 0
    for got in (jnp.nonzero(mask), jnp.where(jnp.asarray(mask))):
        assert [g.dtype for g in got] == [np.int32, np.int32]
        np.testing.assert_array_equal(np.stack([np.asarray(g) for g in got]), np.stack(np.nonzero(mask)))


def test_positions_of_truths_stay_with_a_committed_array(platform: Platform) -> None:
    x = put(counted(4, 8), "x")
    (rows, _) = jnp.nonzero(x > 20)
    assert rows.committed
    assert rows.sharding == cuplace.NamedSharding(x.sharding.mesh, P())
    (there,) = jnp.nonzero(cuplace.device_put(np.int8([0, 1]), platform.devices[3]))
    assert (there.devices(), there.committed) == ({platform.devices[3]}, True)
    with cuplace.set_mesh(x.sharding.mesh):
        assert jnp.nonzero(np.int8([0, 1]))[0].devices() == x.devices()


@only_cpu
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: x[np.ones(3, bool)], IndexError, r"^boolean index did not match .* 0: got \(3,\), expected \(4,\)"),
        (lambda x: x[1:, np.ones((6, 2), bool)], IndexError, r"index 1: got \(6, 2\), expected \(6, 3\)"),
        (lambda x: x[..., np.ones(4, bool)], IndexError, r"index 1: got \(4,\), expected \(3,\)"),
        (lambda x: x[None, np.ones(4, bool), 0:1, np.ones(3, bool)], TypeError, "several arrays"),
        (lambda x: x[{}], IndexError, r"^only integers, slices .* are valid indices\. Got \{\}"),
        (lambda x: x[set()], IndexError, r"^only integers, slices .* are valid indices\. Got set\(\)"),
        (lambda x: x[1.0], TypeError, "^Indexer must have integer or boolean type, got indexer with type float"),
        (lambda x: jnp.take(x, [0]), TypeError, "^take requires .* arguments, got <class 'list'> at pos"),
        (lambda x: jnp.take(None, 0), TypeError, "^take requires ndarray or scalar arguments, got <class 'NoneType'>"),
        (lambda x: jnp.take(x, 0, mode="wrap"), NotImplementedError, "The 'wrap' mode to jnp.take is not supported"),
        (lambda x: jnp.take(x, 0, mode="nonsense"), ValueError, "Invalid mode 'nonsense' for np.take"),
        (lambda x: jnp.nonzero([0, 1]), TypeError, "^nonzero requires ndarray or scalar arguments, got <class 'list'>"),
    ],
)  # fmt: skip
def test_masks_positions_and_modes_that_are_refused(call: object, error: type, text: str, platform: Platform) -> None:
    with pytest.raises(error, match=text):
        call(jnp.asarray(X))


@only_cpu
def test_masks_beside_other_items(platform: Platform) -> None:
    x, mask = jnp.asarray(X), X[0, :, 0] % 2 == 0
    for index in ((slice(None), mask), (None, slice(1, 3), mask), (..., mask, slice(None))):
        np.testing.assert_array_equal(np.asarray(x[index]), X[index])
    assert x[0, 0][True].shape == (1, 3)
