"""Lanes: what is known of events without asking, what becomes of their handles, and that closing waits."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from cuplace.runtime.platform import Platform
from tests.fakegpus import Case
from tests.memory import Cycle
from tests.runtime.streams import ADD_ONE, compute, copy_behind_its_back, finish, new, put, read

pytestmark = pytest.mark.order(once=True)

VALUES = np.arange(24, dtype=np.int64)
LAZY = pytest.mark.parametrize("cuda", [Case("lazy")], indirect=True)


def lane_of(platform: Platform) -> Any:
    stream: Any = platform.devices[0].compute
    return stream.lane


def test_completion_is_noticed_where_nobody_waits(cuda: Platform) -> None:
    lane, source = lane_of(cuda), put(cuda.devices[0], VALUES)
    result = new(cuda.devices[0], source)
    for _ in range(64):
        cuda.scheduler.submit(ADD_ONE, cuda.devices[0].compute, (source,), (result,))
    assert lane._issued - lane.completed <= 32
    assert lane.completed > 0


def test_completion_is_noticed_at_once_where_somebody_waits(cuda: Platform) -> None:
    lane, source = lane_of(cuda), put(cuda.devices[0], VALUES)
    result = compute(ADD_ONE, source)
    read(result)
    assert all(event.done for event in result.writes)
    assert lane.completed == lane._issued


def test_handles_of_events_are_used_again(cuda: Platform) -> None:
    lane, source = lane_of(cuda), put(cuda.devices[0], VALUES)
    for _ in range(3):
        read(compute(ADD_ONE, source))
    before = len(lane.gpu.spare_events)
    event = lane.record(cuda.devices[0].compute, 0)
    assert len(lane.gpu.spare_events) == before - 1
    del event
    assert len(lane.gpu.spare_events) == before


def test_a_handle_is_not_used_again_while_something_keeps_its_event(cuda: Platform) -> None:
    """A destructor of the same garbage may: that of the event has been called then."""
    device = cuda.devices[0]
    lane, free = lane_of(cuda), device.download
    kept: list[Any] = []
    latch = cuda.scheduler.hold(device.compute)
    Cycle(lane.record(device.compute, 0), kept.append)
    gc.collect()
    later = [free.record(0) for _ in range(3)]
    assert kept[0].handle not in [event.handle for event in later]
    assert all(cuda.backend.query(event) for event in later)
    assert not cuda.backend.query(kept[0])
    latch.release()
    cuda.backend.synchronize(kept[0])
    handle = hex(kept.pop().handle)  # not the number itself: it is free when nobody else has it
    again = [free.record(0) for _ in range(len(lane.gpu.spare_events))]
    assert handle in [hex(event.handle) for event in again]


@pytest.mark.parametrize("cuda", [Case("eager")], indirect=True)
def test_who_was_given_an_event_by_garbage_waits_for_it_and_no_other(cuda: Platform) -> None:
    device, kept = cuda.devices[0], []
    source, target = put(device, VALUES), put(device, VALUES)
    finish(cuda)
    latch = cuda.scheduler.hold(device.compute)
    result = compute(ADD_ONE, source)
    Cycle(lane_of(cuda).record(device.compute, 0), kept.append)
    gc.collect()
    later = [device.download.record(0) for _ in range(3)]
    way = device.transfer_to(device)
    way.wait(kept[0])
    copy_behind_its_back(way, result.array, target.array)
    latch.release()
    cuda.backend.synchronize(way.record(0))
    assert all(cuda.backend.query(event) for event in later)
    np.testing.assert_array_equal(read(target), VALUES + 1)


def test_a_record_that_fails_keeps_its_handle(cuda: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuplace.runtime.backends.cuda import lane as module

    lane, source = lane_of(cuda), put(cuda.devices[0], VALUES)
    read(compute(ADD_ONE, source))
    read(compute(ADD_ONE, source))
    before = len(lane.gpu.spare_events)

    def fails(*arguments: Any) -> None:
        raise module.runtime.CUDARuntimeError(1)

    with monkeypatch.context() as patch:
        patch.setattr(module.runtime, "eventRecord", fails)
        event = lane.record(cuda.devices[0].compute, 0)
    assert event.done
    assert event.error is not None
    assert len(lane.gpu.spare_events) == before


@LAZY
def test_closing_waits_for_all_work(cuda: Platform) -> None:
    source = put(cuda.devices[0], VALUES)
    read(source)
    result = compute(ADD_ONE, source)
    cuda.backend.close()
    assert all(event.done for event in result.writes)
    np.testing.assert_array_equal(result.array.get(), VALUES + 1)  # on the null stream, which nothing orders with ours
