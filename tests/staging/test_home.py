"""Which devices a call runs on."""

from __future__ import annotations

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import errors
from cuplace.placement.sharding import NamedSharding, SingleDeviceSharding
from cuplace.placement.spec import P
from tests.array.places import numbers, on, places


def test_nothing_committed_runs_on_the_default_device(platform):
    x = jnp.arange(8.0) + 1
    assert (x.committed, x.sharding) == (False, SingleDeviceSharding(platform.devices[0]))
    with cuplace.default_device(platform.devices[3]):
        y = x + 1
        assert (y.committed, y.devices()) == (False, {platform.devices[3]})
    assert (y + 1).devices() == {platform.devices[0]}


def test_uncommitted_operands_follow(platform):
    at, u = places(platform), jnp.arange(8.0)
    for sharding in (on(at.a, "x"), SingleDeviceSharding(platform.devices[5]), on(at.m0), on(at.auto, "x")):
        x = cuplace.device_put(numbers(8), sharding)
        for y in (x + u, u + x, x + 1, 2.0 * x, x + numbers(8), np.float32(1) + x):
            assert y.committed
            assert y.sharding.is_equivalent_to(sharding, 1)
        np.testing.assert_array_equal(np.asarray(x + u), 2 * numbers(8))


def test_a_mesh_wins_over_a_single_device(platform):
    at = places(platform)
    x, y = cuplace.device_put(numbers(8), platform.devices[0]), cuplace.device_put(numbers(8), on(at.m0))
    assert (x + y).sharding.mesh is (y + x).sharding.mesh is at.m0


@pytest.mark.parametrize(
    ("left", "right"), [("a", "b"), ("a", 0), (0, 1), ("full", "reverse"), (1, "m0"), ("b", "full")]
)
def test_operands_committed_to_different_devices(platform, left, right):
    at = places(platform)

    def put(where):
        mesh = getattr(at, where) if isinstance(where, str) else None
        return cuplace.device_put(1.0, on(mesh) if mesh is not None else platform.devices[where])

    x, y = put(left), put(right)
    expected = errors.MeshMismatchError if (left, right) == ("b", "full") else errors.IncompatibleDevicesError
    with pytest.raises(expected) as caught:
        x + y
    if expected is errors.IncompatibleDevicesError:
        name = platform.devices[0].platform.upper()
        ids = [[d.id for d in v.sharding.flat_devices] for v in (x, y)]
        assert str(caught.value).splitlines()[0] == (
            "Received incompatible devices for jitted computation. Got argument x of add with shape float32[] and with "
            f"device ids {ids[0]} on platform {name} and argument y of add with shape float32[] and with device ids "
            f"{ids[1]} on platform {name}"
        )
        assert f"{__name__.split('.')[-1]}.py" in str(caught.value)


def test_captured_arrays_count_as_arguments(platform):
    at = places(platform)
    xa, xb = (cuplace.device_put(numbers(8), on(mesh, "x")) for mesh in (at.a, at.b))
    assert cuplace.jit(lambda: xb * 2)().sharding == on(at.b, "x")
    assert cuplace.jit(lambda u: u + xb)(numbers(8)).sharding.mesh is at.b
    with pytest.raises(ValueError, match=r"argument a of .*<lambda> with .* and captured array with shape float32\["):
        cuplace.jit(lambda a: a + xb)(xa)


def test_unused_arguments_do_not_count(platform):
    at = places(platform)
    xa, xb = (cuplace.device_put(numbers(8), on(mesh, "x")) for mesh in (at.a, at.b))
    assert cuplace.jit(lambda a, b: a * 2)(xa, xb).sharding.mesh is at.a
    assert cuplace.jit(lambda a, b: b * 2)(xa, xb).sharding.mesh is at.b
    with pytest.raises(errors.IncompatibleDevicesError):
        cuplace.jit(lambda a, b: a * 2, keep_unused=True)(xa, xb)
    with pytest.raises(errors.IncompatibleDevicesError):
        cuplace.jit(lambda a, b: (a, b))(xa, xb)


def test_everything_a_committed_call_returns_is_committed(platform):
    at = places(platform)
    xa = cuplace.device_put(numbers(8), on(at.a, "x"))
    results = cuplace.jit(lambda a, u: (a + 1, u + 1, u, 3.0, jnp.zeros(4)))(xa, jnp.arange(8.0))
    assert all(r.committed and r.sharding.mesh is at.a for r in results)
    assert results[0].sharding == on(at.a, "x")
    assert results[1].sharding == on(at.a)
    free = cuplace.jit(lambda a: 3.0)(xa)
    assert (free.committed, free.devices()) == (False, {platform.devices[0]})


def test_in_shardings_place_what_is_uncommitted(platform):
    at = places(platform)
    for x in (numbers(8), jnp.arange(8.0)):
        y = cuplace.jit(lambda x: x + 1, in_shardings=on(at.b, "x"))(x)
        assert (y.committed, y.sharding.mesh) == (True, at.b)
        np.testing.assert_array_equal(np.asarray(y), numbers(8) + 1)
    with pytest.raises(ValueError, match=r"Got ARG_SHARDING with device ids .* and ARG_SHARDING with device ids"):
        cuplace.jit(lambda a, b: a + b, in_shardings=(on(at.a, "x"), on(at.b, "x")))(numbers(8), numbers(8))


def test_out_shardings_decide_where_nothing_else_does(platform):
    at = places(platform)
    y = cuplace.jit(lambda x: x + 1, out_shardings=on(at.b, "x"))(jnp.arange(8.0))
    assert (y.committed, y.sharding) == (True, on(at.b, "x"))
    xa = cuplace.device_put(numbers(8), on(at.a, "x"))
    assert cuplace.jit(lambda x: x + 1, out_shardings=on(at.a))(xa).sharding == on(at.a)
    with pytest.raises(ValueError, match=r"argument x of .* and explicit output sharding with device ids"):
        cuplace.jit(lambda x: x + 1, out_shardings=on(at.b, "x"))(xa)


def test_the_context_mesh(platform):
    at, u = places(platform), jnp.arange(8.0)
    x0 = cuplace.device_put(numbers(8), platform.devices[0])
    with cuplace.set_mesh(at.full):
        for y in (jnp.arange(8.0), u + 1, jnp.sin(numbers(8)), cuplace.jit(lambda x: x * 2)(u)):
            assert (y.committed, y.sharding) == (True, NamedSharding(at.full, P(None)))
        with pytest.raises(ValueError, match="and jit's context mesh with device ids"):
            x0 + 1
        assert cuplace.jit(lambda x: x + 1, out_shardings=P("x"))(u).sharding == on(at.full, "x")
    assert not (u + 1).committed


def test_results_inherit_the_line_of_commitment(platform):
    x = cuplace.device_put(numbers(8), platform.devices[1])
    y = jnp.sin(2 * x + x) + numbers(8)
    assert y._origin == x._origin


def test_equal_meshes_of_auto_axes_may_mix(platform):
    at = places(platform)
    other = cuplace.Mesh(np.array(platform.devices), ("z",))
    x, z = cuplace.device_put(numbers(8), on(at.auto, "x")), cuplace.device_put(numbers(8), on(other, "z"))
    assert (x + z).sharding.mesh is at.auto
    np.testing.assert_array_equal(np.asarray(x + z), 2 * numbers(8))
