"""The bugs of this field, planted one by one: each is reported on every seed, and gives a wrong value on some.

The same programs without the bugs are right and silent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import cuplace
from cuplace.errors import RaceError
from cuplace.runtime import memory
from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform, activated, open_platform
from cuplace.runtime.scheduler import Scheduler
from cuplace.runtime.task import ComputeTask, CopyTask
from tests.runtime.mutants import hide_writers
from tests.runtime.streams import ADD_ONE, SQUARE, compute, move, new, put, read, task

SEEDS = 50
VALUES = np.arange(1, 65, dtype=np.int64)

HALVES = {"first": (slice(0, 32),), "second": (slice(32, 64),)}
UNPACK = task(lambda packed: packed.reshape(8, 8).T.reshape(-1), "unpack")


class WrongError(AssertionError):
    """A value differs from NumPy's."""


def expect(found: Any, expected: Any) -> None:
    if not np.array_equal(found, expected):
        raise WrongError(f"{found} where NumPy has {expected}")


# ---------------------------------------------------------------------- programs


def produces_and_moves(platform: Platform) -> None:
    here, there = platform.devices[:2]
    result = move(compute(SQUARE, put(here, VALUES)), there)
    expect(read(result), VALUES**2)


def moves_and_consumes(platform: Platform) -> None:
    here, there = platform.devices[:2]
    source = put(here, VALUES)
    read(source)
    expect(read(compute(SQUARE, move(source, there))), VALUES**2)


def drops_what_three_peers_read(platform: Platform) -> None:
    here, *peers = platform.devices[:4]
    base = put(here, VALUES)
    source = compute(SQUARE, base)
    moved = [move(source, peer) for peer in peers]
    del source
    reused = [compute(ADD_ONE, base) for _ in range(2)]
    for buffer in moved:
        expect(read(buffer), VALUES**2)
    for buffer in reused:
        expect(read(buffer), VALUES + 1)


def packs_copies_and_unpacks(platform: Platform) -> None:
    here, there = platform.devices[:2]
    packed = compute(UNPACK, put(here, VALUES))
    staged = move(packed, there)
    result = new(there, staged, memory.TRANSFER)
    platform.scheduler.submit(UNPACK, there.upload, (staged,), (result,))
    expect(read(result), VALUES)


def gathers_two_halves(platform: Platform) -> None:
    one, other, there = platform.devices[:3]
    sources = [compute(ADD_ONE, put(one, VALUES)), compute(SQUARE, put(other, VALUES))]
    target = new(there, sources[0], memory.TRANSFER)
    platform.scheduler.submit_moves(
        [
            (CopyTask(box, box, "peer", 256), source.device.transfer_to(there), source, target)
            for source, box in zip(sources, HALVES.values(), strict=True)
        ]
    )
    expect(read(target)[:32], (VALUES + 1)[:32])
    expect(read(target)[32:], (VALUES**2)[32:])


def donates_what_is_being_read(platform: Platform) -> None:
    """The memory of a consumed operand is reused in place, while a copy of it is pending."""
    here, there = platform.devices[:2]
    source = put(here, VALUES)
    read(source)
    moved = move(source, there)
    platform.scheduler.submit(ADD_ONE, here.compute, (source,), (source,))
    expect(read(moved), VALUES)
    expect(read(source), VALUES + 1)


def donates_arrays(platform: Platform) -> None:
    here, there, third = platform.devices[:3]
    x = cuplace.device_put(VALUES.astype(np.int32), here) * 3
    copy = cuplace.device_put(x, there)
    moved = cuplace.device_put(x, third, donate=True)
    fresh = [cuplace.device_put(np.full(64, i, np.int32), here) + 1 for i in range(3)]
    expect(np.asarray(copy), VALUES * 3)
    expect(np.asarray(moved), VALUES * 3)
    for i, array in enumerate(fresh):
        expect(np.asarray(array), np.full(64, i + 1))


def reads_on_the_host(platform: Platform) -> None:
    expect(read(compute(SQUARE, put(platform.devices[0], VALUES))), VALUES**2)


def computes_in_a_chain(platform: Platform) -> None:
    here, there = platform.devices[:2]
    expect(read(move(compute(ADD_ONE, compute(SQUARE, put(here, VALUES))), there)), VALUES**2 + 1)


# ---------------------------------------------------------------------- bugs


def _unseen_writes(patch: pytest.MonkeyPatch, of: Callable[[Any], bool]) -> None:
    """Tasks for which ``of`` holds do not wait for what wrote their reads."""
    hide_writers(patch, lambda task, reads, writes: reads if of(task) else ())


