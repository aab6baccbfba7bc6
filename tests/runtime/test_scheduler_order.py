"""The buffer rules: random programs give NumPy's values in every order, and without any one rule they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuplace.errors import RaceError
from cuplace.runtime import memory
from cuplace.runtime.backends.cpu import open_backend
from cuplace.runtime.backends.sim.links import NO_DEMAND
from cuplace.runtime.backends.sim.stream import SimStream
from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform, open_platform
from cuplace.runtime.scheduler import Scheduler
from tests.runtime.mutants import hide_writers
from tests.runtime.random_program import RandomProgram, WrongValueError
from tests.runtime.streams import finish, jitter, used

NOTHING_USED = {"bytes_in_use": 0, "bytes_parked": 0}
SEEDS = 50


def seed_of(request: pytest.FixtureRequest) -> int:
    return request.node.callspec.params["platform"].seed


def run(platform: Platform, seed: int, **options: Any) -> RandomProgram:
    program = RandomProgram(platform, seed, **options)
    program.run()
    finish(platform)
    assert used(platform) == NOTHING_USED
    return program


@pytest.mark.order
def test_values_are_numpys(platform: Platform, request: pytest.FixtureRequest) -> None:
    run(platform, seed_of(request))


@pytest.mark.order
def test_values_are_numpys_over_poison(platform: Platform, request: pytest.FixtureRequest) -> None:
    config.update("poison", True)
    run(platform, 100 + seed_of(request), steps=40)


@pytest.mark.order
def test_values_are_numpys_where_memory_is_short(platform: Platform, request: pytest.FixtureRequest) -> None:
    config.update("max_device_bytes", 2500)
    run(platform, 200 + seed_of(request), latches=False)


def test_short_memory_makes_programs_wait_and_fail_and_go_on(platform: Platform) -> None:
    """What the test above relies on: the limit is reached, blocks are waited for, and calls run out of memory."""
    config.update("max_device_bytes", 2500)
    programs = [run(platform, seed, latches=False) for seed in range(8)]
    if platform.name == "sim":  # threads and fake GPUs may be quick enough for every block to be complete
        assert sum(device.memory.memory_waits for device in platform.devices) > 0
    assert sum(program.out_of_memory for program in programs) > 0
    assert all(device.memory.peak <= 2500 for device in platform.devices)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("options", [{}, {"poison": True}, {"max_device_bytes": 2500}], ids=str)
def test_values_are_numpys_on_delayed_threads(seed: int, options: dict[str, Any], restored_config: None) -> None:
    for name, value in options.items():
        config.update(name, value)
    platform = Platform(open_backend(jitter(seed), workers=4), 3)
    try:
        run(platform, 300 + seed, latches="max_device_bytes" not in options)
    finally:
        platform.close()


@pytest.mark.parametrize("seed", range(20))
def test_every_wait_has_a_reason(seed: int) -> None:
    """A stream waits for work on the same buffers only, of which one side writes, and never for itself: so never
    because of a free. The simulator is lazy here, so that there is always something to wait for."""
    platform = open_platform("sim", 3, seed=seed, eagerness=0.0)
    with platform.scheduler.log.record() as records:
        run(platform, 400 + seed)
    by_id = {record.id: record for record in records}
    waits = [(record, by_id[id]) for record in records for id in record.waits]
    assert len(waits) > 10
    for record, waited in waits:
        data = set(record.reads) & set(waited.writes)
        order = set(record.writes) & {*waited.reads, *waited.writes}
        assert data | order, f"{record} waits for {waited} without a reason"
        assert waited.stream is not record.stream
        assert waited.id < record.id


# ---------------------------------------------------------------------- without one of the rules


def no_wait_for_the_writer(patch: pytest.MonkeyPatch) -> None:
    hide_writers(patch, lambda task, reads, writes: [buffer for buffer in reads if buffer not in writes])


def no_wait_for_readers(patch: pytest.MonkeyPatch) -> None:
    wait = Scheduler._wait_before_write

    def mutant(self: Scheduler, stream: Any, buffer: Any) -> Any:
        buffer.reads = None
        return wait(self, stream, buffer)

    patch.setattr(Scheduler, "_wait_before_write", mutant)


def no_wait_for_the_writer_before(patch: pytest.MonkeyPatch) -> None:
    wait = Scheduler._wait_before_write

    def mutant(self: Scheduler, stream: Any, buffer: Any) -> Any:
        buffer.writes = ()
        return wait(self, stream, buffer)

    patch.setattr(Scheduler, "_wait_before_write", mutant)


def one_read_event_for_all_streams(patch: pytest.MonkeyPatch) -> None:
    def mutant(buffer: Any, stream: Any, event: Any) -> None:
        buffer.reads = {stream: event}

    for module in ("rules", "doors"):
        patch.setattr(f"cuplace.runtime.scheduler.{module}.note_read", mutant)


def dead_blocks_freed_at_once(patch: pytest.MonkeyPatch) -> None:
    release = memory.Arena.release

    def mutant(self: memory.Arena, block: Any, events: Any) -> None:
        release(self, block, ())

    patch.setattr(memory.Arena, "release", mutant)


def transfer_blocks_freed_in_stream_order(patch: pytest.MonkeyPatch) -> None:
    begin = memory.DeviceMemory.__init__

    def mutant(self: memory.DeviceMemory, device: Any, *rest: Any) -> None:
        begin(self, device, *rest)
        self.arenas[memory.TRANSFER].home = device.compute

    patch.setattr(memory.DeviceMemory, "__init__", mutant)


def parked_blocks_collected_too_early(patch: pytest.MonkeyPatch) -> None:
    collect = memory.Arena.collect

    def mutant(self: memory.Arena, most: int | None = None) -> None:
        for i, (block, events) in enumerate(self.parked):
            self.parked[i] = block, events[:-1]
        collect(self, most)

    patch.setattr(memory.Arena, "collect", mutant)


def short_memory_taken_without_its_events(patch: pytest.MonkeyPatch) -> None:
    take = memory.Arena.take_parked

    def mutant(self: memory.Arena, nbytes: int) -> Any:
        found = take(self, nbytes)
        return found and (found[0], [])

    patch.setattr(memory.Arena, "take_parked", mutant)
    config.update("max_device_bytes", 2500)


def sources_read_later(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: SimStream, source: np.ndarray, target: Any, submission: Any) -> None:
        self._queue(lambda: np.copyto(target, source), (), submission, NO_DEMAND)

    patch.setattr(SimStream, "upload", mutant)


def host_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "host_wait", lambda self, buffers: None)


MUTANTS = [
    no_wait_for_the_writer, no_wait_for_readers, no_wait_for_the_writer_before, one_read_event_for_all_streams,
    dead_blocks_freed_at_once, transfer_blocks_freed_in_stream_order, parked_blocks_collected_too_early,
    short_memory_taken_without_its_events, sources_read_later, host_does_not_wait,
]  # fmt: skip


def some_seed_raises(error: type[Exception]) -> bool:
    """Whether a random program on the simulator ends with this error on one of the seeds; others come through."""
    for seed in range(SEEDS):
        platform = open_platform("sim", 3, seed=seed)
        try:
            RandomProgram(platform, seed, latches=config.max_device_bytes is None).run()
        except error:
            return True
    return False


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_without_a_rule_some_value_is_wrong(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, restored_config: None
) -> None:
    mutate(monkeypatch)
    if not some_seed_raises(WrongValueError):
        pytest.fail(f"{SEEDS} seeds gave right values")


INVISIBLE = {sources_read_later}
"""What the host writes into arrays of its own is not followed, so nobody sees that they are read too late."""


@pytest.mark.parametrize(
    "mutate", [mutate for mutate in MUTANTS if mutate not in INVISIBLE], ids=lambda mutate: mutate.__name__
)
def test_without_a_rule_a_race_is_reported(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, restored_config: None
) -> None:
    """By the detector, and never later than by a wrong value."""
    config.update("check_order", True)
    mutate(monkeypatch)
    if not some_seed_raises(RaceError):
        pytest.fail(f"{SEEDS} seeds had no race")
