"""Cycles of garbage: what destructors of ours hand over while others may still use it (PEP 442)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from cuplace.runtime.backends.base import Latch, Stream
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.platform import Platform
from cuplace.runtime.submission import Submission
from cuplace.runtime.task import LATCH
from tests.memory import Cycle, host_values
from tests.runtime.streams import (
    ADD_ONE,
    compute,
    copy_behind_its_back,
    copy_task,
    failing,
    finish,
    move,
    new,
    put,
    read,
    used,
)

pytestmark = pytest.mark.order(once=True)

VALUES = np.arange(24, dtype=np.int64)


def make_garbage(first: str, make: Callable[[], Any], dying: Callable[[Any], None]) -> None:
    """A cycle and what it keeps. Collections call the destructors of older objects first: of which is ``first``."""
    if first == "buffer":
        Cycle(make(), dying)
    else:
        cycle = Cycle(None, dying)
        cycle.kept = make()


@pytest.fixture(autouse=True)
def _collects_by_hand() -> Any:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def hold_behind_its_back(stream: Stream) -> Latch:
    """Work of a borrower that lasts until the latch is opened."""
    return stream.hold(Submission(-1, LATCH, stream, (), (), (), None, 0))


@pytest.mark.order
def test_memory_of_garbage_waits_for_the_work_on_it(platform: Platform) -> None:
    """Nobody but the buffer has the event of a loan's end: it is garbage, too."""
    scheduler, (device, other) = platform.scheduler, platform.devices[:2]
    theirs = device.download
    buffer, fresh = put(device, VALUES), put(other, VALUES + 100)
    seen = new(device, buffer, TRANSFER)
    scheduler.host_wait([buffer, fresh])
    latch = scheduler.hold(theirs)
    with scheduler.lend(buffer, theirs) as array:
        copy_behind_its_back(theirs, array, seen.array)
    del array
    Cycle([buffer])
    del buffer
    gc.collect()
    for _ in range(3):
        later = [move(fresh, device) for _ in range(3)]
        scheduler.host_wait(later)
    latch.release()
    scheduler.drain([theirs])
    np.testing.assert_array_equal(host_values(seen.array), VALUES)


@pytest.mark.order
@pytest.mark.parametrize("first", ["buffer", "cycle"])
def test_a_destructor_uses_buffers_of_its_own_garbage(platform: Platform, first: str) -> None:
    device = platform.devices[0]
    found, later = [], []

    def dying(buffer: Buffer) -> None:
        later.extend(put(device, VALUES * 7) for _ in range(4))
        later.extend(new(device, buffer, TRANSFER) for _ in range(4))
        found.extend([read(compute(ADD_ONE, buffer)), read(buffer)])

    before = used(platform)
    make_garbage(first, lambda: put(device, VALUES), dying)
    gc.collect()
    np.testing.assert_array_equal(found[0], VALUES + 1)
    np.testing.assert_array_equal(found[1], VALUES)
    del later[:], found[:]
    finish(platform)
    assert used(platform) == before


def test_a_destructor_keeps_a_buffer_of_its_own_garbage(platform: Platform) -> None:
    device = platform.devices[0]
    before = used(platform)
    kept: list[Buffer] = []
    Cycle(put(device, VALUES), kept.append)
    gc.collect()
    later = [put(device, VALUES * i) for i in range(4)]
    np.testing.assert_array_equal(read(compute(ADD_ONE, kept[0])), VALUES + 1)
    np.testing.assert_array_equal(read(kept[0]), VALUES)
    del later, kept
    finish(platform)
    assert used(platform) == before


@pytest.mark.parametrize("first", ["buffer", "cycle"])
def test_a_kept_buffer_is_garbage_once_more(platform: Platform, first: str) -> None:
    """Then collections call the callbacks of weak references to it before the destructors, and its own is not called
    again."""
    device = platform.devices[0]
    before = used(platform)
    kept: list[Buffer] = []
    found, later = [], []

    def dying(buffer: Buffer) -> None:
        later.extend(put(device, VALUES * 7) for _ in range(4))
        found.append(read(compute(ADD_ONE, buffer)))
        kept.append(buffer)

    Cycle(put(device, VALUES), kept.append)
    gc.collect()
    platform.scheduler.park()
    make_garbage(first, kept.pop, dying)
    gc.collect()
    later.extend(put(device, VALUES * 9) for _ in range(4))
    np.testing.assert_array_equal(found[0], VALUES + 1)
    np.testing.assert_array_equal(read(kept[0]), VALUES)
    del kept[:], later[:], found[:]
    finish(platform)
    assert used(platform) == before


def test_many_buffers_are_kept(platform: Platform) -> None:
    """A door looks at some of them only; in the end all come back."""
    device = platform.devices[0]
    before = used(platform)
    kept: list[Buffer] = []
    for i in range(50):
        Cycle(put(device, VALUES * i), kept.append)
    gc.collect()
    for i in range(50):
        assert not (read(put(device, VALUES)) - VALUES).any()
        if i % 2:
            del kept[i % len(kept)]
    numbers = sorted(read(buffer)[1] for buffer in kept)
    assert len(set(numbers)) == len(numbers) == 25
    for buffer in kept:
        np.testing.assert_array_equal(read(buffer), VALUES * read(buffer)[1])
    del kept, buffer
    finish(platform)
    assert used(platform) == before


