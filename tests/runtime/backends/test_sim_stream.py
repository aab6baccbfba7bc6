"""The simulator: seeded orders, from fully lazy to fully eager, and nothing but what was asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuplace.errors import DeadlockError
from cuplace.runtime.backends.sim import open_backend
from cuplace.runtime.backends.sim.engine import EAGERNESS
from cuplace.runtime.platform import Platform, open_platform
from tests.runtime.streams import ADD_ONE, SQUARE, compute, failing, move, put, read, task

pytestmark = pytest.mark.order(once=True)

VALUES = np.arange(12, dtype=np.int64)


def simulated(seed: int = 0, eagerness: float | None = None, num_devices: int = 4) -> Platform:
    return Platform(open_backend(seed, eagerness), num_devices)


def notes(platform: Platform) -> tuple[list[str], Callable[[str], Any]]:
    """A list, and a maker of tasks that append their name to it."""
    order: list[str] = []
    return order, lambda name: task(lambda x: order.append(name) or x, name)


def order_of(seed: int, eagerness: float | None = None) -> list[str]:
    """In which order a seed runs three independent chains."""
    platform = simulated(seed, eagerness)
    order, note = notes(platform)
    buffers = [put(device, VALUES) for device in platform.devices[:3]]
    for step in range(4):
        buffers = [compute(note(f"{i}{step}"), buffer) for i, buffer in enumerate(buffers)]
    platform.scheduler.host_wait(buffers)
    return order


def test_a_seed_is_an_order() -> None:
    for seed in range(10):
        assert order_of(seed) == order_of(seed)


def test_seeds_differ_and_keep_stream_order() -> None:
    orders = [order_of(seed) for seed in range(30)]
    assert len({tuple(order) for order in orders}) > 10
    for order in orders:
        for i in range(3):
            assert [name for name in order if name.startswith(str(i))] == [f"{i}{step}" for step in range(4)]


def test_lazy_runs_when_somebody_waits_and_eager_at_once() -> None:
    for eagerness, expected in ((0.0, []), (1.0, ["f"])):
        platform = simulated(eagerness=eagerness)
        order, note = notes(platform)
        result = compute(note("f"), put(platform.devices[0], VALUES))
        assert order == expected
        read(result)
        assert order == ["f"]


def test_every_eagerness_occurs() -> None:
    chosen = {open_backend(seed)._engine._eagerness for seed in range(50)}
    assert chosen == set(EAGERNESS)


def test_a_host_wait_runs_only_what_it_needs_or_chance_wants() -> None:
    """For some seed a wait leaves independent work undone: nothing is in order unless it was asked for."""
    left_undone = 0
    for seed in range(20):
        platform = simulated(seed, eagerness=0.0)
        order, note = notes(platform)
        other = compute(note("independent"), put(platform.devices[1], VALUES))
        read(compute(note("needed"), put(platform.devices[0], VALUES)))
        left_undone += "independent" not in order
        read(other)
    assert left_undone > 0


def test_polling_makes_progress() -> None:
    platform = simulated(eagerness=0.0)
    result = move(compute(ADD_ONE, put(platform.devices[0], VALUES)), platform.devices[1])
    polls = 0
    while not platform.scheduler.is_ready([result]):
        polls += 1
        assert polls < 1000
    np.testing.assert_array_equal(read(result), VALUES + 1)


@pytest.mark.parametrize("eagerness", [0.0, 0.5, 1.0])
def test_reads_are_read_only(eagerness: float) -> None:
    platform = simulated(eagerness=eagerness)

    def overwrite(x: Any) -> Any:
        x[...] = 0
        return x

    source = put(platform.devices[0], VALUES)
    with pytest.raises(ValueError, match="read-only"):
        read(compute(task(overwrite), source))
    np.testing.assert_array_equal(read(source), VALUES)


def test_a_wait_that_cannot_end_says_so() -> None:
    """An item that waits for its own successor; a wrong wait would hang on a device."""
    platform = simulated(eagerness=0.0)
    device, other = platform.devices[:2]
    first = compute(ADD_ONE, put(device, VALUES))
    (event,) = first.writes
    event.unseen.append(compute(SQUARE, move(first, other)).writes[0])
    with pytest.raises(DeadlockError, match=r"nothing can run, but Submission.*'add_one'.*is not complete"):
        read(first)
    event.unseen.pop()
    np.testing.assert_array_equal(read(first), VALUES + 1)


def test_a_held_latch_is_no_deadlock() -> None:
    platform = simulated()
    latch = platform.scheduler.hold(platform.devices[0].compute)
    result = compute(ADD_ONE, put(platform.devices[0], VALUES))
    timer = threading.Timer(0.02, latch.release)
    timer.start()
    np.testing.assert_array_equal(read(result), VALUES + 1)
    timer.join()


@pytest.mark.parametrize("seed", range(10))
def test_failures_spread_in_every_order(seed: int) -> None:
    platform = simulated(seed)
    device, other = platform.devices[:2]
    source = put(device, VALUES)
    failed = compute(failing("boom"), source)
    dependents = [move(failed, other), compute(ADD_ONE, failed)]
    dependents.append(compute(SQUARE, dependents[0]))
    fine = compute(ADD_ONE, move(source, other))
    for buffer in [failed, *dependents]:
        with pytest.raises(ValueError, match="boom"):
            read(buffer)
    np.testing.assert_array_equal(read(fine), VALUES + 1)


def test_memory_is_really_reused() -> None:
    """Addresses of dead blocks come back at once, for arrays of any size: what comes back too early is overwritten."""
    platform = simulated(eagerness=1.0)
    device = platform.devices[0]
    buffer = put(device, np.zeros(100))
    start = buffer.array.ctypes.data
    read(buffer)
    del buffer
    assert put(device, np.zeros(3)).array.ctypes.data == start


def test_a_platform_of_a_seed_through_its_name() -> None:
    assert open_platform("sim", 2, seed=7, eagerness=0.25).backend._engine._eagerness == 0.25
