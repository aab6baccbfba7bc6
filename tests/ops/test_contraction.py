from __future__ import annotations

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from cuplace import errors
from cuplace.array.type import ArrayType
from cuplace.ops.contraction import DOT_GENERAL, DotDims
from cuplace.ops.op import OutType
from cuplace.ops.rule import infer
from cuplace.placement.spec import PartitionSpec as P
from tests.ops.shards import SIZES, meshes, numbers, run, specs, typed, unplaced

MATMUL = DotDims((1,), (0,))


@given(st.data())
def test_shards_give_the_whole(data: st.DataObject) -> None:
    """Any number of batch, contracted and free dimensions, in any order, sharded in any way."""
    mesh = data.draw(meshes())
    letters = {"b": "uv"[: data.draw(st.integers(0, 1))], "k": "kl"[: data.draw(st.integers(0, 2))]}
    free = ["ij"[: data.draw(st.integers(0, 2))], "mn"[: data.draw(st.integers(0, 1))]]
    left, right = (data.draw(st.permutations(letters["b"] + letters["k"] + f)) for f in free)
    sizes = {c: data.draw(SIZES) for c in {*left, *right}}
    a, b = (numbers([sizes[c] for c in names], i) for i, names in enumerate((left, right)))
    dims = DotDims(*(tuple(names.index(c) for c in letters[kind]) for kind in "kb" for names in (left, right)))
    outcome = run(DOT_GENERAL, [a, b], [data.draw(specs(x.shape, mesh)) for x in (a, b)], {"dims": dims}, mesh)
    out = [*letters["b"], *(c for c in left if c in free[0]), *(c for c in right if c in free[1])]
    truth = np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_array_equal(outcome.value, truth)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (typed((8, 8), "x"), typed((8, 8), None, "y"), "float32[8@x,8@y]"),
        (typed((8, 8), None, "x"), typed((8, 8)), "float32[8,8]"),
        (typed((8, 8), None, "x"), typed((8, 8), None, "x"), "float32[8,8@x]"),
        (typed((8, 8), "x", "y"), unplaced((8, 8)), "float32[8@x,8]"),
    ],
)
def test_free_dimensions_keep_their_axes(left: ArrayType, right: ArrayType, expected: str) -> None:
    assert str(infer(DOT_GENERAL, [left, right], {"dims": MATMUL})[0]) == expected


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        (
            typed((8, 8), None, "x"),
            typed((8, 8), "x"),
            (
                "Contracting dimensions are sharded and it is ambiguous how the output should be sharded. Please "
                "specify the output sharding via the `out_sharding` parameter. Got lhs_contracting_spec=('x',) and "
                "rhs_contracting_spec=('x',)"
            ),
        ),
        (
            typed((8, 8), None, "x"),
            typed((8, 8), "y"),
            "dot_general requires contracting dimensions to have consistent sharding, got ('x',) and ('y',).",
        ),
        (
            typed((8, 8), "x"),
            typed((8, 8), None, "x"),
            (
                "dot_general operation with inputs: f32[8@x,8], f32[8,8@x] produces an illegally sharded result: "
                "f32[8@x,8@x]"
            ),
        ),
    ],
)
def test_open_layouts_are_refused_as_jax_does(left: ArrayType, right: ArrayType, text: str) -> None:
    with pytest.raises(errors.ShardingTypeError) as caught:
        infer(DOT_GENERAL, [left, right], {"dims": MATMUL})
    assert str(caught.value).splitlines()[0] == text


def test_batch_dimensions_must_agree() -> None:
    dims = DotDims((2,), (1,), (0,), (0,))
    with pytest.raises(errors.ShardingTypeError, match="batch dimensions to have consistent sharding"):
        infer(DOT_GENERAL, [typed((8, 2, 2), "x"), typed((8, 2, 2), "y")], {"dims": dims})
    out, how = infer(DOT_GENERAL, [typed((8, 2, 2), "x"), typed((8, 2, 2))], {"dims": dims})
    assert out.spec == P("x", None, None)
    assert how.in_specs[1] == P("x", None, None)


def test_sizes_must_match() -> None:
    with pytest.raises(
        TypeError,
        match=r"^dot_general requires contracting dimensions to have the same shape, got \(3,\) and \(2,\)\.$",
    ):
        DOT_GENERAL.infer((unplaced((2, 3)), unplaced((2, 3))), {"dims": MATMUL})


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_narrow_floats_are_summed_in_float32(dtype: object) -> None:
    a = np.full((1, 4096), 0.5, dtype)
    made = DOT_GENERAL.compute(np, a, a.T, dims=MATMUL)
    assert (made.dtype, float(made[0, 0])) == (np.dtype(dtype), 1024.0)


def test_integers_wrap_and_bools_stay_bools() -> None:
    a = np.full((1, 2), 100, np.int8)
    made = DOT_GENERAL.compute(np, a, a.T, dims=MATMUL)
    assert (made.dtype, made.tolist()) == (np.int8, [[20000 % 256]])
    assert DOT_GENERAL.compute(np, a > 0, a.T > 0, dims=MATMUL).tolist() == [[True]]


def test_the_cost_of_a_matrix_product() -> None:
    types = (unplaced((4, 8)), unplaced((8, 2)))
    cost = DOT_GENERAL.cost(types, OutType((4, 2), np.dtype("float32")), {"dims": MATMUL})
    assert (cost.flops, cost.bytes) == (2 * 4 * 8 * 2, 4 * (32 + 16 + 8))
