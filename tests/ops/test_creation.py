from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from cuplace.ops.creation import EYE, IOTA
from cuplace.ops.rule import resolve
from cuplace.placement.spec import PartitionSpec as P
from tests.ops.shards import X2Y4, meshes, run, shapes, specs


@given(st.data())
def test_each_shard_counts_from_its_own_place(data: st.DataObject) -> None:
    mesh, shape = data.draw(meshes()), data.draw(shapes(1))
    dimension = data.draw(st.integers(0, len(shape) - 1))
    start, step = data.draw(st.sampled_from([(0, 1), (5, -2), (0.5, 0.25)]))
    params = {"shape": shape, "dtype": np.dtype("float32"), "dimension": dimension, "start": start, "step": step}
    outcome = run(IOTA, [], [], params, mesh, data.draw(specs(shape, mesh)))
    counted = start + step * np.arange(shape[dimension], dtype=np.float64)
    across = [-1 if i == dimension else 1 for i in range(len(shape))]
    np.testing.assert_array_equal(outcome.value, np.broadcast_to(counted.reshape(across), shape).astype(np.float32))


@given(st.data(), st.integers(-5, 5))
def test_each_shard_has_its_part_of_the_diagonal(data: st.DataObject, k: int) -> None:
    mesh, shape = data.draw(meshes()), data.draw(shapes(2, 2))
    params = {"shape": shape, "dtype": np.dtype("int8"), "k": k}
    outcome = run(EYE, [], [], params, mesh, data.draw(specs(shape, mesh)))
    np.testing.assert_array_equal(outcome.value, np.eye(*shape, k=k))


def test_shards_are_made_where_they_are_wanted() -> None:
    params = {"shape": (4, 8), "dtype": np.dtype("int8"), "k": 0}
    how = resolve(EYE, [], [], params, X2Y4, P("x", "y"))
    assert how.local_spec == how.out_spec == P("x", "y")
    assert resolve(EYE, [], [], params, X2Y4).out_spec == P(None, None)


@pytest.mark.parametrize("op", [IOTA, EYE])
def test_what_depends_on_the_place_says_so(op: object) -> None:
    assert op.positional


def test_long_counts_are_exact() -> None:
    made = IOTA.compute(np, shape=(3,), dtype=np.dtype("int32"), dimension=0, start=2**30, step=1, offset=2**29)
    assert made.tolist() == [2**30 + 2**29 + i for i in range(3)]
