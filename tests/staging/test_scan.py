from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import errors
from cuplace.lax import scan
from cuplace.placement.mesh import AxisType, make_mesh
from tests.array.places import numbers, on, places


def reference(f, carry, xs, length, reverse=False):
    """The loop in NumPy."""
    ys = [None] * length
    for i in range(length)[:: -1 if reverse else 1]:
        carry, ys[i] = f(carry, None if xs is None else xs[i])
    return carry, np.stack(ys)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_over_rows(platform, reverse):
    xs = numbers(5, 4) / 10
    carry, ys = scan(lambda c, x: (c + jnp.sin(x), c * 2), jnp.zeros(4), xs, reverse=reverse)
    expected = reference(lambda c, x: (c + np.sin(x), c * 2), np.zeros(4, np.float32), xs, 5, reverse)
    np.testing.assert_allclose(np.asarray(carry), expected[0], rtol=1e-5)
    np.testing.assert_allclose(np.asarray(ys), expected[1], rtol=1e-5)


def test_a_carry_that_changes_places(platform):
    (a, b), ys = scan(lambda c, _: ((c[1], c[0] + c[1]), c[0]), (jnp.int32(0), jnp.int32(1)), None, length=10)
    assert (int(a), int(b), [int(y) for y in ys]) == (55, 89, [0, 1, 1, 2, 3, 5, 8, 13, 21, 34])


def test_pytrees_and_none(platform):
    def body(c, x):
        return {"b": c["a"], "a": c["b"] + x["q"]}, None

    carry, ys = scan(body, {"a": jnp.zeros(2), "b": jnp.ones(2)}, {"q": numbers(3, 2)})
    assert ys is None
    np.testing.assert_array_equal(np.asarray(carry["a"]), [5, 7])
    np.testing.assert_array_equal(np.asarray(carry["b"]), [2, 3])


def test_lengths(platform):
    carry, ys = scan(lambda c, x: (c + 1, c), jnp.zeros(3), None, length=0)
    assert (carry.shape, ys.shape) == ((3,), (0, 3))
    assert int(scan(lambda c, x: (c + 1, None), 0, None, length=4)[0]) == 4
    for args, kwargs, text in (
        ((0.0, None), {}, "scan got no values to scan over and `length` not provided."),
        ((0.0, (numbers(3), numbers(4))), {}, "scan got values with different leading axis sizes: 3, 4."),
        ((0.0, numbers(3)), {"length": 7}, r"scan got `length` argument of 7 which disagrees with"),
        ((0.0, 1.0), {}, "scan got value with no leading axis to scan over: 1.0."),
    ):
        with pytest.raises(errors.LoopError, match=text):
            scan(lambda c, x: (c, None), *args, **kwargs)
    with pytest.raises(TypeError, match="`length` argument to `scan`"):
        scan(lambda c, x: (c, None), 0.0, None, length=2.5)
    with pytest.raises(errors.ConcretizationTypeError, match="The `length` argument to `scan` expects a concrete"):
        cuplace.jit(lambda n: scan(lambda c, x: (c, None), 0.0, None, length=n))(3)


@pytest.mark.parametrize("body", [lambda c, x: c, lambda c, x: (c, c, c), lambda c, x: None])
def test_the_body_returns_a_pair(platform, body):
    with pytest.raises(errors.LoopTypeError, match="scan body output must be a pair, got"):
        scan(body, jnp.zeros(3), None, length=2)


def test_the_body_is_a_function(platform):
    with pytest.raises(TypeError, match="f argument should be a callable"):
        scan(3, 0.0, None, length=1)


def test_the_carry_keeps_its_type(platform):
    with pytest.raises(errors.CarryTypeError, match=r"carry c has type float32\[4\].*float32\[3\], so the shapes"):
        scan(lambda c, x: (jnp.zeros(3), None), jnp.zeros(4), None, length=2)
    with pytest.raises(errors.CarryTypeError, match=r"component c\['b'\] has type float32\[\].* int32\[\], so"):
        scan(lambda c, x: ({"b": c["b"].astype(int)}, None), {"b": jnp.float32(0)}, None, length=2)
    with pytest.raises(errors.CarryTypeError, match="must have the same pytree structure"):
        scan(lambda c, x: ((c, c), None), jnp.zeros(4), None, length=2)


def test_weak_carries_are_promoted(platform):
    carry, _ = scan(lambda c, x: (c + x, None), 0, numbers(3))
    assert (carry.dtype, float(carry), carry.weak_type) == (np.float32, 3, False)


def test_the_body_is_traced_once(platform):
    traces = []

    def body(c, x):
        traces.append(c)
        return c + x, None

    for _ in range(3):
        scan(body, jnp.float32(0), numbers(4))
    assert len(traces) == 1


def test_bodies_are_not_kept_alive(platform):
    def run():
        def body(c, x):
            return c + x, None

        scan(body, 0.0, numbers(3))
        return weakref.ref(body)

    found = run()
    gc.collect()
    assert found() is None


