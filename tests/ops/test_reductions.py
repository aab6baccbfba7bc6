from __future__ import annotations

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from cuplace import errors
from cuplace.array.type import ArrayType
from cuplace.ops import reductions as ops
from cuplace.ops.op import Op
from cuplace.ops.rule import infer
from cuplace.placement.spec import PartitionSpec as P
from tests.ops.shards import X2Y4, meshes, numbers, run, shapes, specs, typed, unplaced

NUMERIC = {ops.REDUCE_SUM: np.sum, ops.REDUCE_PROD: np.prod, ops.REDUCE_MAX: np.max, ops.REDUCE_MIN: np.min}
LOGICAL = {ops.REDUCE_AND: np.all, ops.REDUCE_OR: np.any}


@pytest.mark.parametrize("op", [*NUMERIC, *LOGICAL], ids=lambda op: op.name)
@given(data=st.data(), keepdims=st.booleans())
def test_partial_results_combine_to_the_whole(op: Op, data: st.DataObject, keepdims: bool) -> None:
    mesh = data.draw(meshes())
    shape = data.draw(shapes())
    axes = tuple(i for i in range(len(shape)) if data.draw(st.booleans()))
    x = numbers(shape, 3, np.int32 if op in NUMERIC else bool)
    params = {"axes": axes, "keepdims": keepdims}
    outcome = run(op, [x], [data.draw(specs(shape, mesh))], params, mesh)
    truth = (NUMERIC | LOGICAL)[op](x, axis=axes, keepdims=keepdims)
    np.testing.assert_array_equal(outcome.value, np.asarray(truth).astype(x.dtype))


@pytest.mark.parametrize(("op", "truth"), [(ops.ARGMAX, np.argmax), (ops.ARGMIN, np.argmin)])
@given(data=st.data())
def test_positions_of_extremes(op: Op, truth: object, data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    shape = data.draw(shapes(1))
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = numbers(shape, 4)
    outcome = run(op, [x], [data.draw(specs(shape, mesh))], {"axis": axis, "dtype": np.dtype("int32")}, mesh)
    np.testing.assert_array_equal(outcome.value, truth(x, axis=axis))


ALONG = [(ops.CUMSUM, np.cumsum), (ops.CUMPROD, np.cumprod), (ops.SORT, np.sort)]


@pytest.mark.parametrize(("op", "truth"), ALONG, ids=lambda x: getattr(x, "name", ""))
@given(data=st.data())
def test_operations_along_an_axis_have_it_whole(op: Op, truth: object, data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    shape = data.draw(shapes(1, 2))
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = np.where(numbers(shape, 5) > 0, 1, -1).astype(np.int32)
    outcome = run(op, [x], [data.draw(specs(shape, mesh))], {"axis": axis}, mesh)
    np.testing.assert_array_equal(outcome.value, truth(x, axis=axis))


def test_positions_that_sort() -> None:
    x = np.float32([[2, np.nan, 1], [0, 0, -1]])
    found = ops.ARGSORT.compute(np, x, axis=1, dtype=np.dtype("int32"))
    assert (found.tolist(), found.dtype) == ([[2, 0, 1], [2, 0, 1]], np.dtype("int32"))


def test_dtypes_stay() -> None:
    for dtype in ("int8", "uint8", "float16", ml_dtypes.bfloat16, "complex64"):
        x = np.ones((2, 2), dtype)
        assert ops.REDUCE_SUM.compute(np, x, axes=(0,), keepdims=False).dtype == x.dtype
        assert ops.CUMSUM.compute(np, x, axis=0).dtype == x.dtype


def test_explicit_axes_drop_out_where_they_are_reduced() -> None:
    x = typed((4, 8), "x", "y")
    assert str(infer(ops.REDUCE_SUM, [x], {"axes": (0,), "keepdims": False})[0]) == "float32[8@y]"
    assert str(infer(ops.REDUCE_MAX, [x], {"axes": (0,), "keepdims": True})[0]) == "float32[1,8@y]"
    assert str(infer(ops.ARGMAX, [x], {"axis": 1, "dtype": np.dtype("int32")})[0]) == "int32[4@x]"
    assert str(infer(ops.CUMSUM, [typed((4, 8), "x")], {"axis": 1})[0]) == "float32[4@x,8]"


def test_positions_of_extremes_gather_their_axis() -> None:
    _, how = infer(ops.ARGMAX, [typed((4, 8), "x", "y")], {"axis": 1, "dtype": np.dtype("int32")})
    assert (how.in_specs, how.partial_axes) == ((P("x", None),), ())


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (ops.CUMSUM, ("Input should be unsharded over the axis being reduced. Got input type=float32[4@x,8@y] and "
         "axis=0")),
        (ops.SORT, ("Arguments to sort must be unsharded over the sorting dimension. Got arg sharding=NamedSharding("
         f"mesh={X2Y4}, spec=P('x', 'y')) and sorting dimension=0")),
    ],
)  # fmt: skip
def test_a_sharded_axis_is_refused_as_jax_does(op: Op, text: str) -> None:
    with pytest.raises(errors.ShardingTypeError) as caught:
        infer(op, [typed((4, 8), "x", "y")], {"axis": 0})
    assert str(caught.value).splitlines()[0] == text


def test_nothing_has_no_extreme() -> None:
    nothing = unplaced((0, 2))
    with pytest.raises(ValueError, match=r"^zero-size array to reduction operation max which has no identity$"):
        ops.REDUCE_MAX.infer((nothing,), {"axes": (0,), "keepdims": False})
    with pytest.raises(ValueError, match=r"^attempt to get argmin of an empty sequence$"):
        ops.ARGMIN.infer((nothing,), {"axis": 0, "dtype": np.dtype("int32")})
    assert ops.REDUCE_MAX.infer((nothing,), {"axes": (1,), "keepdims": False}).shape == (0,)


def test_weak_operands_give_weak_results() -> None:
    weak = ArrayType((2,), np.dtype("float32"), True)
    assert ops.REDUCE_SUM.infer((weak,), {"axes": (0,), "keepdims": False}).weak_type
