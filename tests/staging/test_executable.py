from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace.ops.elementwise import SIN
from cuplace.staging.eager import eager
from cuplace.staging.trace import bind
from tests.array.places import numbers, on, places


def test_calls_return_while_devices_are_held(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8, 8), on(at.a, "x"))
    y = cuplace.device_put(numbers(8, 8), on(at.b, "x"))
    f = cuplace.jit(lambda x: cuplace.device_put(jnp.sin(x), on(at.a, None, "x")) + 1)
    f(x).block_until_ready()
    latches = [platform.scheduler.hold(device.compute) for device in platform.devices[:4]]
    held = f(x)
    free = cuplace.jit(lambda y: jnp.sin(y).sum(axis=1))(y)
    free.block_until_ready()
    assert not held.is_ready()
    for latch in latches:
        latch.release()
    np.testing.assert_allclose(np.asarray(held), np.sin(numbers(8, 8)) + 1, rtol=1e-6, atol=1e-6)


def fail(xp, x):
    raise FloatingPointError("broken")


@eager("broken")
def broken(x):
    return bind(dataclasses.replace(SIN, compute=fail, ufunc=None, elementwise=False), x)


def test_failures_of_the_work_reach_whoever_waits(platform):
    at = places(platform)
    for sharding in (None, on(at.full, "x")):
        x = cuplace.device_put(numbers(8), sharding)
        out = cuplace.jit(lambda x: broken(x) + 1)(x) * 2
        with pytest.raises(FloatingPointError, match="broken"):
            out.block_until_ready()
        np.testing.assert_array_equal(np.asarray(x + 1), numbers(8) + 1)


def test_the_page_s_pipeline_reads_one_trace_and_four_executables(platform):
    meshes = [cuplace.make_mesh((2,), ("x",), devices=platform.devices[2 * i : 2 * i + 2]) for i in range(4)]
    stage = cuplace.jit(lambda x: jnp.sin(x) + 1.0)
    for i in range(8):
        mb = np.full((256, 256), i, np.float32)
        expected = mb
        for mesh in meshes:
            mb = stage(cuplace.device_put(mb, on(mesh, "x")))
            expected = np.sin(expected) + 1
        np.testing.assert_allclose(np.asarray(mb), expected, rtol=1e-5)
    assert stage.cache_info() == (1, 4, 28, 4)
