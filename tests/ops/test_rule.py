from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from cuplace import errors
from cuplace.array.type import ArrayType
from cuplace.ops.contraction import DOT_GENERAL, DotDims
from cuplace.ops.elementwise import ADD, SELECT, SIN
from cuplace.ops.manipulation import SPLIT_PART, TRANSPOSE
from cuplace.ops.op import Op
from cuplace.ops.reductions import REDUCE_SUM
from cuplace.ops.rule import common_memory_kind, common_mesh, infer, resolve
from cuplace.placement.abstract_mesh import AbstractMesh
from cuplace.placement.axes import AxisType
from cuplace.placement.spec import PartitionSpec as P
from tests.ops.shards import X2Y4, X8, meshes, numbers, run, shapes, specs, typed, unplaced

A, E = AxisType.Auto, AxisType.Explicit
MATMUL = {"dims": DotDims((1,), (0,))}


def test_without_a_mesh_everything_is_whole() -> None:
    out, how = infer(ADD, (unplaced((2, 3)), unplaced((3,))), {})
    assert (out.shape, out.mesh, out.spec) == ((2, 3), None, P(None, None))
    assert how.in_specs == (P(None, None), P(None))


def test_uncommitted_operands_adopt_the_layout_of_placed_ones() -> None:
    out, how = infer(ADD, (unplaced((4, 8)), typed((4, 8), "x", "y")), {})
    assert out.spec == P("x", "y")
    assert out.mesh is X2Y4
    assert how.in_specs == (P("x", "y"), P("x", "y"))


def test_specs_merge_dimension_by_dimension() -> None:
    out, _ = infer(ADD, (typed((4, 8), "x"), typed((4, 8), None, "y")), {})
    assert str(out) == "float32[4@x,8@y]"


def test_a_conflict_of_explicit_axes_is_jax_s_error() -> None:
    with pytest.raises(errors.ShardingTypeError) as caught:
        infer(ADD, (typed((4, 8), "x", "y"), typed((4, 8), "y", "x")), {})
    first, help_text = str(caught.value).splitlines()
    assert first == "add got incompatible shardings for broadcasting: ('x', 'y'), ('y', 'x')."
    assert "y = reshard(y, x.sharding)" in help_text
    assert isinstance(caught.value, TypeError)


def test_one_axis_on_two_dimensions_is_jax_s_error() -> None:
    with pytest.raises(errors.ShardingTypeError) as caught:
        infer(ADD, (typed((4, 8), "x"), typed((8,), "x")), {})
    assert str(caught.value).splitlines()[0] == (
        "add operation with inputs: f32[4@x,8], f32[1,8@x] produces an illegally sharded result: f32[4@x,8@x]"
    )


def test_auto_axes_never_fail_and_the_first_operand_s_wish_counts() -> None:
    mesh = AbstractMesh((2, 4), ("x", "y"), (A, A))
    out, how = infer(ADD, (typed((8, 8), "x", "y", mesh=mesh), typed((8, 8), "y", "x", mesh=mesh)), {})
    assert out.spec == P("x", "y")
    assert how.in_specs == (P("x", "y"), P("x", "y"))


def test_explicit_axes_win_over_auto_axes() -> None:
    mesh = AbstractMesh((2, 4), ("a", "e"), (A, AxisType.Explicit))
    out, _ = infer(ADD, (typed((8,), "a", mesh=mesh), typed((8,), "e", mesh=mesh)), {})
    assert str(out) == "float32[8@e]"


def test_different_meshes_are_jax_s_error() -> None:
    with pytest.raises(errors.MeshMismatchError) as caught:
        infer(ADD, (typed((8,), "x"), typed((8,), "x", mesh=X8)), {})
    first, help_text = str(caught.value).splitlines()
    assert first == f"Mesh for all inputs should be equal. Got one mesh: {X2Y4} and another mesh: {X8}"
    assert help_text == (
        "They differ in the names and the sizes of their axes. Bring one operand to the other's mesh first: "
        "y = device_put(y, x.sharding)"
    )
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (AbstractMesh((8,), ("z",)), "the names of their axes"),
        (AbstractMesh((4,), ("x",)), "the sizes of their axes"),
        (AbstractMesh((8,), ("x",), (A,)), "the types of their axes"),
        (AbstractMesh((4, 2), ("x", "y"), (A, AxisType.Explicit)), "the names and the sizes of"),
    ],
)
def test_meshes_that_differ_in_anything_do_not_meet_unless_all_axes_are_auto(other, what) -> None:
    for one, two in ((X8, other), (other, X8)):
        with pytest.raises(errors.MeshMismatchError, match=what):
            common_mesh((typed((8,), mesh=one), typed((8,), mesh=two)))


