from __future__ import annotations

import warnings

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import PartitionSpec as P
from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform
from tests.numpy.places import counted, grid, put

only_cpu = pytest.mark.parametrize("platform", ["cpu"], indirect=True)


@only_cpu
@pytest.mark.parametrize(
    ("call", "expected", "dtype", "weak"),
    [
        (lambda: jnp.zeros((2, 2)), np.zeros((2, 2)), "float32", False),
        (lambda: jnp.zeros(2, int), np.zeros(2), "int32", False),
        (lambda: jnp.ones([2], bool), np.ones(2), "bool", False),
        (lambda: jnp.full(2, 3), [3, 3], "int32", True),
        (lambda: jnp.full((2,), np.float16(3)), [3, 3], "float16", False),
        (lambda: jnp.full((2, 2), [1, 2.0]), [[1, 2], [1, 2]], "float32", False),
        (lambda: jnp.full(2, 300, "uint8"), [44, 44], "uint8", False),
        (lambda: jnp.full((), True), True, "bool", False),
        (lambda: jnp.empty(2).shape[0] * jnp.ones(()), 2, "float32", False),
        (lambda: jnp.zeros_like(3), 0, "int32", True),
        (lambda: jnp.ones_like(np.int8([5, 5])), [1, 1], "int8", False),
        (lambda: jnp.full_like(np.int8([5, 5]), 2.7), [2, 2], "int8", False),
        (lambda: jnp.full_like(np.int8([5, 5]), 2.5, dtype=float), [2.5, 2.5], "float32", False),
        (lambda: jnp.zeros_like(np.ones(3, np.float32), "int8", (2, 2)), np.zeros((2, 2)), "int8", False),
        (lambda: jnp.arange(5), range(5), "int32", False),
        (lambda: jnp.arange(4.0), range(4), "float32", False),
        (lambda: jnp.arange(10, 0, -3), [10, 7, 4, 1], "int32", False),
        (lambda: jnp.arange(0, 1, 0.25), [0, 0.25, 0.5, 0.75], "float32", False),
        (lambda: jnp.arange(2, dtype="int8"), [0, 1], "int8", False),
        (lambda: jnp.arange(np.int8(3)), [0, 1, 2], "int8", False),
        (lambda: jnp.arange(jnp.int32(1), 3), [1, 2], "int32", False),
        (lambda: jnp.arange(3, 1), [], "int32", False),
        (lambda: jnp.linspace(0, 1, 5), [0, 0.25, 0.5, 0.75, 1], "float32", False),
        (lambda: jnp.linspace(0, 1, 4, endpoint=False), [0, 0.25, 0.5, 0.75], "float32", False),
        (lambda: jnp.linspace(0, 10, 3, dtype=int), [0, 5, 10], "int32", False),
        (lambda: jnp.linspace(-1, 0, 3, dtype="int8"), [-1, -1, 0], "int8", False),
        (lambda: jnp.linspace(3, 4, 1), [3], "float32", False),
        (lambda: jnp.linspace(3, 4, 0), [], "float32", False),
        (lambda: jnp.linspace(np.float32([0, 1]), 1, 3, axis=1), [[0, 0.5, 1], [1, 1, 1]], "float32", False),
        (lambda: jnp.eye(2, 3), np.eye(2, 3), "float32", False),
        (lambda: jnp.eye(3, k=1, dtype=int), np.eye(3, k=1), "int32", False),
        (lambda: jnp.identity(2), np.eye(2), "float32", False),
    ],
)
def test_values_and_dtypes(call: object, expected: object, dtype: str, weak: bool, platform: Platform) -> None:
    got = call()
    np.testing.assert_array_equal(
        np.asarray(got), np.asarray(list(expected) if isinstance(expected, range) else expected)
    )
    assert (got.dtype.name, got.weak_type, got.committed) == (dtype, weak, False)


