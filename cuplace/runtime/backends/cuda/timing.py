"""Measurement: when work runs on the GPUs of a platform, for as long as a profile is open.

Before and after each piece of work an event with a time is recorded on its lane. Nothing waits for these events, and no
stream for another because of them. Their times are read when somebody asks, or when there are many: then those that are
complete are read and used again, so that no more are alive than pieces of work are unfinished.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from cupy.cuda import nvtx

from cuplace.runtime.backends.cuda.gpu_clock import APART_NS, GpuClock, Mark, Moment

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.gpu import Gpu
    from cuplace.runtime.backends.cuda.lane import Lane
    from cuplace.runtime.backends.cuda.stream import CudaStream
    from cuplace.runtime.submission import Submission

MOST_PENDING = 4096
"""So many pieces of work are measured before the first of them are read."""

_CALIBRATION = 200


class Timed:
    """A piece of work that is measured: being enqueued, or under way."""

    __slots__ = ("_meter", "end", "named", "start", "submission")

    def __init__(self, meter: Meter, submission: Submission, start: Mark | None, named: bool) -> None:
        self._meter: Meter | None = meter  # until it is enqueued
        self.submission = submission
        self.start = start
        self.end: Mark | None = None
        self.named = named  # whether a range of NVTX is open

    def begins_now(self, lane: Lane) -> None:
        """What is enqueued from now on is the work: before it, the host had to wait."""
        if self.start is not None:
            self.start.clock.again(self.start, lane)

    def ends(self, lane: Lane) -> None:
        """All of it is enqueued; its end is on this lane."""
        meter, self._meter = self._meter, None
        if self.start is not None and meter is not None:
            meter.ends(self, lane)
        if self.named:
            nvtx.RangePop()

    @property
    def is_lost(self) -> bool:
        """Whether its times will never be known."""
        return any(mark is None or mark.clock.gpu.lost is not None for mark in (self.start, self.end))

    def give_back(self) -> None:
        """Its events are not needed any more."""
        for mark in (self.start, self.end):
            if mark is not None:
                mark.give_back()


class Meter:
    """Measures what is enqueued on some GPUs. It is their ``meter`` while a profile is open."""

    def __init__(self, gpus: Sequence[Gpu], now: Callable[[], int]) -> None:
        self._gpus = gpus
        self._now = now
        self._open = 0
        self._naming = 0
        self._clocks: dict[Gpu, GpuClock] = {}
        self._pending: deque[Timed] = deque()
        self._measured: list[tuple[Submission, Moment, Moment]] = []
        self._ends: dict[int, int] = {}  # by submission, of those whose times have been told
        self._lock = threading.RLock()  # re-entrant: a destructor that computes may run under it

    @property
    def error_ns(self) -> float:
        """Times of one GPU and those of others, or of the host, are wrong against each other by at most so much."""
        return sum(sorted(clock.error_ns for clock in self._clocks.values())[-2:])

    def open(self, naming: bool) -> None:
        """One more profile; ``naming``: it wants ranges of NVTX."""
        with self._lock:
            self._open += 1
            self._naming += naming
            self._anchor()
            for gpu in self._gpus:
                if gpu.in_use and gpu.lost is None:
                    self._clock(gpu)
                gpu.meter = self

    def close(self, naming: bool) -> None:
        """One profile less."""
        with self._lock:
            self._open -= 1
            self._naming -= naming
            self._anchor()
            if not self._open:
                for gpu in self._gpus:
                    gpu.meter = None

    @property
    def is_open(self) -> bool:
        return self._open > 0

    def begins(self, stream: CudaStream, submission: Submission) -> Timed:
        """A piece of work is about to be enqueued on a stream. The host knows when it works itself."""
        named = self._naming > 0
        if named:
            nvtx.RangePush(f"{submission.kind} {submission.name} {submission.line or ''}".rstrip())
        if stream.role == "host":
            return Timed(self, submission, None, named)
        lane = stream.lane
        with self._lock:
            clock = self._clock(lane.gpu)
            if submission.enqueue - clock.anchored > APART_NS:
                clock.anchor()
            return Timed(self, submission, clock.mark(lane), named)

    def ends(self, timed: Timed, lane: Lane) -> None:
        """It has been enqueued."""
        with self._lock:
            timed.end = self._clock(lane.gpu).mark(lane)
            self._pending.append(timed)
            if len(self._pending) > MOST_PENDING:
                self._collect()

    def read(self) -> None:
        """Wait for what was measured, and tell the records their times."""
        while (timed := self._oldest()) is not None:
            for mark in (timed.start, timed.end):
                if mark is not None:
                    mark.clock.wait(mark)
            with self._lock:
                self._collect()
        with self._lock:
            self._anchor()
            for clock in self._clocks.values():
                clock.draw()
            for submission, start, end in self._measured:
                known = [self._ends[id] for id in submission.waits if id in self._ends]
                submission.start = max(start.host_ns, submission.enqueue, *known)  # clocks are not exact, order is
                submission.end = self._ends[submission.id] = max(end.host_ns, submission.start)
            self._measured = []

    def seconds_a_record(self) -> float:
        """What measuring adds to the enqueueing of one piece of work, measured now."""
        gpu = next((gpu for gpu in self._gpus if gpu.in_use and gpu.lost is None), None)
        if gpu is None:
            return 0.0
        with self._lock:
            clock, lane = self._clock(gpu), gpu.lane("clock", 0)
            start = perf_counter()
            marks = [clock.mark(lane) for _ in range(2 * _CALIBRATION)]
            seconds = perf_counter() - start
        for mark in marks:
            if mark is not None:
                mark.give_back()
        return seconds / _CALIBRATION

    def _oldest(self) -> Timed | None:
        with self._lock:
            return self._pending[0] if self._pending else None

    def _clock(self, gpu: Gpu) -> GpuClock:
        clock = self._clocks.get(gpu)
        if clock is None:
            clock = self._clocks[gpu] = GpuClock(gpu, self._now)
        return clock

    def _anchor(self) -> None:
        for clock in self._clocks.values():
            clock.anchor()

    def _collect(self) -> None:
        """Read what is complete, from the oldest on. What ended on a GPU that is lost has no times."""
        while self._pending:
            timed = self._pending[0]
            start, end = _moment(timed.start), _moment(timed.end)
            if start is not None and end is not None:
                self._measured.append((timed.submission, start, end))
            elif not timed.is_lost:
                return
            self._pending.popleft()
            timed.give_back()

    def __del__(self) -> None:
        for timed in self._pending:
            timed.give_back()
        for clock in self._clocks.values():
            clock.close()


class Measurement:
    """What one profile asked to be measured. Implements ``runtime.backends.base.Measurement``."""

    def __init__(self, meter: Meter, naming: bool) -> None:
        self._meter = meter
        self._naming = naming
        meter.open(naming)

    @property
    def error_ns(self) -> float:
        return self._meter.error_ns

    def end(self) -> None:
        self._meter.close(self._naming)

    def read(self) -> None:
        self._meter.read()

    def seconds_a_record(self) -> float:
        return self._meter.seconds_a_record()


def _moment(mark: Mark | None) -> Moment | None:
    after = None if mark is None else mark.clock.after(mark)
    return None if mark is None or after is None else Moment(mark.clock, mark.anchor, after)
