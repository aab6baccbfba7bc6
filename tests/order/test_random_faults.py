"""Random programs under a fault at a random place: what depends on it fails as promised, the rest is right."""

from __future__ import annotations

import gc
import random
from typing import Any

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import errors, testing
from cuplace.runtime.platform import Platform
from tests.order.random_program import placements
from tests.runtime.streams import ADD_ONE, compute, failing, finish, move, put, read, used

PROGRAMS = 3


@cuplace.jit
def step(x: Any) -> Any:
    return jnp.where(x > 7, x - 3, x * 5) + 1


def step_numpy(x: np.ndarray) -> np.ndarray:
    return (np.where(x > 7, x - 3, x * 5) + 1).astype(np.int32)


class Program:
    """Puts, moves and operations in random order; a value that a fault can have spoilt is NumPy's or an error."""

    def __init__(self, platform: Platform, seed: int) -> None:
        self.random = random.Random(seed)
        self.placements = placements(platform.devices)
        self.entries: list[tuple[cuplace.Array, np.ndarray]] = []
        self.refused = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            try:
                self.entries.append(self.make())
            except errors.OutOfMemoryError:
                self.refused += 1
            del self.entries[: -self.random.randrange(6, 9)]

    def make(self) -> tuple[cuplace.Array, np.ndarray]:
        choice = self.random.randrange(5) if self.entries else 0
        where = self.random.choice(self.placements)
        if choice == 0:
            value = np.arange(64, dtype=np.int32).reshape(8, 8) + self.random.randrange(100)
            return cuplace.device_put(value, where), value
        array, value = self.random.choice(self.entries)
        if choice == 1:
            return cuplace.device_put(array, where), value
        if choice == 2:
            return step(array), step_numpy(value)
        if choice == 3:
            return array * 3, value * np.int32(3)
        other, other_value = self.random.choice(self.entries)
        return array + cuplace.device_put(other, array.sharding), value + other_value

    def check(self) -> int:
        """That each value is right or its error is the promised one; how many errors there were."""
        failed = 0
        for array, value in self.entries:
            try:
                found = np.asarray(array)
            except errors.InjectedFaultError:
                failed += 1
            else:
                np.testing.assert_array_equal(found, value)
        return failed


def assert_nothing_is_left(platform: Platform) -> None:
    use_all_streams(platform)
    for _ in range(4):  # arrays in the frames of tracebacks, whose own errors have tracebacks
        finish(platform)
        gc.collect()
    finish(platform)
    assert used(platform) == {"bytes_in_use": 0, "bytes_parked": 0}


def use_all_streams(platform: Platform) -> None:
    """A stream knows the error of its latest work, whose traceback holds frames, which hold arrays."""
    for device in platform.devices:
        source = put(device, np.arange(3))
        read(compute(ADD_ONE, source))
        for other in list(device._moves):
            read(move(source, other))


@pytest.mark.parametrize("name", ["step", "move", "upload"])
def test_failing_work_spoils_what_depends_on_it_and_nothing_else(platform: Platform, name: str) -> None:
    failed = 0
    for seed in range(PROGRAMS):
        program = Program(platform, seed)
        with testing.faults(fail_op=(name, 1 + program.random.randrange(6))):
            program.run(12)
        program.run(4)
        failed += program.check()
        del program
    assert failed > 0
    assert_nothing_is_left(platform)


def test_only_what_depends_on_failed_work_fails(platform: Platform) -> None:
    """Where nothing else could have failed: of two chains one is spoilt."""
    for seed in range(PROGRAMS):
        program = Program(platform, 100 + seed)
        program.run(6)
        healthy = list(program.entries)
        with testing.faults(fail_op="step"):
            spoilt = [step(array) for array, _ in healthy]
            moved = [cuplace.device_put(array, program.placements[seed % 5]) * 3 for array in spoilt]
        for array in (*spoilt, *moved):
            with pytest.raises(errors.InjectedFaultError):
                np.asarray(array)
        program.run(4)
        assert program.check() == 0
        del program, healthy, spoilt, moved, array
    assert_nothing_is_left(platform)


@pytest.mark.order(once=True)
def test_work_that_fails_on_demand_is_not_begun_where_what_it_reads_has_failed(platform: Platform) -> None:
    failed = compute(failing("no source"), put(platform.devices[0], np.arange(4)))
    with testing.faults(fail_op=("add_one", 1)):
        spoilt = compute(ADD_ONE, failed)
    with pytest.raises(ValueError, match="no source"):
        read(spoilt)


def test_memory_that_runs_out_is_told_at_once(platform: Platform) -> None:
    refused = 0
    for seed in range(2):
        program = Program(platform, 200 + seed)
        program.run(3)
        with testing.faults(oom_after=program.random.randrange(8)):
            program.run(4)
        before = program.refused
        program.run(4)
        assert program.refused == before  # the platform goes on healthy
        assert program.check() == 0
        refused += before
        del program
    assert refused > 0
    assert_nothing_is_left(platform)
