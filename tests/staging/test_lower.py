"""What a placed program consists of: which steps, on which level."""

from __future__ import annotations

import numpy as np

import cuplace
import cuplace.numpy as jnp
from cuplace.staging.steps import LoopStep, MoveStep, SegmentStep
from tests.array.places import numbers, on, places


def steps_of(function, *operands):
    jitted = cuplace.jit(function)
    jitted(*operands)
    (bound,) = jitted._bound.values()
    return bound.executable.steps


def test_work_on_one_device_is_one_segment(platform):
    (step,) = steps_of(lambda x: jnp.sin(x) @ x + x.sum(), jnp.ones((4, 4)))
    assert type(step) is SegmentStep
    assert (len(step.segments), len(step.reads), len(step.made)) == (1, 1, 1)


def test_moves_of_operands_come_first_and_only_what_needs_them_waits(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8, 8), on(at.full, "x"))

    def f(x):
        moved = cuplace.device_put(x, on(at.full, None, "x"))
        return jnp.sin(x) + 1, moved * 2, jnp.cos(cuplace.device_put(moved + 1, on(at.full, "x")))

    kinds = [type(step) for step in steps_of(f, x)]
    assert kinds == [MoveStep, SegmentStep, SegmentStep, MoveStep, SegmentStep]


def test_values_die_after_their_last_use(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8, 8), on(at.full, "x"))
    steps = steps_of(lambda x: cuplace.device_put(jnp.sin(x), on(at.full, None, "x")) + 1, x)
    dead = [place for step in steps for place in step.dead]
    assert len(dead) == len(set(dead))
    assert {place for step in steps for place in step.reads} == set(dead)


def test_devices_that_do_different_things_have_segments_of_their_own(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8), on(at.full))
    (step,) = steps_of(lambda x: cuplace.device_put(x, on(at.full, "x")) + 1, x)
    assert (len(step.segments), len(step.tasks)) == (8, 8)


def test_a_loop_is_local_work_unless_it_moves(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8), on(at.full, "x"))

    def local(c, _):
        return c + 1, None

    def moving(c, _):
        return cuplace.device_put(cuplace.device_put(c, on(at.full)) + 1, on(at.full, "x")), None

    assert [type(s) for s in steps_of(lambda x: cuplace.lax.scan(local, x, None, length=3)[0], x)] == [SegmentStep]
    assert LoopStep in [type(s) for s in steps_of(lambda x: cuplace.lax.scan(moving, x, None, length=3)[0], x)]


def test_estimates_grow_with_the_work(platform):
    def seconds(n):
        (step,) = steps_of(jnp.sin, jnp.ones(n))
        return step.tasks[0].seconds

    assert seconds(8) < 10e-6
    assert seconds(1 << 22) > 100 * seconds(1 << 12) > 0


def test_numbers_have_one_slot_for_each_dtype(platform):
    jitted = cuplace.jit(lambda x, k: (x + k, x * k, (x > 0) & (k > 1), k))
    for k in (2, 3):
        out = jitted(numbers(4), k)
        np.testing.assert_array_equal(np.asarray(out[1]), numbers(4) * k)
        assert int(out[3]) == k
    (bound,) = jitted._bound.values()
    assert len(bound.executable.numbers) == 2


def test_outputs_that_are_numbers_or_inputs_or_twice_the_same(platform):
    x = jnp.arange(3)
    a, b, c, d, e = cuplace.jit(lambda x, k: (x, k, 7, x + k, x + k))(x, 5)
    assert (int(b), int(c)) == (5, 7)
    np.testing.assert_array_equal(np.asarray(a), [0, 1, 2])
    np.testing.assert_array_equal(np.asarray(d), np.asarray(e))

    def twice(x):
        doubled = x * 2
        return doubled, doubled

    f, g = cuplace.jit(twice)(x)
    f.delete()
    np.testing.assert_array_equal(np.asarray(g), [0, 2, 4])
