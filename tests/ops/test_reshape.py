from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from cuplace import errors
from cuplace.ops.reshape import RESHAPE, groups
from cuplace.ops.rule import infer, resolve
from cuplace.placement.abstract_mesh import AbstractMesh
from cuplace.placement.axes import AxisType
from cuplace.placement.spec import PartitionSpec as P
from tests.ops.shards import X2Y4, X8, meshes, numbers, run, shapes, specs, typed, unplaced


@st.composite
def factorings(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """A shape of a given size, with a few ones in it."""
    shape = []
    while size > 1:
        part = draw(st.sampled_from([d for d in range(2, size + 1) if size % d == 0]))
        shape.append(part)
        size //= part
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


@given(st.data())
def test_shards_give_the_whole(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    old = data.draw(shapes(1))
    new = data.draw(factorings(math.prod(old)))
    x = numbers(old)
    wanted = data.draw(st.none() | specs(new, mesh))
    outcome = run(RESHAPE, [x], [data.draw(specs(old, mesh))], {"shape": new}, mesh, wanted)
    np.testing.assert_array_equal(outcome.value, x.reshape(new))
    assert wanted in (None, outcome.resolution.out_spec)


@given(st.data())
def test_groups_hold_the_same_elements(data: st.DataObject) -> None:
    old = data.draw(shapes(1))
    new = data.draw(factorings(math.prod(old)))
    found = groups(old, new)
    for group in found:
        assert math.prod(old[i] for i in group.old) == math.prod(new[i] for i in group.new)
    assert [i for group in found for i in group.old] == [i for i, n in enumerate(old) if n != 1]
    assert [i for group in found for i in group.new] == [i for i, n in enumerate(new) if n != 1]


@pytest.mark.parametrize(
    ("mesh", "shape", "spec", "new", "expected"),
    [
        (X8, (16,), P("x"), (8, 2), "float32[8@x,2]"),
        (X8, (8, 2), P("x"), (16,), "float32[16@x]"),
        (X8, (8, 8), P("x"), (64,), "float32[64@x]"),
        (X8, (8, 4, 4), P("x"), (8, 16), "float32[8@x,16]"),
        (X8, (4, 4, 8), P(None, None, "x"), (16, 8), "float32[16,8@x]"),
        (X8, (8, 1, 4), P("x"), (1, 8, 4, 1), "float32[1,8@x,4,1]"),
        (X8, (8, 16), P(None, "x"), (8, 8, 2), "float32[8,8@x,2]"),
        (X8, (8, 16), P("x"), (8, 2, 2, 4), "float32[8@x,2,2,4]"),
        (X2Y4, (4, 8), P("x", "y"), (32,), "float32[32@(x,y)]"),
        (X2Y4, (4, 8), P("y", "x"), (32,), "float32[32@(y,x)]"),
        (X2Y4, (4, 8), P("x", "y"), (2, 2, 8), "float32[2@x,2,8@y]"),
        (X2Y4, (16,), P(("x", "y")), (2, 8), "float32[2@x,8@y]"),
        (X2Y4, (16,), P(("x", "y")), (8, 2), "float32[8@(x,y),2]"),
        (X2Y4, (8, 2, 4), P("x", None, "y"), (16, 4), "float32[16@x,4@y]"),
        (X2Y4, (2, 8, 4), P(None, "x", "y"), (2, 32), "float32[2,32@(x,y)]"),
        (X8, (8, 8), P(), (4, 16), "float32[4,16]"),
        (X8, (0, 8), P(), (0,), "float32[0]"),
    ],
)
def test_explicit_specs_follow_as_in_jax(mesh: AbstractMesh, shape: tuple, spec: P, new: tuple, expected: str) -> None:
    assert str(infer(RESHAPE, [typed(shape, *spec, mesh=mesh)], {"shape": new})[0]) == expected


@pytest.mark.parametrize(
    ("mesh", "shape", "spec", "new"),
    [
        (X8, (8,), P("x"), (2, 4)),
        (X8, (8, 8), P(None, "x"), (64,)),
        (X8, (8, 4, 6), P("x"), (8, 6, 4)),
        (X8, (8, 4, 6), P("x"), (16, 12)),
        (X8, (8, 16), P(None, "x"), (8, 2, 8)),
        (X2Y4, (4, 8), P("x", "y"), (2, 2, 4, 2)),
        (X2Y4, (16,), P(("x", "y")), (4, 4)),
    ],
)
def test_other_reshapes_need_out_sharding(mesh: AbstractMesh, shape: tuple, spec: P, new: tuple) -> None:
    operand = typed(shape, *spec, mesh=mesh)
    with pytest.raises(errors.ShardingTypeError) as caught:
        infer(RESHAPE, [operand], {"shape": new})
    first, help_text = str(caught.value).splitlines()
    assert "x.reshape(shape, out_sharding=" in help_text
    assert first == (
        "This reshape is not supported. Please specify the sharding of the output via the `out_sharding` argument of "
        f"jax.lax.reshape. Got operand type: {operand}, new sizes: {new}"
    )
    whole = P().padded(len(new))
    assert resolve(RESHAPE, [operand], [operand.spec], {"shape": new}, mesh, whole).out_spec == whole


def test_auto_axes_are_kept_as_far_as_shards_need_not_move() -> None:
    auto = AbstractMesh((2, 4), ("x", "y"), (AxisType.Auto,) * 2)
    _, how = infer(RESHAPE, [typed((4, 8), "x", "y", mesh=auto)], {"shape": (8, 4)})
    assert how.in_specs == (P(None, None),)
    _, how = infer(RESHAPE, [typed((8, 4), "x", mesh=auto)], {"shape": (8, 2, 2)})
    assert (how.in_specs, how.local_spec) == ((P("x", None),), P("x", None, None))


def test_sizes_must_agree() -> None:
    with pytest.raises(
        TypeError, match=r"^cannot reshape array of shape \(6,\) \(size 6\) into shape \(4,\) \(size 4\)$"
    ):
        RESHAPE.infer((unplaced((6,)),), {"shape": (4,)})