@pytest.mark.order
def test_a_wait_for_a_full_queue_is_given_up(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was waited for is unfinished all the same, and may be the last use of a kept buffer."""
    scheduler, (device, other, third) = platform.scheduler, platform.devices[:3]
    kept: list[Buffer] = []
    fresh = put(third, VALUES + 100)
    Cycle(put(device, VALUES), kept.append)
    gc.collect()
    scheduler.park()
    scheduler.host_wait([*kept, fresh])
    latch = scheduler.hold(device.transfer_to(other))
    target = new(other, kept[0], TRANSFER)
    with monkeypatch.context() as patch:
        patch.setattr("cuplace.runtime.scheduler.host.RUN_AHEAD", 0)
        patch.setattr(scheduler, "wait", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            scheduler.submit_moves([(copy_task(kept[0]), device.transfer_to(other), kept[0], target)])
        for _ in range(3):
            with suppress(KeyboardInterrupt):
                put(third, VALUES)
    kept.clear()
    later = [move(fresh, device) for _ in range(4)]
    latch.release()
    np.testing.assert_array_equal(read(target), VALUES)
    for buffer in later:
        np.testing.assert_array_equal(read(buffer), VALUES + 100)


def _interrupted(*arguments: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.order
def test_a_loan_that_is_garbage_with_its_buffer_ends_first(platform: Platform) -> None:
    scheduler, device = platform.scheduler, platform.devices[0]
    theirs = device.download
    before = used(platform)
    buffer = put(device, VALUES)
    seen = new(device, buffer, TRANSFER)
    scheduler.host_wait([buffer])
    latch = scheduler.hold(theirs)
    loan = scheduler.lend_out(buffer, theirs, theirs)
    copy_behind_its_back(theirs, buffer.array, seen.array)
    Cycle([buffer, loan])
    del buffer, loan
    gc.collect()
    later = [put(device, VALUES * 7) for _ in range(4)]
    scheduler.host_wait(later)
    latch.release()
    scheduler.drain([theirs])
    np.testing.assert_array_equal(host_values(seen.array), VALUES)
    del later, seen
    finish(platform)
    assert used(platform) == before


@pytest.mark.order
@pytest.mark.parametrize(
    ("garbage", "loans", "held"), [("both", 1, 0), ("loan", 1, 0), ("both", 2, 0), ("both", 2, 1)],
    ids=["both", "loan", "both-two-0", "both-two-1"],
)  # fmt: skip
def test_a_destructor_uses_a_loan_of_its_own_garbage(platform: Platform, garbage: str, loans: int, held: int) -> None:
    """The borrower's work comes after the loan's destructor, and after a door has learnt of that. Of two borrowers, one
    has nothing under way."""
    scheduler, device = platform.scheduler, platform.devices[0]
    streams = (device.download, device.transfer_to(device))[:loans]
    before = used(platform)
    buffer = put(device, VALUES)
    seen = new(device, buffer, TRANSFER)
    scheduler.host_wait([buffer])
    latches: list[Any] = []

    def dying(kept: list[Any]) -> None:
        scheduler.park()
        latches.append(hold_behind_its_back(streams[held]))
        copy_behind_its_back(streams[held], kept[0].buffer.array, kept[1])

    lent = [scheduler.lend_out(buffer, stream, stream) for stream in streams]
    Cycle([lent[0], seen.array, *lent[1:], *([buffer] if garbage == "both" else [])], dying)
    del lent
    if garbage == "both":
        del buffer
        gc.collect()
        scheduler.park()
    else:
        gc.collect()
        scheduler.park()
        del buffer
    later = [put(device, VALUES * 7) for _ in range(4)]
    scheduler.host_wait(later)
    latches.pop().release()
    scheduler.drain(streams)
    np.testing.assert_array_equal(host_values(seen.array), VALUES)
    del later, seen
    finish(platform)
    assert used(platform) == before


@pytest.mark.order
def test_a_kept_buffer_dies_after_its_last_use(platform: Platform) -> None:
    """Its destructor is not called again, so nobody tells what used it last."""
    scheduler, (device, other, third) = platform.scheduler, platform.devices[:3]
    before = used(platform)
    kept: list[Buffer] = []
    fresh = put(third, VALUES + 100)
    Cycle(put(device, VALUES), kept.append)
    gc.collect()
    scheduler.park()
    scheduler.host_wait([*kept, fresh])
    latch = scheduler.hold(device.transfer_to(other))
    moved = move(kept[0], other)
    kept.clear()
    later = [move(fresh, device) for _ in range(4)]
    latch.release()
    np.testing.assert_array_equal(read(moved), VALUES)
    for buffer in later:
        np.testing.assert_array_equal(read(buffer), VALUES + 100)
    del moved, later, fresh, buffer
    finish(platform)
    assert used(platform) == before


def test_the_end_of_a_loan_is_forgotten_with_the_error_that_it_has(platform: Platform) -> None:
    """The traceback of the error holds frames that hold the buffers."""
    device = platform.devices[0]
    before = used(platform)

    def fails() -> None:
        source = put(device, VALUES)
        result = compute(failing("no"), source)
        with pytest.raises(ValueError, match="no"):
            read(result)
        with platform.scheduler.lend(source, device.compute):
            pass
        read(compute(ADD_ONE, source))

    fails()
    for _ in range(3):
        finish(platform)
        gc.collect()
    finish(platform)
    assert used(platform) == before
