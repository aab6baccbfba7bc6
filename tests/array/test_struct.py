from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import cuplace
from cuplace import ShapeDtypeStruct, errors


def test_equal_structs_are_equal_and_never_change(platform):
    one, other = ShapeDtypeStruct((2, 3), "float32"), ShapeDtypeStruct([2, np.int64(3)], np.float32)
    assert one == other
    assert hash(one) == hash(other)
    assert (one.shape, one.dtype, one.ndim, one.sharding) == ((2, 3), np.dtype("float32"), 2, None)
    sharding = cuplace.NamedSharding(cuplace.make_mesh((8,), ("x",)), cuplace.P("x"))
    placed = ShapeDtypeStruct((8,), cuplace.numpy.float32, sharding=sharding)
    assert placed != ShapeDtypeStruct((8,), "float32")
    assert placed != "a struct"
    assert repr(placed) == f"ShapeDtypeStruct(shape=(8,), dtype=float32, sharding={sharding})"
    assert pickle.loads(pickle.dumps(placed)) == placed
    assert copy.copy(placed) is placed
    with pytest.raises(AttributeError, match="never changes"):
        one.shape = (1,)


@pytest.mark.parametrize(
    ("shape", "dtype", "sharding", "text"),
    [
        (3, "float32", None, "shape must be a tuple of integers, got 3"),
        ((1.5,), "float32", None, "shape must be a tuple of integers"),
        ((3,), None, None, "dtype must be specified"),
        ((3,), "float32", "x", "sharding must be a Sharding or None, got 'x'"),
    ],
)
def test_what_is_no_struct(shape, dtype, sharding, text):
    with pytest.raises(errors.OutShapeError, match=text):
        ShapeDtypeStruct(shape, dtype, sharding=sharding)
