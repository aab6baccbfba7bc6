"""Ctrl-C at any point of a call: the call is given up, all that was enqueued by then stays in order."""

from __future__ import annotations

import collections
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import cuplace
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.device import Device
from cuplace.runtime.faults import Faults
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.platform import Platform
from cuplace.runtime.submission import next_id
from tests.runtime.streams import ADD_ONE, SQUARE, compute, copy_task, finish, move, new, put, read, used

pytestmark = pytest.mark.order(once=True)

RUNTIME = os.path.join(os.path.dirname(cuplace.__file__), "runtime")
VALUES = np.arange(64, dtype=np.int64)


class InterruptAfter:
    """Inside the block, one interrupt arrives at the n-th point of the runtime's code where Python handles signals:
    at the start of a function, or after a call of a C function. ``arrived`` tells whether there were so many."""

    def __init__(self, points: int) -> None:
        self.left = points
        self.arrived = False

    def __enter__(self) -> InterruptAfter:
        sys.settrace(self.at_call)
        sys.setprofile(self.at_return)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)
        sys.settrace(None)

    def at_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self.at_first_line if frame.f_code.co_filename.startswith(RUNTIME) else None

    def at_first_line(self, frame: FrameType, event: str, argument: Any) -> None:
        # Not at the call itself: there CPython 3.11 sometimes takes what is raised for something else.
        frame.f_trace_lines = False
        if event == "line":
            self.count()

    def at_return(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_return" and frame.f_code.co_filename.startswith(RUNTIME):
            self.count()

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.arrived = True
            signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _python_handles_interrupts() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def computes(source: Buffer, other: Device) -> Any:
    return compute(ADD_ONE, source)


def batches(source: Buffer, other: Device) -> Any:
    results = [new(source.device, source) for _ in range(2)]
    launches = [(source.device.compute, (source,), (result,)) for result in results]
    source.device.scheduler.submit_batch(SQUARE, launches)
    return results


def results(source: Buffer, other: Device) -> Any:
    made = [(source.array.shape, source.array.dtype, source.nbytes)]
    return source.device.scheduler.submit_new(ADD_ONE, made, [source.device] * 2, [[source] * 2])[0]


def moves(source: Buffer, other: Device) -> Any:
    targets = [new(other, source, TRANSFER) for _ in range(2)]
    stream = source.device.transfer_to(other)
    source.device.scheduler.submit_moves([(copy_task(source), stream, source, target) for target in targets])
    return targets


def staged(source: Buffer, other: Device) -> Any:
    """Where GPUs do not reach each other a move ends on another stream than it began on."""
    return moves(source, other)


def uploads(source: Buffer, other: Device) -> Any:
    return [put(other, VALUES * 9), put(other, VALUES * 9)]


def uploads_packed(source: Buffer, other: Device) -> Any:
    targets = [new(other, source, TRANSFER) for _ in range(2)]
    other.scheduler.upload_batch([(target, VALUES * 9) for target in targets])
    return targets


def drops(source: Buffer, other: Device) -> Any:
    for _ in range(2):
        move(source, other)


def wait_for(platform: Platform, devices: tuple[Device, ...]) -> None:
    """Until all streams are empty; fails where one never is."""
    end = time.monotonic() + 20
    for device in devices:
        for stream in device.streams():
            event = stream.record(next_id())
            while event is not None and not platform.backend.query(event):
                assert time.monotonic() < end, f"{stream.name} hangs"


CALLS = [computes, batches, results, moves, staged, uploads, uploads_packed, drops]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_nothing_is_forgotten(
    platform: Platform, call: Callable[[Buffer, Device], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streams are held during the call, so that what it enqueued still waits to write when the call's buffers
    are dropped and their memory is asked for again."""
    monkeypatch.setattr("cuplace.runtime.scheduler.doors.WORTHWHILE", 2)
    if call is staged and platform.name != "cpu":
        platform.set_faults(Faults(no_p2p=True))
    devices = platform.devices[:3]
    device, other, third = devices
    streams = (device.compute, device.transfer_to(other), other.upload)
    source, fresh = put(device, VALUES), put(third, VALUES + 100)
    read(source)
    points = 0
    interrupt = None
    while interrupt is None or interrupt.arrived:
        points += 1
        latches = [platform.scheduler.hold(stream) for stream in streams]
        interrupt = InterruptAfter(points)
        try:
            with interrupt:
                call(source, other)
        except KeyboardInterrupt:
            pass
        later = [move(fresh, to) for to in (device, other) for _ in range(2)]
        for buffer in later:
            np.testing.assert_array_equal(read(buffer), VALUES + 100)
        for latch in latches:
            latch.release()
        wait_for(platform, devices)
        for buffer in later:
            np.testing.assert_array_equal(read(buffer), VALUES + 100)
        np.testing.assert_array_equal(read(compute(SQUARE, source)), VALUES**2)
        del later, buffer
    assert points > 20
    gc.collect()  # frames of tracebacks
    finish(platform)
    assert used(platform) == {"bytes_in_use": source.nbytes + fresh.nbytes, "bytes_parked": 0}


class Emptied(collections.deque[Any]):
    """A graveyard that a handler of a signal empties between the look at it and the first grip."""

    seen = False

    def __bool__(self) -> bool:
        first, self.seen = not self.seen, True
        return first or len(self) > 0


def test_a_handler_may_take_in_what_a_call_was_about_to(platform: Platform) -> None:
    scheduler = platform.scheduler
    given, scheduler.graveyard = scheduler.graveyard, Emptied()
    try:
        scheduler.park()
        assert scheduler.graveyard.seen
    finally:
        scheduler.graveyard = given
