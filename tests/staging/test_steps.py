from __future__ import annotations

import numpy as np

import cuplace
import cuplace.numpy as jnp
from cuplace.lax import scan
from cuplace.staging.steps import Step, note_dead, run_steps
from tests.array.places import numbers, on, places


class Recorded(Step):
    def __init__(self, reads, makes):
        self.reads = tuple(reads)
        self.dead = ()
        self.makes = makes

    def run(self, environment, scalars, line):
        assert all(environment[place] is not None for place in self.reads)
        environment[self.makes] = "made"


def test_values_are_let_go_after_their_last_use():
    steps = [Recorded([0], 1), Recorded([0, 1], 2), Recorded([2], 3)]
    note_dead(steps, {3})
    assert [step.dead for step in steps] == [(), (0, 1), (2,)]
    environment = ["given", None, None, None]
    run_steps(steps, environment, (), None)
    assert environment == [None, None, None, "made"]


def test_values_that_are_kept_stay():
    steps = [Recorded([0], 1)]
    note_dead(steps, {0, 1})
    assert steps[0].dead == ()


def test_a_loop_that_moves_is_enqueued_iteration_by_iteration(platform):
    at = places(platform)

    def body(c, x):
        return cuplace.device_put(cuplace.device_put(c + x, on(at.full)), on(at.full, "x")), x

    carry = cuplace.device_put(numbers(8), on(at.full, "x"))
    f = cuplace.jit(lambda c: scan(body, c, jnp.arange(3.0)))
    with platform.scheduler.log.record() as submissions:
        last, ys = f(carry)
    np.testing.assert_array_equal(np.asarray(last), numbers(8) + 3)
    np.testing.assert_array_equal(np.asarray(ys), [0, 1, 2])
    assert sum(s.name == "scan element" for s in submissions) == 3 * 8
    assert {s.kind for s in submissions} >= {"compute", "move"}


def test_memory_of_intermediates_is_reused(platform):
    device = platform.devices[0]
    x = cuplace.device_put(np.ones((64, 64), np.float32), device)

    def f(x):
        for _ in range(20):
            x = (x @ x) / 64
        return x

    jitted = cuplace.jit(f)
    jitted(x).block_until_ready()
    before = device.memory_stats()["peak_bytes"]
    jitted(x).block_until_ready()
    assert device.memory_stats()["peak_bytes"] <= before + 2 * x.nbytes
