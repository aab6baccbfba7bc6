"""Order on fake GPUs: `check_order` is silent in right programs and reports planted bugs, and these give wrong values.

Two judges see each bug: cuplace's own detector, and the checker of the fake CUDA, which knows nothing of cuplace. What
happens inside of a move, in packed copies and in pinned memory, is for the second alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from cuplace.errors import RaceError
from cuplace.runtime.config import config
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.platform import Platform, activated
from cuplace.runtime.task import CopyTask
from tests import fakecuda
from tests.fakegpus import CASES, DEEP_CASES, Case, open_fake
from tests.order.random_program import RandomProgram as ArrayProgram
from tests.runtime.backends.test_cuda_streams import allocators
from tests.runtime.order.test_seeded_bugs import BUGS, Seeded, WrongError, expect
from tests.runtime.random_program import RandomProgram as BufferProgram
from tests.runtime.streams import finish, new, put, read

pytestmark = pytest.mark.order

SEEDS = 50
PAIRS = [(0, 1), (0, 2), (0, 3), (1, 2), (0, -1)]

each_case = pytest.mark.parametrize(
    "cuda",
    [pytest.param(case, marks=[] if case in CASES else [pytest.mark.deep]) for case in DEEP_CASES],
    indirect=True,
    ids=lambda case: case.label,
)
each_bug = pytest.mark.parametrize(
    "seeded", BUGS, ids=lambda seeded: f"{seeded.bug.__name__}-{seeded.program.__name__}"
)


# ---------------------------------------------------------------------- right programs


@each_case
def test_random_programs_have_no_race(cuda: Platform) -> None:
    config.update("check_order", True)
    for seed in range(2):
        BufferProgram(cuda, 700 + seed).run()
    ArrayProgram(cuda, 700, steps=15).run()
    assert cuda.races == []


@each_case
def test_short_memory_has_no_race(cuda: Platform) -> None:
    """Blocks change hands while they are used, and memory goes back to the driver."""
    config.update("check_order", True)
    config.update("max_device_bytes", 2500)
    BufferProgram(cuda, 800, latches=False).run()
    for device in cuda.devices:
        device.memory.trim()
    BufferProgram(cuda, 801, latches=False).run()
    assert cuda.races == []


@pytest.mark.parametrize("name", ["raw", "async", "pool of async", "python"])
@pytest.mark.parametrize("cuda", [Case("lazy"), Case("random", 5)], indirect=True, ids=lambda case: case.label)
def test_memory_of_other_allocators_has_no_race(cuda: Platform, name: str) -> None:
    """The driver hands out addresses again, in an order of its own."""
    import cupy

    config.update("check_order", True)
    with cupy.cuda.using_allocator(allocators()[name]):
        BufferProgram(cuda, 900, latches=False).run()  # some allocators wait for the GPU
        finish(cuda)


# ---------------------------------------------------------------------- bugs of the scheduler


@pytest.mark.planted
@each_bug
@pytest.mark.parametrize("cuda", [Case("lazy"), Case("random", 3, gpus=1)], indirect=True, ids=lambda case: case.label)
def test_a_bug_is_reported(cuda: Platform, seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    config.update("check_order", True)
    seeded.bug(monkeypatch)
    with pytest.raises(RaceError) as caught:
        seeded.program(cuda)
    assert seeded.report.replace("sim:", "gpu:") in str(caught.value)
    monkeypatch.undo()
    fakecuda.take_reports()


@pytest.mark.planted
@each_bug
def test_a_bug_gives_a_wrong_value_and_a_report_of_the_fake(
    seeded: Seeded, fake_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gives_a_wrong_value_and_a_report(seeded, monkeypatch)


# ---------------------------------------------------------------------- bugs inside of copies


def puts_many(platform: Platform) -> None:
    """Uploads through the ring, each of which may find the block of the one before."""
    device = platform.devices[0]
    values = [np.full(64, i, np.int64) for i in range(6)]
    for buffer, value in [(put(device, value), value) for value in values]:
        expect(read(buffer), value)


def moves_columns(platform: Platform) -> None:
    """Short rows: packed on the one GPU, sent, and unpacked on the other."""
    here, there = platform.devices[0], platform.devices[-1]
    values = np.arange(64, dtype=np.int64).reshape(8, 8)
    source, box = put(here, values), (slice(0, 8), slice(2, 5))
    target = put(there, np.zeros_like(values))
    read(target)
    here.scheduler.submit_moves([(CopyTask(box, box, "peer", 192), here.transfer_to(there), source, target)])
    expect(read(target)[box], values[box])


def moves_through_the_ring(platform: Platform) -> None:
    """Several moves that are staged, so that each may find the block of the one before."""
    here, there = platform.devices[0], platform.devices[-1]
    sources = [put(here, np.full(64, i, np.int64)) for i in range(6)]
    targets = []
    for source in sources:
        targets.append(new(there, source, TRANSFER))
        task = CopyTask(None, None, "staged", source.nbytes)
        here.scheduler.submit_moves([(task, here.transfer_to(there), source, targets[-1])])
    for i, target in enumerate(targets):
        expect(read(target), np.full(64, i))


def ring_blocks_are_free_at_once(patch: pytest.MonkeyPatch) -> None:
    from cuplace.runtime.backends.cuda.ring import PinnedRing

    release = PinnedRing.release
    patch.setattr(PinnedRing, "release", lambda self, block, events: release(self, block, ()))


def arrivals_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    from cuplace.runtime.backends.cuda.lane import Lane

    wait = Lane.wait

    def mutant(self: Any, event: Any) -> None:
        if self not in [lane for (role, _), lane in self.gpu._lanes.items() if role == "in"]:
            wait(self, event)

    patch.setattr(Lane, "wait", mutant)


class Inside(NamedTuple):
    """A bug of copies, a program that it breaks, and whether the GPUs reach each other."""

    bug: Callable[[pytest.MonkeyPatch], None]
    program: Callable[[Platform], None]
    peers: bool = True


INSIDE = [
    Inside(ring_blocks_are_free_at_once, puts_many),
    Inside(ring_blocks_are_free_at_once, moves_through_the_ring, peers=False),
    Inside(arrivals_do_not_wait, moves_columns),
    Inside(arrivals_do_not_wait, moves_columns, peers=False),
]


@pytest.mark.parametrize("inside", INSIDE, ids=lambda i: f"{i.bug.__name__}-{i.program.__name__}-{i.peers}")
def test_a_bug_of_copies_gives_a_wrong_value_and_a_report_of_the_fake(
    inside: Inside, fake_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gives_a_wrong_value_and_a_report(inside, monkeypatch)


def gives_a_wrong_value_and_a_report(planted: Seeded | Inside, patch: pytest.MonkeyPatch) -> None:
    """The program is right and silent without the bug; with it, the first schedule is reported, and on one of the
    seeds a value is wrong."""
    peers = planted.peers if isinstance(planted, Inside) else True
    wrong = False
    for seed in range(SEEDS):
        platform = open_fake(Case("random", seed, peers=peers))
        with activated(platform):
            if seed == 0:
                planted.program(platform)
                assert not fakecuda.take_reports()
            for device, other in PAIRS:  # paths are found before the bug is there
                platform.devices[device].transfer_to(platform.devices[other])
            with patch.context() as bug:
                planted.bug(bug)
                try:
                    planted.program(platform)
                except WrongError:
                    wrong = True
            assert any(report.kind == "race" for report in fakecuda.take_reports())
        platform.close()
        fakecuda.take_reports()
        if wrong:
            return
    pytest.fail(f"{SEEDS} seeds gave right values")
