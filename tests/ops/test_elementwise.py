from __future__ import annotations

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from cuplace import errors
from cuplace.array.type import ArrayType
from cuplace.ops import elementwise as ops
from cuplace.ops.op import Op
from cuplace.ops.rule import infer
from cuplace.placement.abstract_mesh import AbstractMesh
from cuplace.placement.axes import AxisType
from cuplace.placement.spec import PartitionSpec as P
from tests.ops.shards import X2Y4, meshes, numbers, run, shapes, specs, typed, unplaced

RECORDS = [record for record in vars(ops).values() if isinstance(record, Op)]
UFUNCS = [record for record in RECORDS if record.ufunc is not None]
BINARY = (ops.ADD, ops.SUB, ops.MUL, ops.MAX, ops.MIN, ops.EQ, ops.LT)


@st.composite
def broadcastable(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that is broadcast to another."""
    kept = shape[draw(st.integers(0, len(shape))) :]
    return tuple(draw(st.sampled_from([1, size])) for size in kept)


@given(st.data())
def test_shards_give_the_whole(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    shape = data.draw(shapes())
    sizes = [data.draw(broadcastable(shape)), shape]
    op = data.draw(st.sampled_from(BINARY))
    arrays = [numbers(size, i) for i, size in enumerate(sizes)]
    outcome = run(op, arrays, [data.draw(specs(size, mesh)) for size in sizes], {}, mesh)
    np.testing.assert_array_equal(outcome.value, getattr(np, op.ufunc)(*arrays))


@given(st.data())
def test_select_on_shards(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    shape = data.draw(shapes())
    sizes = [data.draw(broadcastable(shape)), shape, data.draw(broadcastable(shape))]
    arrays = [numbers(sizes[0], 0, bool), numbers(sizes[1], 1), numbers(sizes[2], 2)]
    outcome = run(ops.SELECT, arrays, [data.draw(specs(size, mesh)) for size in sizes], {}, mesh)
    np.testing.assert_array_equal(outcome.value, np.where(*arrays))


@given(st.data())
def test_constants_of_an_array_s_shape_on_shards(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    shape = data.draw(shapes())
    like, value = numbers(shape), numbers(data.draw(broadcastable(shape)), 1, np.int8)
    outcome = run(ops.FULL_LIKE, [like, value], [data.draw(specs(a.shape, mesh)) for a in (like, value)], {}, mesh)
    np.testing.assert_array_equal(outcome.value, np.broadcast_to(value, shape))


@pytest.mark.parametrize("op", UFUNCS, ids=lambda op: op.name)
@pytest.mark.parametrize(
    "dtype", [bool, "int8", "uint16", "int32", "float16", "float32", "complex64", ml_dtypes.bfloat16]
)
def test_the_result_has_the_dtype_that_was_told(op: Op, dtype: object) -> None:
    of = ArrayType((3,), np.dtype(dtype))
    count = getattr(np, op.ufunc).nin
    try:
        out = op.infer((of,) * count, {})
    except errors.ArgumentTypeError:
        return
    with np.errstate(all="ignore"):
        made = op.compute(np, *[np.ones(3, dtype)] * count)
        written = np.empty(3, out.dtype)
        getattr(np, op.ufunc)(*[np.ones(3, dtype)] * count, out=written)
    assert (made.dtype, made.shape) == (out.dtype, out.shape)
    np.testing.assert_array_equal(written, made)


@pytest.mark.parametrize("op", RECORDS, ids=lambda op: op.name)
def test_every_record_is_elementwise_and_counts_its_work(op: Op) -> None:
    assert op.elementwise
    count = 3 if op is ops.SELECT else 2 if op is ops.FULL_LIKE or op.name in _BINARY_NAMES else 1
    of = (ArrayType((4, 2), np.dtype("float32")),) * count
    cost = op.cost(of, ops.OutType((4, 2), np.dtype("float32")), {})
    assert cost.flops >= 8
    assert cost.bytes == (count + 1) * 32


_BINARY_NAMES = {op.name for op in RECORDS if op.ufunc and getattr(np, op.ufunc).nin == 2}
_BINARY_NAMES |= {"floor_divide", "integer_pow"}


@pytest.mark.parametrize(
    ("op", "dtypes", "text"),
    [
        (ops.SUB, ["bool", "bool"], ("sub does not accept dtype bool at position 0. Accepted dtypes at position 0 are "
         "subtypes of integer, floating, complexfloating.")),
        (ops.NEG, ["bool"], ("neg does not accept dtype bool. Accepted dtypes are subtypes of integer, floating, "
         "complexfloating.")),
        (ops.SHIFT_LEFT, ["float32", "float32"], ("shift_left does not accept dtype float32 at position 0. Accepted "
         "dtypes at position 0 are subtypes of integer.")),
        (ops.NOT, ["float32"], "not does not accept dtype float32. Accepted dtypes are subtypes of integer, bool."),
    ],
)  # fmt: skip
def test_dtypes_are_refused_as_jax_does(op: Op, dtypes: list[str], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        op.infer(tuple(unplaced((2,), dtype) for dtype in dtypes), {})
    first, help_text = str(caught.value).splitlines()
    assert first == text
    assert "x.astype(dtype)" in help_text


def test_shapes_are_refused_as_jax_does() -> None:
    with pytest.raises(TypeError, match=r"^add got incompatible shapes for broadcasting: \(8,\), \(4,\)\.$"):
        ops.ADD.infer((unplaced((8,)), unplaced((4,))), {})
    with pytest.raises(ValueError, match=r"^Incompatible shapes for broadcasting: shapes=\[\(2, 3\), \(4,\)\]$"):
        ops.ADD.infer((unplaced((2, 3)), unplaced((4,))), {})


def test_results_are_weak_where_all_operands_are() -> None:
    weak, strong = (ArrayType((), np.dtype("float32"), w) for w in (True, False))
    assert ops.ADD.infer((weak, weak), {}).weak_type
    assert not ops.ADD.infer((weak, strong), {}).weak_type
    assert ops.LT.infer((weak, weak), {}).weak_type


def test_integers_are_divided_and_raised_as_jax_does() -> None:
    five, zero = np.int32([5, -5, 0]), np.zeros(3, np.int32)
    with np.errstate(all="ignore"):
        assert ops.FLOOR_DIVIDE.compute(np, five, zero).tolist() == [-2, -2, -1]
        assert ops.FLOOR_DIVIDE.compute(np, np.uint8([5, 0]), np.uint8([0, 0])).tolist() == [255, 255]
        assert ops.REM.compute(np, five, zero).tolist() == [0, 0, 0]
    assert ops.FLOOR_DIVIDE.compute(np, np.int32([7, -7]), np.int32([2, 2])).tolist() == [3, -4]
    assert ops.INTEGER_POW.compute(np, np.int32([2, 3]), np.int32([40, 40])).tolist() == [0, 689956897]
    assert ops.INTEGER_POW.compute(np, np.int32([2]), np.int32([-1])).tolist() == [1]


SHOWN = f"NamedSharding(mesh={X2Y4}, spec="


@pytest.mark.parametrize(
    ("operands", "text"),
    [
        (
            [unplaced((), bool), typed((4, 8), "x"), typed((4, 8), "x", "y")],
            f"select cases must have the same shardings, got [{SHOWN}P('x', 'y')), {SHOWN}P('x', None))].",
        ),
        (
            [typed((4, 8), dtype=bool), typed((4, 8), "x"), typed((4, 8), "x")],
            (
                "select `which` must be scalar or have the same sharding as cases, got `which` sharding "
                f"{SHOWN}P(None, None)) but case sharding {SHOWN}P('x', None))."
            ),
        ),
    ],
)
def test_select_merges_nothing(operands: list[ArrayType], text: str) -> None:
    with pytest.raises(errors.ShardingTypeError) as caught:
        infer(ops.SELECT, operands, {})
    first, help_text = str(caught.value).splitlines()
    assert first == text
    assert "= reshard(" in help_text


def test_select_lets_scalars_and_uncommitted_operands_follow() -> None:
    out, how = infer(ops.SELECT, [typed((4, 8), "x", dtype=bool), unplaced((4, 8)), unplaced(())], {})
    assert str(out) == "float32[4@x,8]"
    assert how.in_specs == (P("x", None), P("x", None), P())


def test_select_on_auto_axes_takes_the_first_layout() -> None:
    mesh = AbstractMesh((2, 4), ("x", "y"), (AxisType.Auto,) * 2)
    operands = [typed((8,), "x", mesh=mesh, dtype=bool), typed((8,), "y", mesh=mesh), typed((8,), None, mesh=mesh)]
    assert infer(ops.SELECT, operands, {})[0].spec == P("x")
