"""Moves inside traced functions change the layout, never the devices."""

from __future__ import annotations

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import errors
from cuplace.placement.sharding import SingleDeviceSharding
from tests.array.places import numbers, on, places


def test_a_new_layout_on_the_same_devices(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8, 8), on(at.full, "x"))
    for target in (on(at.grid, "y", "x"), on(at.grid, ("x", "y")), on(at.full, None, "x"), on(at.full)):
        y = cuplace.jit(lambda x, target=target: cuplace.device_put(x * 2, target) + 0)(x)
        assert y.sharding.is_equivalent_to(target, 2)
        for shard in y.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), numbers(8, 8)[shard.index] * 2)


def test_reshard_gives_a_full_rank_spec(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8, 8), on(at.full, "x"))
    y = cuplace.jit(lambda x: cuplace.reshard(x, on(at.full, None)))(x)
    assert y.sharding == on(at.full, None, None)


def move_to(target):
    def f(x):
        return cuplace.device_put(x, target)

    return f


@pytest.mark.parametrize("kind", ["mesh", "device", "reversed", "single"])
@pytest.mark.parametrize("committed", [True, False])
def test_other_devices_are_always_refused(platform, kind, committed):
    at = places(platform)
    target = {
        "mesh": on(at.b, "x"), "device": platform.devices[5], "reversed": on(at.reverse, "x"),
        "single": SingleDeviceSharding(platform.devices[5]),
    }[kind]  # fmt: skip
    x = cuplace.device_put(numbers(8), on(at.a, "x")) if committed else numbers(8)
    with pytest.raises(errors.IncompatibleDevicesError) as caught:
        cuplace.jit(move_to(target))(x)
    name = platform.devices[0].platform.upper()
    argument = "Got argument x of move_to.<locals>.f with shape float32[8@x] and with device ids [0, 1, 2, 3]"
    first = argument if committed else "Got jit's default device with device ids [0]"
    line = str(caught.value).splitlines()[0]
    assert line.startswith(f"Received incompatible devices for jitted computation. {first} on platform {name} and ")
    assert f"device_put inside jit with device ids {[d.id for d in _devices(target)]} on platform {name} at " in line
    assert line.endswith("15 (move_to.<locals>.f)")


def _devices(target):
    return target.flat_devices if hasattr(target, "flat_devices") else [target]


def test_reshard_to_other_devices_is_refused(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8), on(at.a, "x"))
    with pytest.raises(ValueError, match=r"reshard inside jit with device ids"):
        cuplace.jit(lambda x: cuplace.reshard(x, on(at.b, "x")))(x)


def test_a_move_whose_result_is_not_used_does_not_count(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8), on(at.a, "x"))
    y = cuplace.jit(lambda x: (cuplace.device_put(x, on(at.b, "x")), x + 1)[1])(x)
    assert y.sharding.mesh is at.a


def test_no_target_and_the_same_device_change_nothing(platform):
    x = jnp.arange(3)
    first, second = cuplace.jit(lambda x: (cuplace.device_put(x), cuplace.device_put(x, platform.devices[0])))(x)
    np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


def test_targets_that_do_not_fit_are_told_while_tracing(platform):
    full = places(platform).full
    with pytest.raises(ValueError, match="does not evenly divide the dimension size 7"):
        cuplace.jit(lambda x: cuplace.device_put(x, on(full, "x")))(numbers(7))
    with pytest.raises(ValueError, match=r"Length of sharding.spec"):
        cuplace.jit(lambda x: cuplace.device_put(x, on(full, None, "x")))(numbers(8))


def test_a_put_commits_what_is_computed_where_it_is(platform):
    here = platform.devices[0]
    mesh = cuplace.make_mesh((1,), ("x",), devices=[here])
    for target in (SingleDeviceSharding(here), here, on(mesh, "x")):
        moved, other = cuplace.jit(lambda x, target=target: (cuplace.device_put(x, target), x + 1))(numbers(8))
        assert (moved.committed, other.committed) == (True, True)
    laid_out = cuplace.jit(lambda x: cuplace.reshard(x, on(mesh, "x")))(numbers(8))
    assert not laid_out.committed  # as in JAX: it names a layout, not a place


def test_leaked_values_cannot_be_put(platform):
    leaked = []
    cuplace.jit(lambda x: leaked.append(x) or x)(1.0)
    for put in (
        lambda x: cuplace.device_put(x, platform.devices[1]),
        lambda x: cuplace.device_put([x], None),
        lambda x: cuplace.reshard(x, on(places(platform).full)),
    ):
        with pytest.raises(errors.UnexpectedTracerError, match="Encountered an unexpected tracer"):
            put(leaked[0])
