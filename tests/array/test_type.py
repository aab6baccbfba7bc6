from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

from cuplace import errors
from cuplace.array.type import ArrayType, describe_shape, explicit_spec, typeof
from cuplace.placement.abstract_mesh import AbstractMesh
from cuplace.placement.axes import AxisType
from cuplace.placement.spec import PartitionSpec as P

F32 = np.dtype("float32")
MESH = AbstractMesh((2, 4, 2), ("x", "y", "a"), (AxisType.Explicit, AxisType.Explicit, AxisType.Auto))


@pytest.mark.parametrize(
    ("shape", "spec", "text"),
    [
        ((), P(), "float32[]"),
        ((8,), P(), "float32[8]"),
        ((8,), P("x"), "float32[8@x]"),
        ((4, 8), P("x"), "float32[4@x,8]"),
        ((4, 8), P("x", "y"), "float32[4@x,8@y]"),
        ((8,), P(("x", "y")), "float32[8@(x,y)]"),
        ((8, 4), P("a", "x"), "float32[8,4@x]"),
        ((8,), P(("a", "x")), "float32[8@x]"),
    ],
)
def test_only_explicit_axes_are_shown(shape: tuple[int, ...], spec: P, text: str) -> None:
    of = ArrayType(shape, F32, False, spec, MESH)
    assert str(of) == text
    assert repr(of) == f"ShapedArray({text})"
    assert of.short() == text.replace("float32", "f32")
    assert len(of.spec) == len(shape)


def test_weakness_and_memory_are_shown() -> None:
    assert repr(ArrayType((), F32, True)) == "ShapedArray(float32[], weak_type=True)"
    assert str(ArrayType((8,), F32, False, P("x"), MESH, "pinned_host")) == "float32<host>[8@x]"


def test_equal_types_are_one_object() -> None:
    a = ArrayType((2, 3), "float32", spec=P("x"), mesh=MESH)
    assert a is ArrayType((2, 3), F32, False, P("x", None), MESH)
    assert a is not ArrayType((2, 3), F32, True, P("x"), MESH)
    assert a is copy.deepcopy(a) is copy.copy(a) is pickle.loads(pickle.dumps(a))


def test_types_never_change() -> None:
    a = ArrayType((2,), F32)
    with pytest.raises(AttributeError):
        a.shape = (3,)
    assert a.update(shape=(3,)) is ArrayType((3,), F32)
    assert ArrayType((2,), F32, True).strong() is a.strong() is a


def test_sizes() -> None:
    a = ArrayType((2, 3), np.dtype("complex64"))
    assert (a.ndim, a.size, a.itemsize, a.nbytes) == (2, 6, 8, 48)
    assert ArrayType((), F32).size == 1
    assert ArrayType((2**20, 2**20), F32).size == 2**40


def test_a_spec_longer_than_the_shape_is_refused() -> None:
    with pytest.raises(errors.RankError):
        ArrayType((2,), F32, spec=P("x", "y"), mesh=MESH)


def test_the_explicit_part_of_a_spec() -> None:
    assert explicit_spec(P("a", ("x", "a"), P.UNCONSTRAINED, None), MESH) == P(None, "x", None, None)
    assert describe_shape((4,), P("x"), None) == "[4]"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, ArrayType((), np.dtype(bool))),
        (1, ArrayType((), np.dtype("int32"), True)),
        (1.0, ArrayType((), F32, True)),
        (1j, ArrayType((), np.dtype("complex64"), True)),
        (np.float64(1), ArrayType((), F32)),
        (np.int64(1), ArrayType((), np.dtype("int32"))),
        (np.ones((2, 3), np.int64), ArrayType((2, 3), np.dtype("int32"))),
        (np.ones(2, ml_dtypes.bfloat16), ArrayType((2,), np.dtype(ml_dtypes.bfloat16))),
    ],
)
def test_types_of_host_values(value: object, expected: ArrayType) -> None:
    assert typeof(value) is expected


@pytest.mark.parametrize("value", ["abc", object(), None, [1], {}, b"x"])
def test_what_is_no_array_has_no_type(value: object) -> None:
    with pytest.raises(TypeError, match="is not a valid JAX type"):
        typeof(value)
    with pytest.raises(TypeError, match="Dtype object is not a valid JAX array type"):
        typeof(np.array([value], object))
