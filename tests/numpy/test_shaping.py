from __future__ import annotations

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import errors
from cuplace.placement.axes import AxisType
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import PartitionSpec as P
from cuplace.runtime.platform import Platform
from tests.numpy.places import counted, grid, put, spec_of

only_cpu = pytest.mark.parametrize("platform", ["cpu"], indirect=True)
X = counted(2, 3, 4)
SAME = [
    ("reshape", (X, (4, -1)), {}), ("reshape", (X, 24), {}), ("reshape", (X, [6, 4]), {}),
    ("reshape", (X, (4, 6)), {"order": "F"}), ("ravel", (X,), {}), ("ravel", (X, "F"), {}),
    ("squeeze", (X[:, :1],), {}), ("squeeze", (X[:1, :1], 0), {}), ("squeeze", (X[:1, :1], (0, -2)), {}),
    ("expand_dims", (X, 0), {}), ("expand_dims", (X, (0, -1)), {}), ("transpose", (X,), {}),
    ("transpose", (X, (1, -1, 0)), {}), ("permute_dims", (X, (2, 0, 1)), {}), ("swapaxes", (X, 0, -1), {}),
    ("matrix_transpose", (X,), {}), ("moveaxis", (X, 0, -1), {}), ("moveaxis", (X, [0, 1], [-1, -2]), {}),
    ("broadcast_to", (X, (5, 2, 3, 4)), {}), ("broadcast_to", (X[:, :1], (2, 3, 4)), {}),
    ("concatenate", ([X, X],), {"axis": 1}), ("concatenate", ([X, X[0]],), {"axis": None}),
    ("concat", ((X, X),), {"axis": -1}), ("concatenate", (X,), {}), ("stack", ([X, X],), {}),
    ("stack", ([X, X],), {"axis": -1}), ("stack", (X,), {"axis": 1}), ("hstack", ([X, X],), {}),
    ("hstack", ([1, 2.0],), {}),
    ("vstack", ([X[0, 0], X[1, 0]],), {}), ("flip", (X,), {}), ("flip", (X, 1), {}), ("flip", (X, [0, -1]), {}),
    ("split", (X, 2), {}), ("split", (X, 3), {"axis": 1}), ("split", (X, [1, 3]), {"axis": 2}),
    ("split", (X, (3, 1, 9)), {"axis": 2}), ("copy", (X,), {}), ("astype", (X, "int8"), {}), ("astype", (X, bool), {}),
]  # fmt: skip


@only_cpu
@pytest.mark.parametrize(("name", "args", "kwargs"), SAME)
def test_functions_have_numpy_s_values(name: str, args: tuple, kwargs: dict, platform: Platform) -> None:
    truth, got = getattr(np, name)(*args, **kwargs), getattr(jnp, name)(*args, **kwargs)
    assert isinstance(got, list) == isinstance(truth, list)
    for t, g in zip(*([truth, got] if isinstance(truth, list) else [[truth], [got]]), strict=True):
        np.testing.assert_array_equal(np.asarray(g), t)
        assert g.shape == t.shape


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: x.reshape(4, 4, 2), P("x", "y")),
        (jnp.ravel, P(("x", "y"))),
        (lambda x: x.T, P("y", "x")),
        (lambda x: jnp.moveaxis(x, 0, 1), P("y", "x")),
        (lambda x: jnp.expand_dims(x, 1), P("x", None, "y")),
        (lambda x: jnp.squeeze(jnp.expand_dims(x, 0), 0), P("x", "y")),
        (jnp.flip, P("x", "y")),
        (lambda x: jnp.broadcast_to(x, (2, 4, 8)), P(None, "x", "y")),
        (lambda x: jnp.concatenate([x, x]), P("x", "y")),
        (lambda x: jnp.stack([x, x], axis=1), P("x", None, "y")),
        (lambda x: jnp.split(x, 2, axis=1)[1], P("x", "y")),
        (lambda x: x.astype("int8"), P("x", "y")),
        (jnp.copy, P("x", "y")),
    ],
)
def test_specs_follow(call: object, expected: P, platform: Platform) -> None:
    x = put(counted(4, 8), "x", "y")
    out = call(x)
    assert spec_of(out) == expected
    alone = call(jnp.asarray(counted(4, 8)))
    np.testing.assert_array_equal(np.asarray(out), np.asarray(alone))
    inside = cuplace.jit(call)(x)
    np.testing.assert_array_equal(np.asarray(inside), np.asarray(alone))
    assert spec_of(inside) == expected


def test_auto_axes_never_fail(platform: Platform) -> None:
    x = put(counted(8, 8), "x", "y", kind=AxisType.Auto)
    np.testing.assert_array_equal(np.asarray(x.reshape(4, 16)), counted(4, 16))
    y = put(counted(8, 8), "y", kind=AxisType.Auto)
    np.testing.assert_array_equal(np.asarray(jnp.stack([x, y])), np.stack([counted(8, 8)] * 2))
    np.testing.assert_array_equal(np.asarray(jnp.split(x, 4, 1)[3]), counted(8, 8)[:, 6:])


