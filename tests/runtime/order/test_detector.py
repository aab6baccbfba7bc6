"""What the detector makes of calls, told by hand: which edges order accesses, and what a report says."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuplace.errors import RaceError
from cuplace.runtime.caller import caller
from cuplace.runtime.order.detector import Detector
from cuplace.runtime.order.region import PAGE_BYTES
from cuplace.runtime.submission import Submission
from cuplace.runtime.task import ComputeTask, CopyTask

COMPUTE = ComputeTask("add", lambda reads, writes, scalars: None, 0.0)
MOVE = CopyTask(None, None, "peer", 64)


class Stream(SimpleNamespace):
    """Something with a name that is equal to itself only."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class Told:
    """A detector and the streams that it is told of."""

    def __init__(self) -> None:
        self.detector = Detector()
        self.ids = iter(range(1, 100_000))

    def stream(self, name: str) -> Any:
        return Stream(name=name)

    def work(self, stream: Any, reads: tuple[Any, ...], writes: tuple[Any, ...], task: Any = COMPUTE) -> Any:
        """Work on a stream, and the event after it."""
        ids = iter(range(1000, 2000))
        submission = Submission(
            next(self.ids), task, stream, tuple(next(ids) for _ in reads), tuple(next(ids) for _ in writes), (),
            caller(), 0,
        )  # fmt: skip
        self.detector.works(stream, submission, reads, writes)
        event = SimpleNamespace(stream=stream, submission=submission.id)
        self.detector.recorded(stream, event)
        return event


@pytest.fixture
def told() -> Told:
    return Told()


def test_one_stream_is_in_order(told: Told) -> None:
    memory, one = np.zeros(8), told.stream("one")
    for _ in range(3):
        told.work(one, (), (memory,))
        told.work(one, (memory,), ())


def test_a_wait_orders_and_only_what_comes_after_it(told: Told) -> None:
    memory, one, other = np.zeros(8), told.stream("one"), told.stream("other")
    event = told.work(one, (), (memory,))
    with pytest.raises(RaceError):
        told.work(other, (memory,), ())
    told.detector.waited(other, event)
    told.work(other, (memory,), ())
    told.work(one, (), (np.zeros(8),))
    with pytest.raises(RaceError):  # the reader is unordered with a writer on the first stream
        told.work(one, (), (memory,))


def test_waits_are_passed_on(told: Told) -> None:
    memory, streams = np.zeros(8), [told.stream(str(i)) for i in range(4)]
    event = told.work(streams[0], (), (memory,))
    for stream in streams[1:]:
        told.detector.waited(stream, event)
        event = told.work(stream, (), (np.zeros(1),))
    told.work(streams[-1], (), (memory,))


def test_an_event_is_of_the_time_of_its_recording(told: Told) -> None:
    memory, one, other = np.zeros(8), told.stream("one"), told.stream("other")
    early = told.work(one, (), (np.zeros(1),))
    told.work(one, (), (memory,))
    told.detector.waited(other, early)
    with pytest.raises(RaceError):
        told.work(other, (memory,), ())


def test_what_the_host_has_seen_orders_all_that_is_enqueued_later(told: Told) -> None:
    memory, one, other, third = np.zeros(8), told.stream("one"), told.stream("other"), told.stream("third")
    event = told.work(one, (), (memory,))
    with pytest.raises(RaceError, match="the host does not wait for an event recorded on stream 'one'"):
        told.detector.reads_on_host(memory, "reading an array", None)
    told.detector.completed(event)
    told.detector.reads_on_host(memory, "reading an array", None)
    told.work(other, (memory,), ())
    complete = told.work(third, (), (np.zeros(8),))
    assert complete is not None
    told.detector.recorded(third, None)  # nothing of it is unfinished


def test_an_empty_record_says_that_all_is_complete(told: Told) -> None:
    memory, one, other = np.zeros(8), told.stream("one"), told.stream("other")
    told.work(one, (), (memory,))
    told.detector.recorded(one, None)
    told.work(other, (), (memory,))


def test_two_reads_need_no_order(told: Told) -> None:
    memory, one, other = np.zeros(8), told.stream("one"), told.stream("other")
    told.work(one, (memory,), ())
    told.work(other, (memory,), ())
    told.detector.reads_on_host(memory, "reading an array", None)
    with pytest.raises(RaceError):
        told.work(other, (), (memory,))


def test_boxes_that_do_not_meet_need_no_order(told: Told) -> None:
    memory, streams = np.zeros((8, 8)), [told.stream(str(i)) for i in range(4)]
    for i, stream in enumerate(streams):
        told.work(stream, (), (memory[:, 2 * i : 2 * i + 2],), MOVE)
    with pytest.raises(RaceError):
        told.work(streams[0], (), (memory[:1],), MOVE)


def test_a_race_leaves_no_trace(told: Told) -> None:
    """What was refused never ran: later work need not be ordered with it."""
    memory, one, other = np.zeros(8), told.stream("one"), told.stream("other")
    told.work(one, (), (memory,))
    with pytest.raises(RaceError):
        told.work(other, (), (memory,))
    told.work(one, (), (memory,))


