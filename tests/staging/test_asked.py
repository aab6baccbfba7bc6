from __future__ import annotations

import numpy as np
import optree
import pytest

from cuplace import errors
from cuplace.array.key import key_of
from cuplace.array.type import ArrayType
from cuplace.placement.sharding import SingleDeviceSharding
from cuplace.placement.spec import P
from cuplace.runtime.context import set_mesh
from cuplace.staging.asked import (
    UNSPECIFIED,
    check_argument,
    check_fit,
    check_leaves,
    spread_inputs,
    spread_outputs,
)
from tests.array.places import on, places

F32 = np.dtype("float32")


def test_leaves_are_shardings_specs_or_none(platform):
    at = places(platform)
    check_leaves("in_shardings", {"a": (on(at.full, "x"), None), "b": P("x")})
    for wrong in (platform.devices[0], "x", 3, at.full):
        with pytest.raises(errors.ShardingLeafError, match="in_shardings leaf specifications are expected to be"):
            check_leaves("in_shardings", (wrong,))


def test_prefixes_are_spread_over_leaves(platform):
    a, b = on(places(platform).a, "x"), on(places(platform).b, "x")
    args = ({"p": 1, "q": 2}, 3)
    assert spread_inputs(a, args, {}, 3) == [a, a, a]
    assert spread_inputs((a, b), args, {}, 3) == [a, a, b]
    assert spread_inputs([{"p": a, "q": None}, b], args, {}, 3) == [a, None, b]
    assert spread_inputs(UNSPECIFIED, args, {}, 3) == [None] * 3
    assert spread_outputs((a, (b, None)), optree.tree_structure((1, (2, 3)))) == [a, b, None]


def test_structures_that_do_not_fit(platform):
    a = on(places(platform).a, "x")
    with pytest.raises(ValueError, match="wrong length: got a tuple or list of length 1 for an args tuple of length 2"):
        spread_inputs((a,), (1, 2), {}, 2)
    with pytest.raises(ValueError, match="pjit does not support kwargs when in_shardings is specified"):
        spread_inputs(a, (1,), {"k": 2}, 2)
    with pytest.raises(ValueError, match=r"pjit out_shardings.*tuple of length 1"):
        spread_outputs((a,), optree.tree_structure((1, 2)))


def test_bare_specs_are_read_on_the_context_mesh(platform):
    full = places(platform).full
    with pytest.raises(RuntimeError, match="jit requires a non-empty mesh in context"):
        spread_inputs(P("x"), (1,), {}, 1)
    with set_mesh(full):
        assert spread_inputs(P("x"), (1,), {}, 1) == [on(full, "x")]


def test_shardings_that_do_not_fit_a_shape(platform):
    full = places(platform).full
    check_fit("arguments", "a", on(full, "x"), ArrayType((8,), F32))
    with pytest.raises(errors.IndivisibleError, match=r"One of pjit arguments with pytree key path a\['q'\] was given"):
        check_fit("arguments", "a['q']", on(full, "x"), ArrayType((7,), F32))
    with pytest.raises(errors.RankError, match="One of pjit outputs with pytree key path result is incompatible"):
        check_fit("outputs", "result", on(full, None, "x"), ArrayType((8,), F32))


def test_committed_arguments_must_be_where_they_are_asked(platform):
    at = places(platform)
    key = key_of((8,), F32, False, on(at.a, "x"), True)
    check_argument(on(at.a, "x"), key)
    check_argument(None, key)
    check_argument(on(at.b, "x"), key_of((8,), F32, False, SingleDeviceSharding(platform.devices[0]), False))
    with pytest.raises(ValueError, match="Sharding passed to jit does not match the sharding on the respective arg"):
        check_argument(on(at.a), key)
