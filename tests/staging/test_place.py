"""How operands and captured values come into a placed program."""

from __future__ import annotations

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from tests.array.places import numbers, on, places


def executable_of(function, *operands):
    jitted = cuplace.jit(function)
    result = jitted(*operands)
    (bound,) = jitted._bound.values()
    return bound.executable, result


def test_arrays_in_place_are_taken_as_they_are(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8), on(at.full, "x"))
    executable, _ = executable_of(lambda x, unused: x + 1, x, numbers(3))
    assert [(entry.position, entry.plan, entry.sharding) for entry in executable.entries] == [(0, None, None)]


def test_uncommitted_arrays_move_to_the_layout_of_their_first_use(platform):
    at = places(platform)
    x, u = cuplace.device_put(numbers(8), on(at.full, "x")), jnp.arange(8.0)
    executable, result = executable_of(lambda x, u: x + u, x, u)
    plans = [entry.plan for entry in executable.entries if entry.plan is not None]
    assert [plan.target for plan in plans] == [on(at.full, "x")]
    assert plans[0].nbytes == 32
    np.testing.assert_array_equal(np.asarray(result), 2 * numbers(8))


def test_host_arrays_are_uploaded_at_each_call(platform):
    values = numbers(8)
    jitted = cuplace.jit(lambda x: x + 1)
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(jitted(values)), values + 1)
        values += 1


def test_captured_values_are_placed_once(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8), on(at.full, "x"))
    host, free = numbers(8), jnp.arange(8.0)
    jitted = cuplace.jit(lambda x: x + host + free)
    jitted(x)
    with platform.scheduler.log.record() as submissions:
        result = jitted(x)
    assert {s.kind for s in submissions} == {"compute"}
    np.testing.assert_array_equal(np.asarray(result), 3 * numbers(8))
    free.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        jitted(x)


def test_numbers_out_of_range_raise_before_anything_is_enqueued(platform):
    x = jnp.arange(3)
    jitted = cuplace.jit(lambda x, y, k: (x + y) * k)
    jitted(x, x, 2)
    with platform.scheduler.log.record() as submissions, pytest.raises(OverflowError):
        jitted(x, x, 2**31)
    assert not submissions
    y = x + 1
    y.delete()
    with platform.scheduler.log.record() as submissions, pytest.raises(RuntimeError):
        jitted(x, y, 2)
    assert not submissions


@pytest.mark.filterwarnings("ignore::cuplace.errors.NarrowingWarning")
def test_wide_host_arrays_are_narrowed(platform):
    jitted = cuplace.jit(lambda x: x + 1)
    assert jitted(np.arange(3.0)).dtype == np.float32
    assert jitted(np.arange(3)).dtype == np.int32
    with pytest.raises(OverflowError):
        jitted(np.array([2**40, 0, 0]))


def test_shardings_asked_for_results(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8, 8), on(at.full, "x"))
    for target in (on(at.full), on(at.full, None, "x"), on(at.grid, "y", "x"), on(at.auto, "x")):
        out = cuplace.jit(lambda x: x + 1, out_shardings=target)(x)
        assert out.sharding is target
        for shard in out.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), (numbers(8, 8) + 1)[shard.index])
