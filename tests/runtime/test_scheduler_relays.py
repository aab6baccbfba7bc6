"""Moves of one plan that pass on what other moves of the plan have written."""

from __future__ import annotations

import numpy as np
import pytest

from cuplace.runtime.backends.base import Stream
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.platform import Platform
from cuplace.runtime.task import CopyTask
from tests.runtime.streams import ADD_ONE, compute, failing, new, put, read

VALUES = np.arange(8)
HALVES = ((slice(0, 4),), (slice(4, 8),))
AFTER = (None, None, 1, 0)

Launch = tuple[CopyTask, Stream, Buffer, Buffer]


def chain(first: Buffer, second: Buffer, third: Buffer) -> list[Launch]:
    """Both halves from the first to the second; then the later half, and the earlier one, from there to the third."""
    one = first.device.transfer_to(second.device)
    two = second.device.transfer_to(third.device)
    moves = [(half, one, first, second) for half in HALVES] + [(half, two, second, third) for half in HALVES[::-1]]
    return [(CopyTask(box, box, "", 32), stream, source, target) for box, stream, source, target in moves]


@pytest.mark.order
def test_a_relay_waits_for_exactly_what_feeds_it(platform: Platform) -> None:
    first, second, third = platform.devices[:3]
    scheduler = platform.scheduler
    source = put(first, VALUES)
    read(source)
    middle, last = new(second, source, "transfer"), new(third, source, "transfer")
    latch = scheduler.hold(first.transfer_to(second))
    with scheduler.log.record() as records:
        scheduler.submit_moves(chain(source, middle, last), after=AFTER)
    ids = [record.id for record in records]
    assert [record.waits for record in records] == [(), (), (ids[1],), (ids[0],)]
    assert not scheduler.is_ready([last])
    latch.release()
    np.testing.assert_array_equal(read(last), VALUES)
    np.testing.assert_array_equal(read(middle), VALUES)


@pytest.mark.order
def test_the_source_of_a_chain_is_not_overwritten_before_it_is_read(platform: Platform) -> None:
    first, second, third = platform.devices[:3]
    scheduler = platform.scheduler
    source = put(first, VALUES)
    middle, last = new(second, source, "transfer"), new(third, source, "transfer")
    latch = scheduler.hold(first.transfer_to(second))
    scheduler.submit_moves(chain(source, middle, last), after=AFTER)
    scheduler.upload(source, VALUES * 10)
    scheduler.host_wait([put(third, VALUES)])
    latch.release()
    np.testing.assert_array_equal(read(last), VALUES)
    np.testing.assert_array_equal(read(source), VALUES * 10)


@pytest.mark.order
def test_what_is_passed_on_is_not_overwritten_before(platform: Platform) -> None:
    first, second, third = platform.devices[:3]
    scheduler = platform.scheduler
    source = put(first, VALUES)
    middle, last = new(second, source, "transfer"), new(third, source, "transfer")
    latch = scheduler.hold(second.transfer_to(third))
    scheduler.submit_moves(chain(source, middle, last), after=AFTER)
    scheduler.upload(middle, VALUES * 10)
    scheduler.host_wait([source])
    latch.release()
    np.testing.assert_array_equal(read(last), VALUES)
    np.testing.assert_array_equal(read(middle), VALUES * 10)


def test_a_dead_middle_is_not_used_again_before_it_is_passed_on(platform: Platform) -> None:
    first, second, third = platform.devices[:3]
    scheduler = platform.scheduler
    source = put(first, VALUES)
    middle, last = new(second, source, "transfer"), new(third, source, "transfer")
    latch = scheduler.hold(second.transfer_to(third))
    scheduler.submit_moves(chain(source, middle, last), after=AFTER)
    del middle
    others = [put(second, VALUES * i) for i in range(4)]
    scheduler.host_wait(others)
    latch.release()
    np.testing.assert_array_equal(read(last), VALUES)


def test_a_relay_of_what_failed_fails_with_the_same_error(platform: Platform) -> None:
    first, second, third = platform.devices[:3]
    source = compute(failing("no source"), put(first, VALUES))
    middle, last = new(second, source, "transfer"), new(third, source, "transfer")
    platform.scheduler.submit_moves(chain(source, middle, last), after=AFTER)
    for buffer in (middle, last, compute(ADD_ONE, last)):
        with pytest.raises(ValueError, match="no source"):
            read(buffer)


def test_a_plan_that_is_broken_off_leaves_its_buffers_ordered(platform: Platform) -> None:
    first, second, third = platform.devices[:3]
    scheduler = platform.scheduler
    source = put(first, VALUES)
    middle, last = new(second, source, "transfer"), new(third, source, "transfer")
    *good, (_, stream, *ends) = chain(source, middle, last)
    broken = CopyTask(("no slices",), None, "", 32)  # type: ignore[arg-type]
    with pytest.raises((IndexError, ValueError)):
        scheduler.submit_moves([*good, (broken, stream, *ends)], after=AFTER)
    scheduler.upload(middle, VALUES * 10)
    scheduler.upload(last, VALUES * 20)
    np.testing.assert_array_equal(read(middle), VALUES * 10)
    np.testing.assert_array_equal(read(last), VALUES * 20)
