from __future__ import annotations

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import errors
from tests.array.places import numbers, on, places


def test_donated_arguments_are_consumed(platform):
    at = places(platform)
    for sharding in (None, platform.devices[1], on(at.full, "x")):
        x, y = (cuplace.device_put(numbers(8), sharding) for _ in range(2))
        f = cuplace.jit(lambda x, y: x + y, donate_argnums=0)
        for _ in range(2):
            out = f(x, y)
            assert x.is_deleted()
            assert not y.is_deleted()
            np.testing.assert_array_equal(np.asarray(out), 2 * numbers(8))
            with pytest.raises(RuntimeError, match="Array has been deleted"):
                x + 1
            x = cuplace.device_put(numbers(8), sharding)


def test_by_name_and_inside_pytrees(platform):
    tree = {"a": jnp.arange(3), "b": jnp.arange(3)}
    y = jnp.arange(3)
    cuplace.jit(lambda t, y: (t["a"] + y, t["b"]), donate_argnames="t")(tree, y=y)
    assert tree["a"].is_deleted()
    assert tree["b"].is_deleted()
    z = jnp.arange(3)
    cuplace.jit(lambda t, z: t + z, donate_argnames=("z",))(y, z=z)
    assert z.is_deleted()
    assert not y.is_deleted()


def test_a_jitted_function_that_is_jitted_again_has_options_of_its_own(platform):
    x, y = jnp.arange(3.0), jnp.arange(3.0)
    inner = cuplace.jit(lambda x: x + 1)
    outer = cuplace.jit(inner, donate_argnums=0)
    np.testing.assert_array_equal(np.asarray(outer(x)), [1, 2, 3])
    np.testing.assert_array_equal(np.asarray(inner(y)), [1, 2, 3])
    assert (x.is_deleted(), y.is_deleted()) == (True, False)
    assert outer.__wrapped__ is inner
    assert inner.cache_info().traces == 1


def test_what_no_result_can_use_stays_alive_with_a_warning(platform):
    x = jnp.arange(8.0)
    with pytest.warns(UserWarning, match=r"Some donated buffers were not usable: float32\[8\]"):
        total = cuplace.jit(lambda x: x.sum(), donate_argnums=0)(x)
    assert float(total) == 28
    assert not x.is_deleted()


def test_each_result_serves_one_argument(platform):
    x, y = jnp.arange(3.0), jnp.arange(3.0)
    with pytest.warns(UserWarning, match="not usable"):
        cuplace.jit(lambda x, y: x + y, donate_argnums=(0, 1))(x, y)
    assert (x.is_deleted(), y.is_deleted()) == (True, False)


@pytest.mark.parametrize("captured", [False, True])
def test_a_donated_array_is_used_once(platform, captured):
    x = jnp.arange(3.0)
    f = cuplace.jit((lambda a: a + x) if captured else (lambda a, b: a + b), donate_argnums=0)
    with pytest.raises(errors.DonationError, match="previously donated in the same call"):
        f(x) if captured else f(x, x)
    np.testing.assert_array_equal(np.asarray(x), [0, 1, 2])


def test_host_values_and_unused_arguments_are_not_touched(platform):
    values, unused = numbers(3), jnp.arange(3.0)
    cuplace.jit(lambda a, b: a + 1, donate_argnums=(0, 1))(values, unused)
    np.testing.assert_array_equal(values, [0, 1, 2])
    assert not unused.is_deleted()


def test_a_donated_argument_may_be_returned(platform):
    x = jnp.arange(3.0)
    y = cuplace.jit(lambda x: x, donate_argnums=0)(x)
    assert x.is_deleted()
    np.testing.assert_array_equal(np.asarray(y), [0, 1, 2])


def test_donated_and_static_exclude_each_other(platform):
    with pytest.raises(ValueError, match="static_argnames and donate_argnames cannot intersect"):
        cuplace.jit(lambda a: a, static_argnums=0, donate_argnums=0)
    with pytest.raises(ValueError, match=r"donate_argnums=\(4,\), but only accepts 1"):
        cuplace.jit(lambda a: a, donate_argnums=4)