@only_cpu
def test_counts_are_as_exact_as_numpy_s(platform: Platform) -> None:
    for start, stop, step in ((1.0, 3.0, 0.3), (0, 1, 1e-4), (1e6, 1e6 + 3, 0.1)):
        truth = np.arange(start, stop, step).astype(np.float32)
        np.testing.assert_allclose(np.asarray(jnp.arange(start, stop, step)), truth, rtol=1e-7)
    ends = jnp.linspace(0.1, 0.7, 7)
    assert (float(ends[0]), float(ends[-1])) == (np.float32(0.1), np.float32(0.7))
    values, step = jnp.linspace(0, 1, 3, retstep=True)
    assert (values.tolist(), float(step)) == ([0, 0.5, 1], 0.5)


CREATED = [
    (lambda **k: jnp.zeros((4, 8), **k), np.zeros((4, 8))),
    (lambda **k: jnp.ones((4, 8), **k), np.ones((4, 8))),
    (lambda **k: jnp.full((4, 8), 3, **k), np.full((4, 8), 3)),
    (lambda **k: jnp.eye(4, 8, k=1, **k), np.eye(4, 8, k=1)),
    (lambda **k: jnp.zeros_like(counted(4, 8), **k), np.zeros((4, 8))),
    (lambda **k: jnp.full_like(counted(4, 8), 2, **k), np.full((4, 8), 2)),
    (lambda **k: jnp.array(counted(4, 8), **k), counted(4, 8)),
    (lambda **k: jnp.asarray(counted(4, 8).tolist(), **k), counted(4, 8)),
    (lambda **k: jnp.linspace(np.zeros(8, np.float32), 3, 4, **k), np.linspace(np.zeros(8), 3, 4)),
]


@pytest.mark.parametrize(("call", "truth"), CREATED)
def test_each_device_makes_its_part(call: object, truth: np.ndarray, platform: Platform) -> None:
    for spec in (P("x", "y"), P(None, ("y", "x")), P()):
        sharding = NamedSharding(grid(), spec)
        got = call(device=sharding)
        assert got.committed
        assert got.sharding == sharding
        for shard in got.addressable_shards:
            np.testing.assert_allclose(np.asarray(shard.data), truth[shard.index], rtol=1e-6)
    device = cuplace.devices()[3]
    assert call(device=device).devices() == {device}


def test_counting_over_devices(platform: Platform) -> None:
    got = jnp.arange(3, 19, device=NamedSharding(grid(), P(("y", "x"))))
    for shard in got.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), np.arange(3, 19)[shard.index])


def test_what_is_like_an_array_is_where_it_is(platform: Platform) -> None:
    x = put(counted(4, 8), "x", "y")
    for made in (jnp.zeros_like(x), jnp.full_like(x, 2, dtype="int8"), jnp.ones_like(x), jnp.empty_like(x)):
        assert made.committed
        assert made.sharding.is_equivalent_to(x.sharding, 2)
    assert not jnp.zeros_like(jnp.arange(3)).committed
    placed = cuplace.device_put(np.float32([1]), cuplace.devices()[2])
    assert jnp.zeros_like(placed).devices() == {cuplace.devices()[2]}


def test_new_arrays_go_to_the_default_device_or_the_context_mesh(platform: Platform) -> None:
    device = cuplace.devices()[5]
    with cuplace.default_device(device):
        assert jnp.zeros(2).devices() == jnp.array([1]).devices() == {device}
    with cuplace.set_mesh(grid()):
        for made in (
            jnp.zeros(8),
            jnp.arange(8),
            jnp.array([1.0, 2.0]),
            jnp.float32(3),
            jnp.asarray(np.ones(2, np.int8)),
        ):
            assert made.committed
            assert made.sharding.is_equivalent_to(NamedSharding(grid(), P()), made.ndim)


