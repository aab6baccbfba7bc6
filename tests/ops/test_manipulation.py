from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from cuplace import errors
from cuplace.array.type import ArrayType
from cuplace.ops import manipulation as ops
from cuplace.ops.op import Op
from cuplace.ops.rule import infer, resolve
from cuplace.placement.abstract_mesh import AbstractMesh
from cuplace.placement.axes import AxisType
from cuplace.placement.spec import PartitionSpec as P
from tests.ops.shards import SIZES, X2Y4, meshes, numbers, run, shapes, specs, typed, unplaced


@given(st.data())
def test_transposed_shards(data: st.DataObject) -> None:
    mesh, shape = data.draw(meshes()), data.draw(shapes())
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    x = numbers(shape)
    outcome = run(ops.TRANSPOSE, [x], [data.draw(specs(shape, mesh))], {"permutation": order}, mesh)
    np.testing.assert_array_equal(outcome.value, x.transpose(order))


@given(st.data())
def test_broadcast_shards(data: st.DataObject) -> None:
    mesh, shape = data.draw(meshes()), data.draw(shapes())
    kept = shape[data.draw(st.integers(0, len(shape))) :]
    x = numbers([data.draw(st.sampled_from([1, n])) for n in kept])
    wanted = data.draw(st.none() | specs(shape, mesh))
    outcome = run(ops.BROADCAST, [x], [data.draw(specs(x.shape, mesh))], {"shape": shape}, mesh, wanted)
    np.testing.assert_array_equal(outcome.value, np.broadcast_to(x, shape))


@given(st.data())
def test_concatenated_shards(data: st.DataObject) -> None:
    mesh, shape = data.draw(meshes()), data.draw(shapes(1, 2))
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = data.draw(st.lists(SIZES, min_size=1, max_size=3))
    arrays = [numbers((*shape[:axis], n, *shape[axis + 1 :]), i) for i, n in enumerate(sizes)]
    of = [data.draw(specs(a.shape, mesh)) for a in arrays]
    outcome = run(ops.CONCATENATE, arrays, of, {"axis": axis}, mesh)
    np.testing.assert_array_equal(outcome.value, np.concatenate(arrays, axis))


@given(st.data())
def test_stacked_shards(data: st.DataObject) -> None:
    mesh, shape = data.draw(meshes()), data.draw(shapes(0, 2))
    axis = data.draw(st.integers(0, len(shape)))
    arrays = [numbers(shape, i) for i in range(data.draw(st.integers(1, 3)))]
    of = [data.draw(specs(shape, mesh)) for _ in arrays]
    outcome = run(ops.STACK, arrays, of, {"axis": axis}, mesh)
    np.testing.assert_array_equal(outcome.value, np.stack(arrays, axis))


@given(st.data())
def test_reversed_shards(data: st.DataObject) -> None:
    mesh, shape = data.draw(meshes()), data.draw(shapes())
    axes = tuple(i for i in range(len(shape)) if data.draw(st.booleans()))
    x, spec = numbers(shape), data.draw(specs(shape, mesh))
    outcome = run(ops.REVERSE, [x], [spec], {"axes": axes}, mesh)
    np.testing.assert_array_equal(outcome.value, np.flip(x, axes))
    assert outcome.resolution.out_spec == spec


@given(st.data())
def test_split_shards(data: st.DataObject) -> None:
    mesh, shape = data.draw(meshes()), data.draw(shapes(1))
    axis = data.draw(st.integers(0, len(shape) - 1))
    start = data.draw(st.integers(0, shape[axis]))
    stop = data.draw(st.integers(start, shape[axis]))
    x = numbers(shape)
    params = {"axis": axis, "start": start, "stop": stop}
    outcome = run(ops.SPLIT_PART, [x], [data.draw(specs(shape, mesh))], params, mesh)
    np.testing.assert_array_equal(outcome.value, x.take(range(start, stop), axis))


@pytest.mark.parametrize(
    ("op", "operands", "params", "expected"),
    [
        (ops.TRANSPOSE, [typed((4, 8), "x", "y")], {"permutation": (1, 0)}, "float32[8@y,4@x]"),
        (ops.BROADCAST, [typed((4, 8), "x", "y")], {"shape": (2, 4, 8)}, "float32[2,4@x,8@y]"),
        (ops.BROADCAST, [typed((1, 8), None, "y")], {"shape": (4, 8)}, "float32[4,8@y]"),
        (ops.CONCATENATE, [typed((4, 8), "x")] * 2, {"axis": 0}, "float32[8@x,8]"),
        (ops.CONCATENATE, [unplaced((4, 8)), typed((4, 8), "x")], {"axis": 0}, "float32[8@x,8]"),
        (ops.STACK, [typed((4, 8), "x")] * 2, {"axis": 1}, "float32[4@x,2,8]"),
        (ops.REVERSE, [typed((4, 8), "x")], {"axes": (0, 1)}, "float32[4@x,8]"),
        (ops.SPLIT_PART, [typed((4, 8), "x", "y")], {"axis": 1, "start": 4, "stop": 8}, "float32[4@x,4@y]"),
    ],
)
def test_explicit_specs_follow_as_in_jax(op: Op, operands: list[ArrayType], params: dict, expected: str) -> None:
    assert str(infer(op, operands, params)[0]) == expected