def test_values_from_outside(platform):
    w = jnp.ones((4, 4)) / 4

    def outer(a, k):
        return scan(lambda c, x: (jnp.tanh(c @ w + x * k + a.sum()), c.sum()), a[0], a)

    a = numbers(3, 4) / 10
    carry, ys = cuplace.jit(outer)(a, 2.0)
    expected = reference(
        lambda c, x: (np.tanh(c @ np.asarray(w) + x * 2 + a.sum()), c.sum()), a[0], a, 3
    )
    np.testing.assert_allclose(np.asarray(carry), expected[0], rtol=1e-5)
    np.testing.assert_allclose(np.asarray(ys), expected[1], rtol=1e-5)


def test_loops_in_loops(platform):
    total, parts = scan(lambda c, row: scan(lambda d, y: (d + y, d), c, row), jnp.float32(0), numbers(3, 4))
    assert float(total) == 66
    np.testing.assert_array_equal(np.asarray(parts).ravel(), np.concatenate([[0], np.cumsum(numbers(12))[:-1]]))


def test_on_a_mesh(platform):
    at = places(platform)
    carry = cuplace.device_put(np.zeros(8, np.float32), on(at.full, "x"))
    xs = cuplace.device_put(numbers(3, 8), on(at.full, None, "x"))
    last, ys = scan(lambda c, x: (c + x, c), carry, xs)
    assert (last.sharding, ys.sharding) == (on(at.full, "x"), on(at.full, None, "x"))
    np.testing.assert_array_equal(np.asarray(last), numbers(3, 8).sum(0))
    with pytest.raises(ValueError, match=r"0th dimension of all xs should be replicated. Got P\('x', None\)"):
        scan(lambda c, x: (c, None), 0.0, cuplace.device_put(numbers(8, 3), on(at.full, "x")))
    with pytest.raises(errors.CarryTypeError, match=r"float32\[8\].*float32\[8@x\], so the shardings"):
        scan(lambda c, x: (c + x, None), cuplace.device_put(np.zeros(8, np.float32), on(at.full)), xs)


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_bodies_that_move_data(platform, kind):
    mesh = make_mesh((2, 4), ("x", "y"), (kind, kind), devices=platform.devices)

    def body(c, x):
        c = cuplace.device_put(c, on(mesh, "x", "y"))
        d = cuplace.device_put(jnp.sin(c.T) + x.sum(), on(mesh, None, "x"))
        return d / 10, d.sum(axis=0)

    carry = cuplace.device_put(np.eye(8, dtype=np.float32), on(mesh, None, "x"))
    xs = cuplace.device_put(numbers(3, 8) / 10, on(mesh, None, "y"))
    for call in (lambda: scan(body, carry, xs), lambda: cuplace.jit(lambda c, x: scan(body, c, x))(carry, xs)):
        last, ys = call()
        expected = reference(
            lambda c, x: ((np.sin(c.T) + x.sum()) / 10, (np.sin(c.T) + x.sum()).sum(0)),
            np.eye(8, dtype=np.float32), numbers(3, 8) / 10, 3,
        )  # fmt: skip
        np.testing.assert_allclose(np.asarray(last), expected[0], rtol=1e-4)
        np.testing.assert_allclose(np.asarray(ys), expected[1], rtol=1e-4)


def test_operands_on_different_devices(platform):
    x0, x1 = (cuplace.device_put(numbers(3), platform.devices[i]) for i in (0, 1))
    with pytest.raises(ValueError, match=r"Got argument args\[0\] of scan with .* and argument args\[1\] of scan"):
        scan(lambda c, x: (c + x, None), x0, cuplace.device_put(numbers(2, 3), platform.devices[1]))
    with pytest.raises(ValueError, match=r"argument args\[0\] of scan with .* and captured array"):
        scan(lambda c, x: (c + x1, None), x0, None, length=2)


def test_a_move_to_other_devices_inside(platform):
    at = places(platform)
    xa = cuplace.device_put(numbers(8), on(at.a, "x"))

    def body(c, x):
        return cuplace.device_put(c, on(at.b, "x")), None

    with pytest.raises(errors.IncompatibleDevicesError) as caught:
        scan(body, xa, None, length=3)
    line = str(caught.value).splitlines()[0]
    assert "Got argument args[0] of scan with shape float32[8@x] and with device ids [0, 1, 2, 3] on platform" in line
    assert "and device_put inside jit with device ids [4, 5, 6, 7] on platform" in line
    assert line.endswith("(test_a_move_to_other_devices_inside.<locals>.body)")
    with pytest.raises(ValueError, match=r"Got argument q of .*<lambda> with .*<locals>.body\)"):
        cuplace.jit(lambda q: scan(body, q, None, length=3))(xa)


def test_nothing_is_left_of_a_body_that_fails(platform):
    def body(c, x):
        raise KeyError("no")

    for _ in range(2):
        with pytest.raises(KeyError):
            scan(body, 0.0, None, length=2)
    assert float(jnp.float32(1) + 1) == 2


def test_large_loops_use_blocks(platform):
    xs = np.random.default_rng(0).standard_normal((3, 256, 256), dtype=np.float32)
    carry, ys = scan(lambda c, x: (jnp.sin(c) * x + 1, c.T), jnp.zeros((256, 256)), xs)
    expected = reference(lambda c, x: (np.sin(c) * x + 1, c.T), np.zeros((256, 256), np.float32), xs, 3)
    np.testing.assert_allclose(np.asarray(carry), expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(ys), expected[1], rtol=1e-5, atol=1e-6)
