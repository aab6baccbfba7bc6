from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import basic_indices

from cuplace import errors
from cuplace.ops.indexing import (
    FULL,
    GETITEM,
    GIVEN,
    REVERSED,
    TAKE,
    Span,
    integers_apart,
    normalize_index,
)
from cuplace.ops.rule import infer
from cuplace.placement.spec import PartitionSpec as P
from tests.ops.shards import meshes, numbers, run, shapes, specs, typed, unplaced


@given(st.data())
def test_parts_of_shards(data: st.DataObject) -> None:
    mesh, shape = data.draw(meshes()), data.draw(shapes())
    index = data.draw(basic_indices(shape, allow_newaxis=True))
    x = numbers(shape)
    params = {"index": normalize_index(index, shape)}
    of = data.draw(specs(shape, mesh))
    outcome = run(GETITEM, [x], [of], params, mesh)
    np.testing.assert_array_equal(outcome.value, x[index])
    shared, integers = integers_apart(params["index"])
    operands = [x, *map(np.int32, integers)]
    again = run(GETITEM, operands, [of, *[P()] * len(integers)], {"index": shared}, mesh)
    np.testing.assert_array_equal(again.value, x[index])
    assert again.resolution.out_spec == outcome.resolution.out_spec


@given(st.data())
def test_elements_of_shards(data: st.DataObject) -> None:
    mesh, shape = data.draw(meshes()), data.draw(shapes(1))
    axis = data.draw(st.integers(0, len(shape) - 1))
    positions = numbers(data.draw(shapes(0, 2)), 7, np.int32)
    x, fill = numbers(shape), data.draw(st.booleans())
    of = [data.draw(specs(a.shape, mesh)) for a in (x, positions)]
    outcome = run(TAKE, [x, positions], of, {"axis": axis, "fill": fill}, mesh)
    n = shape[axis]
    inside = (positions >= -n) & (positions < n)
    taken = np.take(x, np.where(positions < 0, np.maximum(positions + n, 0), np.minimum(positions, n - 1)), axis)
    mask = inside.reshape(positions.shape + (1,) * (len(shape) - axis - 1))
    np.testing.assert_array_equal(outcome.value, np.where(mask, taken, np.nan) if fill else taken)


@pytest.mark.parametrize(
    ("dtype", "filler"),
    [("int8", -128), ("uint8", 255), ("int32", -(2**31)), (bool, True), ("float16", np.nan)],
)
def test_what_stands_for_missing_elements(dtype: object, filler: object) -> None:
    made = TAKE.compute(np, np.zeros(2, dtype), np.int32([9]), axis=0, fill=True)
    np.testing.assert_array_equal(made, np.array([filler], dtype))
    assert made.dtype == np.dtype(dtype)


def test_the_normal_form_of_an_index() -> None:
    assert normalize_index(-1, (4, 8)) == (3, FULL)
    assert normalize_index((slice(0, 4), slice(None, None, -1)), (4, 8)) == (FULL, REVERSED)
    assert normalize_index((None, ..., slice(6, 1, -2)), (8,)) == (None, Span(6, 1, -2))
    assert normalize_index((..., slice(3, None, -1)), (8,)) == (Span(3, None, -1),)
    assert normalize_index(slice(5, 2), (8,)) == (Span(0, 0, 1),)
    assert normalize_index(np.int64(2), (4,)) == (2,)


def test_few_and_small_integers_are_operands() -> None:
    assert integers_apart((1, None, FULL, 2, 3, 4)) == ((GIVEN, None, FULL, GIVEN, GIVEN, 4), [1, 2, 3])
    assert integers_apart((2**31, 2**31 - 1)) == ((2**31, GIVEN), [2**31 - 1])
    assert integers_apart((FULL, Span(0, 2, 1))) == ((FULL, Span(0, 2, 1)), [])


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        (8, IndexError, "index 8 is out of bounds for axis 0 with size 8"),
        (-9, IndexError, "index -9 is out of bounds for axis 0 with size 8"),
        ((0, 0), IndexError, "Too many indices: array is 1-dimensional, but 2 were indexed"),
        ((..., ...), IndexError, "an index can only have a single ellipsis ('...')"),
        (1.5, TypeError, "Indexer must have integer or boolean type, got indexer with type float64"),
        (slice(1.5), TypeError, "Slice entries must be static integers or None, got slice(None, 1.5, None)."),
    ],
)
def test_indices_that_are_refused(index: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        normalize_index(index, (8,))
    assert str(caught.value).splitlines()[0] == text


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ((slice(None), 0), "float32[4@x]"),
        ((slice(None), slice(2, 4)), "float32[4@x,2]"),
        ((slice(None), slice(None, None, -1)), "float32[4@x,8]"),
        (slice(None, None, -1), "float32[4@x,8]"),
        (None, "float32[1,4@x,8]"),
        ((..., None, 3), "float32[4@x,1]"),
        ((slice(None), slice(5, 1, -2)), "float32[4@x,2]"),
    ],
)
def test_whole_dimensions_keep_their_axes(index: object, expected: str) -> None:
    x = typed((4, 8), "x")
    assert str(infer(GETITEM, [x], {"index": normalize_index(index, x.shape)})[0]) == expected


@pytest.mark.parametrize(
    ("index", "indices"),
    [
        (0, "int32[1]"),
        (-1, "int32[1]"),
        (slice(2), "int32[1]"),
        (slice(None, None, 2), "int32[2,1]"),
        ((0, 0), "int32[2]"),
    ],
)
def test_parts_of_a_sharded_dimension_are_refused_as_jax_does(index: object, indices: str) -> None:
    x = typed((4, 8), "x")
    with pytest.raises(errors.ShardingTypeError) as caught:
        infer(GETITEM, [x], {"index": normalize_index(index, x.shape)})
    assert str(caught.value).splitlines()[0] == (
        "Use `.at[...].get(out_sharding=)` to provide output PartitionSpec for the gather indexing as out sharding "
        "could not be resolved unambiguously (or would require collectives on inputs). "
        f"Got operand=ShapedArray(float32[4@x,8]), indices=ShapedArray({indices})"
    )


def test_positions_must_be_whole_too() -> None:
    positions = typed((4,), "x", dtype=np.int32)
    with pytest.raises(errors.ShardingTypeError, match="could not be resolved unambiguously"):
        infer(TAKE, [typed((4, 8)), positions], {"axis": 0, "fill": False})
    out, _ = infer(TAKE, [typed((4, 8), "x"), unplaced((3,), np.int32)], {"axis": 1, "fill": False})
    assert str(out) == "float32[4@x,3]"


def test_nothing_can_be_taken_from_nothing() -> None:
    with pytest.raises(IndexError, match="cannot do a non-empty take from an empty axes"):
        TAKE.infer((unplaced((0,)), unplaced((1,), np.int32)), {"axis": 0, "fill": False})
