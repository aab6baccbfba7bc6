from __future__ import annotations

import pickle

import numpy as np
import pytest

from cuplace import errors
from cuplace.placement.axes import AxisType, checked_names, checked_sizes, checked_types
from cuplace.placement.mesh import AbstractMesh


def test_axis_types_print_as_in_jax():
    assert repr(list(AxisType)) == "[Auto, Explicit, Manual]"
    assert str(AxisType.Explicit) == "AxisType.Explicit"
    assert pickle.loads(pickle.dumps(AxisType.Manual)) is AxisType.Manual


def test_axes_by_type():
    mesh = AbstractMesh((2, 4, 1), ("x", "y", "z"), (AxisType.Auto, AxisType.Explicit, AxisType.Manual))
    assert (mesh.auto_axes, mesh.explicit_axes, mesh.manual_axes) == (("x",), ("y",), ("z",))
    assert (mesh.are_all_axes_auto, mesh.are_all_axes_explicit, mesh.are_all_axes_manual) == (False,) * 3
    assert mesh.update(axis_types=(AxisType.Auto,) * 3).are_all_axes_auto
    assert mesh.update(axis_types=(AxisType.Explicit,) * 3).are_all_axes_explicit
    assert mesh.update(axis_types=(AxisType.Manual,) * 3).are_all_axes_manual
    assert not AbstractMesh((), ()).are_all_axes_auto


def test_shape_is_by_name_and_a_copy():
    mesh = AbstractMesh((2, 4), ("x", "y"))
    assert repr(list(mesh.shape.items())) == "[('x', 2), ('y', 4)]"
    mesh.shape["x"] = 9
    assert mesh.shape_tuple == (("x", 2), ("y", 4))
    assert mesh.size == 8


def test_names():
    assert checked_names("x") == ("x",)
    assert checked_names(["x", "y"]) == ("x", "y")


@pytest.mark.parametrize(
    ("names", "error", "base", "text"),
    [
        ((None,), errors.AxisNameError, ValueError, "Mesh axis names cannot be None. Got: (None,)"),
        (("x", "y", "x"), errors.AxisNameError, ValueError, "different from each other. Got: ('x', 'y', 'x')"),
        ((3,), errors.AxisNameTypeError, TypeError, "Mesh axis names must be strings. Got: 3 of type int"),
        (3, errors.AxisNameTypeError, TypeError, "a sequence of strings. Got: 3 of type int"),
        (None, errors.AxisNameTypeError, TypeError, "a sequence of strings. Got: None"),
    ],
)
def test_bad_names(names, error, base, text):
    with pytest.raises(error) as caught:
        checked_names(names)
    assert isinstance(caught.value, base)
    assert text in str(caught.value)


def test_types():
    both = (AxisType.Explicit, AxisType.Auto)
    assert checked_types(None, ("x", "y"), AxisType.Auto) == (AxisType.Auto, AxisType.Auto)
    assert checked_types(AxisType.Explicit, ("x",), AxisType.Auto) == (AxisType.Explicit,)
    assert checked_types(list(both), ("x", "y"), AxisType.Auto) == both


@pytest.mark.parametrize(
    ("types", "error", "base", "text"),
    [
        (
            (AxisType.Auto,),
            errors.AxisTypesError,
            ValueError,
            (
                "Number of axis names should match the number of axis_types. "
                "Got axis_names=('x', 'y') and axis_types=(Auto,)"
            ),
        ),
        (
            "auto",
            errors.AxisTypeTypeError,
            TypeError,
            (
                "axis_types passed to Mesh must be of type `jax.sharding.AxisType`. "
                "Got ('auto',) of type (<class 'str'>,)"
            ),
        ),
        ((AxisType.Auto, 1), errors.AxisTypeTypeError, TypeError, "Got (Auto, 1)"),
        (7, errors.AxisTypeTypeError, TypeError, "Got (7,)"),
    ],
)
def test_bad_types(types, error, base, text):
    with pytest.raises(error) as caught:
        checked_types(types, ("x", "y"), AxisType.Auto)
    assert isinstance(caught.value, base)
    assert text in str(caught.value)


def test_sizes():
    sizes = checked_sizes(np.array([2, 4]))
    assert sizes == (2, 4)
    assert all(type(size) is int for size in sizes)


@pytest.mark.parametrize(
    ("sizes", "error", "base", "text"),
    [
        ((0,), errors.AxisSizeError, ValueError, "must be 1 or more. Got (0,)"),
        ((-1, 2), errors.AxisSizeError, ValueError, "no wildcard size"),
        ((2.0,), errors.AxisSizeTypeError, TypeError, "must be integers. Got 2.0 of type float in (2.0,)"),
        ((True,), errors.AxisSizeTypeError, TypeError, "Got True of type bool"),
        (("2",), errors.AxisSizeTypeError, TypeError, "Got '2' of type str"),
        (8, errors.AxisSizeTypeError, TypeError, "a sequence of integers. Got 8"),
        ("8", errors.AxisSizeTypeError, TypeError, "a sequence of integers. Got '8'"),
    ],
)
def test_bad_sizes(sizes, error, base, text):
    with pytest.raises(error) as caught:
        checked_sizes(sizes)
    assert isinstance(caught.value, base)
    assert text in str(caught.value)