def test_a_report_names_both_uses_and_the_missing_wait(told: Told) -> None:
    memory, one, other = np.zeros(8), told.stream("sim:0 compute"), told.stream("sim:0 -> sim:1")
    told.work(one, (), (memory,))
    with pytest.raises(RaceError) as caught:
        told.work(other, (memory[2:],), (), MOVE)
    first, second, missing, *rest = str(caught.value).splitlines()[1:]
    assert "compute 'add', on stream 'sim:0 compute', writes 64 bytes of buffer 1000; from " in first
    assert "move, on stream 'sim:0 -> sim:1', reads 48 bytes of buffer 1000; from " in second
    assert f"{__file__}:" in first
    assert f"{__file__}:" in second
    assert "stream 'sim:0 -> sim:1' does not wait for an event recorded on stream 'sim:0 compute'" in missing
    assert not rest


def test_a_report_tells_where_memory_changed_hands(told: Told) -> None:
    memory, one, other = np.zeros(8), told.stream("one"), told.stream("other")
    told.work(one, (memory,), ())
    with pytest.raises(RaceError, match="had died, and its memory was given to the second one too early"):
        told.work(other, (np.zeros(1),), (memory,))


def test_memory_that_is_gone_has_no_history(told: Told) -> None:
    one, other = told.stream("one"), told.stream("other")
    for _ in range(50):
        memory = np.zeros(1 << 16)
        told.work(one, (), (memory,))
        del memory
        gc.collect()
        again = np.zeros(1 << 16)  # often at the same address
        told.work(other, (), (again,))
        del again
    assert len(told.detector._histories) <= 2


def test_events_from_before_are_no_error(told: Told) -> None:
    stream = told.stream("one")
    before = SimpleNamespace(stream=told.stream("before"), submission=7)
    told.detector.waited(stream, before)
    told.detector.completed(before)


def test_moments_that_all_later_work_knows_are_forgotten(told: Told) -> None:
    one = told.stream("one")
    memory = np.zeros(1)
    for _ in range(2000):
        told.detector.completed(told.work(one, (), (memory,)))
    assert sum(map(len, told.detector._moments.values())) <= 300


class OnGpu:
    """A contiguous array as CuPy has them: where it is, and no memory of the host."""

    def __init__(self, address: int, count: int) -> None:
        self.data = SimpleNamespace(ptr=address)
        self.shape, self.strides, self.itemsize, self.nbytes = (count,), (8,), 8, 8 * count


ADDRESS = 7 * PAGE_BYTES - 32


def test_memory_of_a_gpu_is_known_by_its_addresses(told: Told) -> None:
    """Also across pages, and in arrays that know nothing of one another."""
    one, other = told.stream("one"), told.stream("other")
    event = told.work(one, (), (OnGpu(ADDRESS, 8),))
    told.work(other, (), (OnGpu(ADDRESS + 64, 8),))
    for count in (1, 8):
        with pytest.raises(RaceError):
            told.work(other, (OnGpu(ADDRESS + 8 * (8 - count), count),), ())
    told.detector.waited(other, event)
    told.work(other, (OnGpu(ADDRESS, 8),), ())


def test_what_a_driver_hands_out_has_no_past(told: Told) -> None:
    one, other = told.stream("one"), told.stream("other")
    told.work(one, (), (OnGpu(ADDRESS, 8),))
    told.detector.is_new(ADDRESS + 8, 8 * 6)
    told.work(other, (), (OnGpu(ADDRESS + 8, 6),))
    for end in (0, 7):
        with pytest.raises(RaceError):
            told.work(other, (), (OnGpu(ADDRESS + 8 * end, 1),))


def test_a_driver_that_takes_memory_back_has_waited_for_all_work(told: Told) -> None:
    one, other = told.stream("one"), told.stream("other")
    told.work(one, (), (OnGpu(ADDRESS, 8),))
    told.detector.all_completed()
    told.work(other, (), (OnGpu(ADDRESS, 8),))


def test_an_event_may_be_of_another_stream_than_the_work_began_on(told: Told) -> None:
    """A move ends where it arrives."""
    departure, arrival, other = (told.stream(name) for name in ("departure", "arrival", "other"))
    for i in range(400):
        event = told.work(departure, (), (OnGpu(ADDRESS, 8),))
        event = SimpleNamespace(stream=arrival, submission=event.submission)
        told.detector.recorded(departure, event)
        if i % 2:
            told.detector.completed(event)
    told.detector.waited(other, event)
    told.work(other, (OnGpu(ADDRESS, 8),), ())
    assert sum(map(len, told.detector._moments.values())) <= 600


def test_streams_that_share_a_queue_are_in_order(told: Told) -> None:
    one, other, third = told.stream("one"), told.stream("other"), told.stream("third")
    one.lane = other.lane = third
    told.work(one, (), (OnGpu(ADDRESS, 8),))
    told.work(other, (OnGpu(ADDRESS, 8),), ())
    with pytest.raises(RaceError, match="recorded on stream 'one'"):
        told.work(told.stream("apart"), (), (OnGpu(ADDRESS, 8),))