def test_a_device_that_is_asked_for_wins_over_the_context_mesh(platform: Platform) -> None:
    device = platform.devices[3]
    mine = cuplace.device_put(np.float32([1]), device)
    with cuplace.set_mesh(grid()):
        for made in (
            jnp.zeros(8, device=device), jnp.arange(8, device=device), jnp.linspace(0, 1, 3, device=device),
            jnp.asarray(jnp.asarray(2.5, device=device), device=device), jnp.zeros_like(mine), jnp.full_like(mine, 2),
        ):  # fmt: skip
            assert (made.devices(), made.committed) == ({device}, True)
        assert jnp.zeros(8).devices() == jnp.zeros_like(jnp.zeros(8)).devices() == set(grid().flat_devices)


def test_creation_inside_jit(platform: Platform) -> None:
    f = cuplace.jit(lambda a: a + jnp.arange(8.0) * jnp.ones((4, 1)) + jnp.zeros_like(a))
    np.testing.assert_array_equal(np.asarray(f(put(counted(4, 8), "x", "y"))), counted(4, 8) + np.arange(8))


@only_cpu
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: jnp.zeros((2, -1)), TypeError, "must have every element be nonnegative"),
        (lambda: jnp.zeros(2.5), TypeError, r"Shapes must be 1D sequences of concrete values of integer type, got \(2"),
        (lambda: jnp.zeros(2, object), TypeError, "got dtype <class 'object'> in zeros"),
        (lambda: jnp.zeros(2, "foo"), TypeError, "data type 'foo' not understood"),
        (lambda: jnp.arange(0, 1, 0), ZeroDivisionError, "division"),
        (lambda: jnp.arange("a"), TypeError, "is not a valid JAX type"),
        (lambda: jnp.arange(None), TypeError, "^arange requires .*, or None arguments, got <class 'NoneType'>"),
        (lambda: jnp.arange(0, [3]), TypeError, "^arange requires .*, or None arguments, got <class 'list'>"),
        (lambda: jnp.arange(True), TypeError, r"^iota does not accept dtype bool\. Accepted dtypes are subtypes of"),
        (lambda: jnp.arange(3, dtype=bool), TypeError, r"^iota does not accept dtype bool\."),
        (lambda: jnp.arange(0, 3j), ValueError, "^Passing complex start/stop/step to jnp.arange is no"),
        (lambda: jnp.arange(jnp.arange(3)), ValueError, r"^jax.numpy.arange: arguments must be scalars; got \[0 1 2\]"),
        (lambda: jnp.zeros_like([1]), TypeError, "^zeros_like requires .* arguments, got <class 'list'>"),
        (lambda: jnp.full(2, None), TypeError, "^full requires ndarray or scalar arguments, got <class 'NoneType'>"),
        (lambda: jnp.linspace(None, 1), TypeError, "^linspace requires .* arguments, got <class 'NoneTy"),
        (lambda: jnp.linspace(0, 1, -1), ValueError, "Number of samples, -1, must be non-negative"),
        (lambda: jnp.eye(-1), ValueError, "negative dimensions are not allowed"),
        (lambda: jnp.eye(2.5), TypeError, "Shapes must be 1D sequences"),
        (lambda: jnp.full(2, np.ones(3, np.float32)), ValueError, "Incompatible types for broadcasting"),
        (lambda: jnp.zeros(7, device=NamedSharding(grid(), P("x"))), ValueError, "partitioned 2 times"),
        (lambda: jnp.zeros(2, device="cpu"), ValueError, "only accepts"),
    ],
)  # fmt: skip
def test_arguments_that_are_refused(call: object, error: type, text: str, platform: Platform) -> None:
    with pytest.raises(error, match=text):
        call()


@only_cpu
def test_64_bit_types_by_name(platform: Platform) -> None:
    with pytest.warns(UserWarning, match="Explicitly requested dtype float64 requested in zeros is not available"):
        assert jnp.zeros(2, "float64").dtype == np.float32
    config.update("enable_x64", True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jnp.zeros(2).dtype == np.float64
        assert jnp.arange(2**40, 2**40 + 2).tolist() == [2**40, 2**40 + 1]