def test_a_layout_can_be_asked_for(platform: Platform) -> None:
    x = put(counted(8), "x")
    with pytest.raises(errors.ShardingTypeError, match="This reshape is not supported"):
        put(counted(8), "y").reshape(2, 4)
    wanted = NamedSharding(grid(), P("x", "y"))
    out = jnp.reshape(put(counted(8), "y"), (2, 4), out_sharding=wanted)
    assert out.sharding.is_equivalent_to(wanted, 2)
    np.testing.assert_array_equal(np.asarray(out), counted(2, 4))
    assert spec_of(jnp.broadcast_to(x, (4, 8), out_sharding=NamedSharding(grid(), P("y", "x")))) == P("y", "x")
    with cuplace.set_mesh(grid()):
        assert spec_of(jnp.ravel(put(counted(2, 4), "x"), out_sharding=P("y"))) == P("y")


@only_cpu
def test_the_same_array_comes_back_where_nothing_changes(platform: Platform) -> None:
    x = jnp.arange(4)
    assert x.astype("int32") is x
    assert x.reshape(4) is x
    assert x[...] is x
    assert jnp.copy(x) is not x
    assert x.astype("int32", copy=True) is not x
    device = cuplace.devices()[1]
    assert x.astype("float32", device=device).devices() == {device}


@only_cpu
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: jnp.reshape(X, (5, -1)), TypeError, r"the product of specified axis sizes \(5\) does not"),
        (lambda: jnp.reshape(X, (-1, -1)), TypeError, "can only specify one unknown axis size"),
        (lambda: jnp.reshape(X, (4, 4)), TypeError, r"cannot reshape array of shape \(2, 3, 4\)"),
        (lambda: jnp.reshape(X, (-2, 3)), TypeError, "must all be positive"),
        (lambda: jnp.reshape(X, (2.0, 3)), TypeError, "Shapes must be 1D sequences of concrete values of integer type"),
        (lambda: jnp.reshape(X, 24, order="A"), NotImplementedError, "orders 'C' and 'F'"),
        (lambda: jnp.reshape(X, 24, order="X"), ValueError, "^Unexpected value for 'order' argument: X"),
        (lambda: jnp.squeeze(X, 0), ValueError, "cannot select an axis to squeeze out which has size not equal to one"),
        (lambda: jnp.expand_dims(X, 5), ValueError, "axis 5 is out of bounds for array of dimension 4"),
        (lambda: jnp.transpose(X, (0, 0, 1)), TypeError, "isn't a permutation of operand dimensions"),
        (lambda: jnp.transpose(X, (0, 1, 3)), ValueError, "axis 3 is out of bounds for array of dimension 3"),
        (lambda: jnp.matrix_transpose(X[0, 0]), ValueError, "^x must be at least two-dimensional for matrix_transpose"),
        (lambda: jnp.matrix_transpose([[1]]), TypeError, "^matrix_transpose requires ndarray or scalar arguments"),
        (lambda: jnp.swapaxes(X, 0, 5), ValueError, "axis 5 is out of bounds"),
        (lambda: jnp.swapaxes(None, 0, 1), TypeError, "^swapaxes requires .* arguments, got <class 'None"),
        (lambda: jnp.moveaxis(X, [0, 1], [0]), ValueError, "Inconsistent number of elements: 2 vs 1"),
        (lambda: jnp.broadcast_to(X, (3, 4)), ValueError, "Cannot broadcast to shape with fewer dimensions"),
        (lambda: jnp.concatenate([]), ValueError, "Need at least one array to concatenate"),
        (lambda: jnp.concatenate([1, 2]), ValueError, "Zero-dimensional arrays cannot be concatenated"),
        (lambda: jnp.concatenate([X, 2]), TypeError, "^Cannot concatenate arrays with different numbers of dimensions"),
        (lambda: jnp.concatenate([1, X]), TypeError, r"different numbers of dimensions: got \(\), \(2, 3, 4\)\.$"),
        (lambda: jnp.concatenate([X, None]), TypeError, "^concatenate requires .*<class 'NoneType'> at position 1"),
        (lambda: jnp.concatenate([X, [1]]), TypeError, "^concatenate requires .*, got <class 'list'> at position 1"),
        (lambda: jnp.stack([X, 2]), ValueError, "^Cannot stack arrays with different numbers of dimensions: got"),
        (lambda: jnp.concatenate([X], axis=3), ValueError, "axis 3 is out of bounds for array of dimension 3"),
        (lambda: jnp.stack([]), ValueError, "Need at least one array to stack"),
        (lambda: jnp.stack([X, X], axis=5), ValueError, "axis 5 is out of bounds for array of dimension 4"),
        (lambda: jnp.split(X, 5), ValueError, "array split does not result in an equal division"),
        (lambda: jnp.split(X, -1), ValueError, "The number of parts must be 1 or more, got -1"),
        (lambda: jnp.split(X, 0), ZeroDivisionError, "modulo by zero"),
        (lambda: jnp.flip(X, 3), ValueError, "axis 3 is out of bounds"),
        (lambda: jnp.astype(X, "foo"), TypeError, "data type 'foo' not understood"),
        (lambda: jnp.astype(X, object), TypeError, "got dtype <class 'object'> in astype"),
    ],
)  # fmt: skip
def test_arguments_that_are_refused(call: object, error: type, text: str, platform: Platform) -> None:
    with pytest.raises(error, match=text):
        call()


@only_cpu
def test_joined_arrays_promote(platform: Platform) -> None:
    assert jnp.concatenate([np.int8([1]), np.float16([2])]).dtype == np.float16
    assert jnp.concatenate([np.int8([1])], dtype="int32").dtype == np.int32
    assert jnp.stack([1, 2.0]).dtype == np.float32