@pytest.mark.parametrize("op", [ops.CONCATENATE, ops.STACK])
def test_joined_arrays_must_be_sharded_alike(op: Op) -> None:
    with pytest.raises(errors.ShardingTypeError) as caught:
        infer(op, [typed((4, 8), "x"), typed((4, 8), "x", "y"), unplaced((4, 8))], {"axis": 0})
    first, help_text = str(caught.value).splitlines()
    assert "y = reshard(y, x.sharding)" in help_text
    assert first == (
        "All operands should have the same sharding. Got shardings "
        f"NamedSharding(mesh={X2Y4}, spec=P('x', None)), NamedSharding(mesh={X2Y4}, spec=P('x', 'y'))"
    )


def test_a_split_that_cuts_through_shards_is_refused() -> None:
    with pytest.raises(errors.ShardingTypeError, match=r"out dim \(2\) is not divisible"):
        infer(ops.SPLIT_PART, [typed((4, 8), "x", "y")], {"axis": 1, "start": 0, "stop": 2})
    with pytest.raises(errors.ShardingTypeError) as caught:
        infer(ops.SPLIT_PART, [typed((4, 8), "x", "y")], {"axis": 1, "start": 0, "stop": 2})
    assert str(caught.value).splitlines()[0] == (
        "split on sharded dims where out dim (2) is not divisible by mesh axes (4) with spec (y) is not implemented. "
        "Got input type=f32[4@x,8@y] and output shape=(4, 2)"
    )


def test_joined_shards_that_do_not_divide_are_refused() -> None:
    with pytest.raises(errors.ShardingTypeError, match=r"sharded over \('y',\), makes 10 elements, which"):
        infer(ops.CONCATENATE, [typed((8, 8), "y"), unplaced((2, 8))], {"axis": 0})


def test_joining_along_a_sharded_dimension_gathers_it_and_shards_the_result() -> None:
    _, how = infer(ops.CONCATENATE, [typed((4, 8), "x")] * 2, {"axis": 0})
    assert (how.in_specs, how.local_spec, how.out_spec) == ((P(None, None),) * 2, P(None, None), P("x", None))


def test_new_dimensions_of_a_broadcast_are_made_where_they_are_wanted() -> None:
    x = unplaced(())
    how = resolve(ops.BROADCAST, [x], [x.spec], {"shape": (4, 8)}, X2Y4, P("x", "y"))
    assert how.local_spec == P("x", "y")


def test_on_auto_axes_joined_arrays_take_the_first_layout() -> None:
    auto = AbstractMesh((2, 4), ("x", "y"), (AxisType.Auto,) * 2)
    out, _ = infer(ops.STACK, [typed((8,), "x", mesh=auto), typed((8,), "y", mesh=auto)], {"axis": 0})
    assert out.spec == P(None, "x")


@pytest.mark.parametrize(
    ("op", "operands", "params", "error", "text"),
    [
        (ops.TRANSPOSE, [(2, 3)], {"permutation": (0, 0)}, TypeError, ("transpose permutation isn't a permutation of "
         "operand dimensions, got permutation (0, 0) for operand shape (2, 3).")),
        (ops.BROADCAST, [(3,)], {"shape": (4,)}, ValueError, ("Incompatible types for broadcasting: input "
         "type=float32[3] and requested type=float32[4]")),
        (ops.BROADCAST, [(2, 3)], {"shape": (3,)}, ValueError, ("Cannot broadcast to shape with fewer dimensions: "
         "arr_shape=(2, 3) shape=(3,)")),
        (ops.CONCATENATE, [(2, 3), (2, 4)], {"axis": 0}, TypeError, ("Cannot concatenate arrays with shapes that "
         "differ in dimensions other than the one being concatenated: concatenating along dimension 0 for shapes "
         "(2, 3), (2, 4).")),
        (ops.CONCATENATE, [(2, 3), (2,)], {"axis": 0}, TypeError, ("Cannot concatenate arrays with different numbers "
         "of dimensions: got (2, 3), (2,).")),
        (ops.STACK, [(2,), (3,)], {"axis": 0}, ValueError, "All input arrays must have the same shape. Got (2,), (3,)."
         ),
    ],
)  # fmt: skip
def test_shapes_are_refused_as_jax_does(op: Op, operands: list, params: dict, error: type, text: str) -> None:
    with pytest.raises(error) as caught:
        op.infer(tuple(unplaced(shape) for shape in operands), params)
    assert str(caught.value) == text