def transfer_does_not_wait_for_the_producer(patch: pytest.MonkeyPatch) -> None:
    _unseen_writes(patch, lambda task: task.kind == "move")


def consumer_does_not_wait_for_the_transfer(patch: pytest.MonkeyPatch) -> None:
    _unseen_writes(patch, lambda task: task.kind == "compute")


def unpacking_does_not_wait_for_the_copy(patch: pytest.MonkeyPatch) -> None:
    _unseen_writes(patch, lambda task: task is UNPACK)


def dead_blocks_are_free_at_once(patch: pytest.MonkeyPatch) -> None:
    release = memory.Arena.release
    patch.setattr(memory.Arena, "release", lambda self, block, events: release(self, block, ()))


def moves_of_a_plan_overlap(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(HALVES, "first", (slice(0, 40),))


def writers_do_not_wait_for_readers(patch: pytest.MonkeyPatch) -> None:
    wait = Scheduler._wait_before_write

    def mutant(self: Scheduler, stream: Any, buffer: Any) -> Any:
        buffer.reads = None
        return wait(self, stream, buffer)

    patch.setattr(Scheduler, "_wait_before_write", mutant)


def host_does_not_wait_for_the_event(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "host_wait", lambda self, buffers: None)


def work_runs_on_the_wrong_stream(patch: pytest.MonkeyPatch) -> None:
    enqueue = ComputeTask.enqueue

    def mutant(self: ComputeTask, stream: Any, *rest: Any) -> None:
        enqueue(self, stream.device.download, *rest)

    patch.setattr(ComputeTask, "enqueue", mutant)


class Seeded(NamedTuple):
    """A bug, a program that it breaks, and what its report says of the second use."""

    bug: Callable[[pytest.MonkeyPatch], None]
    program: Callable[[Platform], None]
    report: str


BUGS = [
    Seeded(transfer_does_not_wait_for_the_producer, produces_and_moves, "move, on stream 'sim:0 -> sim:1', reads"),
    Seeded(consumer_does_not_wait_for_the_transfer, moves_and_consumes, "'square', on stream 'sim:1 compute', reads"),
    Seeded(dead_blocks_are_free_at_once, drops_what_three_peers_read, "'add_one', on stream 'sim:0 compute', writes"),
    Seeded(unpacking_does_not_wait_for_the_copy, packs_copies_and_unpacks, "'unpack', on stream 'sim:"),
    Seeded(moves_of_a_plan_overlap, gathers_two_halves, "move, on stream 'sim:1 -> sim:2', writes"),
    Seeded(writers_do_not_wait_for_readers, donates_what_is_being_read, "'add_one', on stream 'sim:0 compute', writes"),
    Seeded(dead_blocks_are_free_at_once, donates_arrays, "too early"),
    Seeded(host_does_not_wait_for_the_event, reads_on_the_host, "on the host, reads"),
    Seeded(work_runs_on_the_wrong_stream, computes_in_a_chain, "'square', on stream 'sim:0 download', reads"),
]

each_bug = pytest.mark.parametrize(
    "seeded", BUGS, ids=lambda seeded: f"{seeded.bug.__name__}-{seeded.program.__name__}"
)


def run(seeded: Seeded, seed: int) -> None:
    platform = open_platform("sim", 4, seed=seed)
    with activated(platform):
        seeded.program(platform)


@pytest.mark.planted
@each_bug
def test_a_bug_is_reported_on_every_seed(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch, restored_config: None
) -> None:
    config.update("check_order", True)
    seeded.bug(monkeypatch)
    for seed in range(SEEDS):
        with pytest.raises(RaceError) as caught:
            run(seeded, seed)
        text = str(caught.value)
        assert seeded.report in text
        assert "does not wait for an event recorded on" in text
        assert text.count("test_seeded_bugs.py") + text.count("streams.py") == 2, "the user's lines"


@pytest.mark.planted
@each_bug
def test_a_bug_gives_a_wrong_value_on_some_seed(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded.bug(monkeypatch)
    for seed in range(SEEDS):
        try:
            run(seeded, seed)
        except WrongError:
            return
    pytest.fail(f"{SEEDS} seeds gave right values")


@pytest.mark.parametrize("program", dict.fromkeys(seeded.program for seeded in BUGS), ids=lambda f: f.__name__)
def test_without_the_bug_all_is_right_and_silent(program: Callable[[Platform], None], restored_config: None) -> None:
    config.update("check_order", True)
    for seed in range(SEEDS):
        run(Seeded(lambda patch: None, program, ""), seed)
