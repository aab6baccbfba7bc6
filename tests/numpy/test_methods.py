from __future__ import annotations

import operator

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace.array.array import Array
from cuplace.placement.spec import PartitionSpec as P
from cuplace.runtime.platform import Platform
from tests.numpy.places import counted, put, spec_of

only_cpu = pytest.mark.parametrize("platform", ["cpu"], indirect=True)
X = np.float32([[1, -2, 3.5], [4, 0.5, -6]])
N = np.int32([6, 3, -5])

ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, divmod]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
BITS = [operator.and_, operator.or_, operator.xor]


def assert_same(got: object, truth: object) -> None:
    for g, t in zip(got, truth, strict=True) if isinstance(truth, tuple) else [(got, truth)]:
        assert isinstance(g, Array)
        np.testing.assert_allclose(np.asarray(g), t, rtol=1e-6)


@only_cpu
@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARISONS], ids=lambda op: op.__name__)
@pytest.mark.parametrize("other", [2, 2.5, np.float32([1, 2, 4]), np.float32(3), X], ids=str)
def test_binary_operators(op: object, other: object, platform: Platform) -> None:
    x = jnp.asarray(X)
    narrow = np.float32(other) if isinstance(other, float) else other
    assert_same(op(x, other), op(X, narrow))
    assert_same(op(x, jnp.asarray(other)), op(X, narrow))
    with np.errstate(all="ignore"):
        assert_same(op(other, x), op(narrow, X))


@only_cpu
def test_operators_of_integers(platform: Platform) -> None:
    n = jnp.asarray(N)
    for op in BITS:
        assert_same(op(n, 3), op(N, 3))
        assert_same(op(3, n), op(3, N))
        assert_same(op(n > 0, n < 4), op(N > 0, N < 4))
    assert_same(n << 2, N << 2)
    assert_same(1 << jnp.abs(n), 1 << np.abs(N))
    assert_same(n >> 1, N >> 1)
    assert_same(64 >> jnp.abs(n), 64 >> np.abs(N))
    assert_same(~n, ~N)
    assert_same(n**2, N**2)
    assert_same(2 ** jnp.abs(n), 2 ** np.abs(N))


@only_cpu
def test_unary_operators_and_products(platform: Platform) -> None:
    x = jnp.asarray(X)
    assert_same(-x, -X)
    assert_same(+x, X)
    assert_same(abs(x), abs(X))
    whole = round(x)
    assert whole.dtype == np.int32
    np.testing.assert_array_equal(np.asarray(whole), np.round(X))
    assert round(jnp.int8(3)).dtype == np.int32
    assert_same(round(x, 1), np.round(X, 1))
    assert_same(x @ X.T, X @ X.T)
    assert_same(X @ x.T, X @ X.T)
    assert_same(x**-1.0, X**-1.0)
    assert_same(abs(x[0]) ** x[1], abs(X[0]) ** X[1])


METHODS = [
    ("reshape", (3, 2)), ("reshape", ((-1,),)), ("reshape", (3, -1)), ("ravel", ()), ("flatten", ()), ("squeeze", ()),
    ("swapaxes", (0, 1)), ("transpose", ()), ("transpose", (1, 0)), ("transpose", ((0, 1),)), ("copy", ()), ("sum", ()),
    ("sum", (0,)), ("prod", ()), ("mean", (1,)), ("var", ()), ("std", ()), ("max", ()), ("min", (0,)), ("any", ()),
    ("all", (1,)), ("argmax", ()), ("argmin", (1,)), ("cumsum", (0,)), ("cumprod", (1,)), ("clip", (0, 2)),
    ("round", (1,)), ("conj", ()), ("conjugate", ()), ("dot", (X.T,)), ("take", (np.int32([0, 1]),)),
    ("astype", ("int8",)),
]  # fmt: skip


@only_cpu
@pytest.mark.parametrize(("name", "args"), METHODS)
def test_methods(name: str, args: tuple, platform: Platform) -> None:
    assert_same(getattr(jnp.asarray(X), name)(*args), getattr(X, name)(*args))
    traced = cuplace.jit(lambda x: getattr(x, name)(*args))(X)
    assert_same(traced, getattr(X, name)(*args))


@only_cpu
def test_properties_and_sorting(platform: Platform) -> None:
    x = jnp.asarray(X)
    assert_same(x.T, X.T)
    assert_same(x.mT, X.T)
    assert_same(x.real, X)
    assert_same(x.imag, X * 0)
    assert_same(x.sort(), np.sort(X))
    assert_same(x.argsort(axis=0), np.argsort(X, axis=0))


@only_cpu
@pytest.mark.parametrize("other", [[1], (1,), {1}, {"a": 1}])
def test_lists_are_refused(other: object, platform: Platform) -> None:
    x = jnp.arange(3)
    name = type(other).__name__
    for op, symbol in ((operator.add, r"\+"), (operator.eq, "=="), (operator.matmul, "@")):
        with pytest.raises(TypeError, match=rf"^unsupported operand type\(s\) for {symbol}: 'Array' and '{name}'"):
            op(x, other)
    with pytest.raises(TypeError, match=rf"^unsupported operand type\(s\) for \+: '{name}' and 'Array'"):
        other + x


@only_cpu
def test_other_objects_are_left_to_python(platform: Platform) -> None:
    x = jnp.arange(3)
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True
    for other in ("a", None, object()):
        with pytest.raises(TypeError, match="unsupported operand"):
            x + other
        with pytest.raises(TypeError, match="not supported between instances"):
            operator.lt(x, other)
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)


@only_cpu
def test_numpy_gives_way_to_arrays(platform: Platform) -> None:
    for out in (X + jnp.asarray(X), np.float32(2) * jnp.asarray(X), X @ jnp.asarray(X.T), jnp.asarray(X) < X):
        assert isinstance(out, Array)


def test_operators_follow_committed_operands(platform: Platform) -> None:
    x = put(counted(4, 8), "x", "y")
    out = 2 * x + np.ones(8, np.float32) - jnp.float32(1)
    assert spec_of(out) == P("x", "y")
    np.testing.assert_array_equal(np.asarray(out), counted(4, 8) * 2)
    placed = cuplace.device_put(X, cuplace.devices()[3])
    assert (1 - placed).devices() == {cuplace.devices()[3]}


def test_traced_values_can_be_unpacked(platform: Platform) -> None:
    def swap(pair: Array) -> Array:
        a, b = pair
        return jnp.stack([b, a, *list(pair)])

    assert cuplace.jit(swap)(jnp.arange(2)).tolist() == [1, 0, 0, 1]
    with pytest.raises(TypeError, match="iteration over a 0-d array"):
        cuplace.jit(list)(1.0)
