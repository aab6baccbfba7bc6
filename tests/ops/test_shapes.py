from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from cuplace import errors
from cuplace.ops.shapes import broadcast_shapes, checked_shape, integers, normalize_axes, normalize_axis


@given(mutually_broadcastable_shapes(num_shapes=3))
def test_broadcasting_is_numpy_s(drawn: object) -> None:
    assert broadcast_shapes("add", list(drawn.input_shapes)) == drawn.result_shape


@given(st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=3))
def test_broadcasting_fails_where_numpy_s_does(shapes: list[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises((errors.IncompatibleShapesError, errors.BroadcastError)):
            broadcast_shapes("add", shapes)
    else:
        assert broadcast_shapes("add", shapes) == expected


def test_scalars_are_not_listed_in_errors() -> None:
    with pytest.raises(TypeError, match=r"^clip got incompatible shapes for broadcasting: \(8,\), \(4,\)\.$"):
        broadcast_shapes("clip", [(8,), (), (4,)])


def test_axes() -> None:
    assert normalize_axis(-1, 3) == 2
    assert normalize_axes(None, 2) == (0, 1)
    assert normalize_axes([-1, 0], 3) == (2, 0)
    assert normalize_axes(np.int64(1), 2) == (1,)
    with pytest.raises(ValueError, match=r"^axis 3 is out of bounds for array of dimension 1$"):
        normalize_axis(3, 1)
    with pytest.raises(ValueError, match=r"^duplicate value in 'axis': \(0, -2\)$"):
        normalize_axes((0, -2), 2)
    with pytest.raises(TypeError):
        normalize_axes(1.5, 2)


def test_shapes_of_users() -> None:
    assert checked_shape(3) == checked_shape([3]) == checked_shape(np.array([3])) == (3,)
    assert checked_shape(()) == ()
    assert integers((2, -1)) == (2, -1)
    for bad in (2.5, "a", (2, None), None):
        with pytest.raises(TypeError, match=r"^Shapes must be 1D sequences of concrete values of integer type, got"):
            checked_shape(bad)
    with pytest.raises(TypeError, match="must have every element be nonnegative"):
        checked_shape((2, -1))


@pytest.mark.parametrize("normalize", [normalize_axis, normalize_axes])
def test_the_name_of_a_mesh_axis_is_no_axis_of_an_array(normalize) -> None:
    with pytest.raises(errors.AxisArgumentTypeError, match=r"^'str' object cannot be") as caught:
        normalize("data", 2)
    assert "'data'" in str(caught.value)
    assert "numbered 0 to 1, or -2 to -1" in str(caught.value)
    assert "lax.psum(x, 'data') inside of map_shards" in str(caught.value)
    with pytest.raises(errors.AxisArgumentTypeError, match=r"The axis 1\.0 was given\.$"):
        normalize(1.0, 0)