@pytest.mark.parametrize("op", [ADD, SELECT])
def test_a_mesh_without_axes_says_no_more_than_a_single_device(op: Op) -> None:
    nowhere = typed((8,), mesh=AbstractMesh((), ()))
    there = typed((8,), "x")
    operands = (nowhere, there) if op is ADD else (typed((), dtype=bool, mesh=None), nowhere, there)
    out, how = infer(op, operands, {})
    assert (out.mesh, out.spec, how.in_specs[-2]) == (X2Y4, P("x"), P("x"))
    assert infer(ADD, (nowhere, unplaced((8,))), {})[0].mesh == nowhere.mesh


def test_a_cut_that_only_auto_axes_hinder_keeps_the_explicit_ones() -> None:
    mesh = AbstractMesh((2, 4), ("x", "y"), (A, E))
    out, how = infer(SPLIT_PART, (typed((8, 8), ("x", "y"), mesh=mesh),), {"axis": 0, "start": 0, "stop": 4})
    assert (str(out), how.out_spec) == ("float32[4@y,8]", P("y", None))


def test_the_first_of_two_auto_meshes_is_taken() -> None:
    one, other = AbstractMesh((4,), ("x",), (A,)), AbstractMesh((2, 2), ("y", "z"), (A, A))
    out, how = infer(ADD, (typed((4,), "x", mesh=one), typed((4,), "y", mesh=other)), {})
    assert common_mesh((typed((4,), mesh=one), typed((4,), mesh=other))) is one
    assert (out.mesh, out.spec, how.in_specs) == (one, P("x"), (P("x"), P("x")))


def test_memory_spaces_do_not_mix() -> None:
    here = ArrayType((2,), np.dtype("float32"))
    there = here.update(memory_kind="pinned_host")
    assert common_memory_kind("add", (there, there)) == "pinned_host"
    with pytest.raises(errors.MemorySpaceError) as caught:
        infer(ADD, (here, there), {})
    assert str(caught.value).splitlines()[0] == (
        "memory_space of all inputs passed to `add` must be the same. Got one operand with type: float32[2] and "
        "another operand with type: float32<host>[2]"
    )


def test_a_reduced_sharded_dimension_gives_partial_results() -> None:
    _, how = infer(REDUCE_SUM, (typed((4, 8), "x", "y"),), {"axes": (1,), "keepdims": False})
    assert (how.out_spec, how.partial_axes, how.combine) == (P("x"), ("y",), "sum")


def test_an_axis_of_one_device_makes_no_partial_results() -> None:
    mesh = AbstractMesh((1,), ("x",))
    _, how = infer(REDUCE_SUM, (typed((4,), "x", mesh=mesh),), {"axes": (0,), "keepdims": False})
    assert (how.partial_axes, how.combine) == ((), None)


def test_a_contraction_gives_way_to_a_free_dimension_on_the_same_axis() -> None:
    _, how = infer(DOT_GENERAL, (typed((8, 8), None, "x"), typed((8, 8), None, "x")), MATMUL)
    assert how.out_spec == P(None, "x")
    assert how.in_specs == (P(None, None), P(None, "x"))


def test_out_sharding_chooses_among_layouts() -> None:
    types = (typed((8, 8), None, "x"), typed((8, 8), "x", None))
    how = resolve(DOT_GENERAL, types, [t.spec for t in types], MATMUL, X2Y4, P("y", None))
    assert (how.out_spec, how.local_spec, how.partial_axes) == (P("y", None), P("y", None), ("x",))
    assert how.in_specs == (P("y", "x"), P("x", None))


@given(st.data())
def test_a_layout_that_was_asked_for_is_given(data: st.DataObject) -> None:
    mesh = data.draw(meshes([A, AxisType.Explicit]))
    m, k, n = (data.draw(st.sampled_from([1, 2, 4, 12])) for _ in range(3))
    a, b = numbers((m, k), 1), numbers((k, n), 2)
    spec_a, spec_b = (data.draw(specs(x.shape, mesh)) for x in (a, b))
    wanted = data.draw(specs((m, n), mesh))
    outcome = run(DOT_GENERAL, [a, b], [spec_a, spec_b], MATMUL, mesh, wanted)
    assert outcome.resolution.out_spec == wanted
    np.testing.assert_array_equal(outcome.value, a @ b)


@given(st.data())
def test_what_explicit_axes_accept_auto_axes_resolve_alike(data: st.DataObject) -> None:
    explicit = data.draw(meshes([AxisType.Explicit]))
    auto = explicit.update(axis_types=(A,) * len(explicit.axis_names))
    shape = data.draw(shapes(2, 2))
    of = [data.draw(specs(shape, explicit)) for _ in range(2)]
    for op, params, count in (
        (ADD, {}, 2),
        (SIN, {}, 1),
        (TRANSPOSE, {"permutation": (1, 0)}, 1),
        (REDUCE_SUM, {"axes": (0,), "keepdims": False}, 1),
    ):
        try:
            strict, _ = infer(op, [typed(shape, *spec, mesh=explicit) for spec in of[:count]], params)
        except errors.ShardingTypeError:
            continue
        lenient, _ = infer(op, [typed(shape, *spec, mesh=auto) for spec in of[:count]], params)
        assert strict.spec == lenient.spec
