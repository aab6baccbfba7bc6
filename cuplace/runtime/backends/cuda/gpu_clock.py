"""GpuClock: what the host's clock shows when an event of a GPU is complete.

CUDA tells the time between two events of one GPU, by a clock of that GPU, which starts and runs as it likes. Anchors
tie it to the host's clock: events on a stream where nothing else is, of which the host knows when it began to record
them and when it saw that they were complete. In between, somewhere, the GPU has noted its time. Several of them in a
row narrow this down.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from cupy.cuda import runtime

from cuplace.runtime.backends.cuda.failure import NOT_READY, is_sticky

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.gpu import Gpu
    from cuplace.runtime.backends.cuda.lane import Lane

APART_NS = 1_000_000_000
"""While something is enqueued, anchors are at most so far apart: milliseconds as CUDA tells them, in 24 bits, are then
exact to 60 ns, and clocks that drift by 100 parts in a million have gone apart by 100 us, which the anchors tell."""

PATIENCE_NS = 2_000_000
"""The host gives an anchor up after so long: its stream may share a queue of the hardware with one that is held."""

_TRIES = 5
_UNKNOWN = 16  # of so many anchors some may not be complete yet
_PAUSE = 50e-6
_default_flags = 0


class Mark(NamedTuple):
    """An event, and the anchor of its GPU from which its time is told.

    Attributes:
        clock: of the GPU.
        anchor: the number of the anchor.
        handle: CUDA's.
    """

    clock: GpuClock
    anchor: int
    handle: int

    def give_back(self) -> None:
        """Its event is not needed any more."""
        self.clock.give_back(self.handle)


class Moment(NamedTuple):
    """What is left of a mark whose time is known: so many nanoseconds of the GPU after an anchor."""

    clock: GpuClock
    anchor: int
    after: float

    @property
    def host_ns(self) -> int:
        """What the host's clock showed then."""
        return self.clock.host_ns(self.anchor, self.after)


class Anchor:
    """An event of which the host knows when it was complete.

    Attributes:
        handle: CUDA's.
        low, high: nanoseconds of the host's clock between which it was.
        step: nanoseconds of the GPU's clock since the anchor before; None as long as they are not known.
    """

    __slots__ = ("handle", "high", "low", "step")

    def __init__(self, handle: int, low: float) -> None:
        self.handle = handle
        self.low = low
        self.high = math.inf
        self.step: float | None = None

    @property
    def is_told(self) -> bool:
        """Whether the host saw it complete in time."""
        return self.high < math.inf

    def narrow(self, low: float, high: float) -> None:
        low, high = max(low, self.low), min(high, self.high)
        if low > high:  # by as little as CUDA's times are exact
            low = high = (low + high) / 2
        self.low, self.high = low, high


class GpuClock:
    """The clock of one GPU.

    Attributes:
        gpu: the GPU.
        anchored: when the host made the latest anchor.
    """

    def __init__(self, gpu: Gpu, now: Callable[[], int]) -> None:
        self.gpu = gpu
        self.anchored = 0
        self._now = now
        self._lane = gpu.lane("clock", 0)
        self._anchors: list[Anchor] = []
        self._times: list[float] = []  # of the anchors, by the GPU
        self._line: list[tuple[float, float]] = []  # of those that tell: the GPU's time, and what the host's is ahead
        self.anchor()

    @property
    def error_ns(self) -> float:
        """The times of the host are wrong by at most so much, as far as the clocks drift evenly between anchors."""
        spans = [anchor.high - anchor.low for anchor in self._anchors if anchor.is_told]
        return max(spans, default=math.inf if self._anchors else 0.0)

    def anchor(self) -> None:
        """Make another anchor. The host waits for its stream alone, where nothing else is, and not for long."""
        self.anchored = self._now()
        handle = self._new_event()
        if handle:
            anchor = Anchor(handle, self.anchored)
            self._anchors.append(anchor)
            for _ in range(_TRIES):
                if not self._try(anchor):
                    break
            self._steps()

    def mark(self, lane: Lane) -> Mark | None:
        """The moment at which a lane has done what it was given; None where the GPU is lost."""
        handle = self._new_event()
        if not handle or not self._record(handle, lane):
            return None
        return Mark(self, len(self._anchors) - 1, handle)

    def again(self, mark: Mark, lane: Lane) -> None:
        """Let a mark be a later one."""
        self._record(mark.handle, lane)

    def after(self, mark: Mark) -> float | None:
        """How long after its anchor a mark was reached, in nanoseconds; None where that is not known yet."""
        return self._elapsed(self._anchors[mark.anchor].handle, mark.handle)

    def give_back(self, handle: int) -> None:
        self.gpu.timed_events.append(handle)

    def wait(self, mark: Mark) -> None:
        """Wait until a mark is reached, or the GPU is lost."""
        while self.gpu.lost is None and not self._is_complete(mark.handle):
            time.sleep(_PAUSE)

    def host_ns(self, anchor: int, after: float) -> int:
        """What the host's clock showed, in nanoseconds, at a time after an anchor; for the anchors that `draw` saw."""
        gpu_time, line = self._times[anchor] + after, self._line
        i = bisect_right(line, (gpu_time, math.inf))
        (start, ahead), (end, ahead_then) = line[max(i - 1, 0)], line[min(i, len(line) - 1)]
        share = (gpu_time - start) / (end - start) if end > start else 0.0
        return round(gpu_time + ahead + share * (ahead_then - ahead))

    def draw(self) -> None:
        """Find out by how much the host's clock is ahead at each anchor: by what it was before, unless the anchor tells
        that it must be more or less."""
        self._steps()
        self._times = list(accumulate(map(_step, self._anchors[1:], self._anchors), initial=0.0))
        line: list[tuple[float, float]] = []
        for gpu_time, anchor in zip(self._times, self._anchors, strict=False):
            if anchor.is_told:
                low, high = anchor.low - gpu_time, anchor.high - gpu_time
                ahead = line[-1][1] if line else (low + high) / 2
                line.append((gpu_time, min(max(ahead, low), high)))
        # Where none tells, nothing better is known than when the first was recorded.
        self._line = line or [(0.0, anchor.low) for anchor in self._anchors[:1]]

    def close(self) -> None:
        """No times are asked for any more."""
        for anchor in self._anchors:
            self.give_back(anchor.handle)

    def _steps(self) -> None:
        """Ask for the time between neighbouring anchors, where it is not known yet."""
        for before, anchor in pairwise(self._anchors[-_UNKNOWN:]):
            if anchor.step is None:
                anchor.step = self._elapsed(before.handle, anchor.handle)

    def _try(self, anchor: Anchor) -> bool:
        """Record an event, wait for it, and let it narrow the anchor down; the first one is the anchor's own."""
        first = anchor.high == math.inf
        handle = anchor.handle if first else self._new_event()
        before = self._now()
        if not handle or not self._record(handle, self._lane):
            return False
        while not (complete := self._is_complete(handle)) and self._now() - before <= PATIENCE_NS:
            pass
        seen = self._now()
        after = 0.0 if first else self._elapsed(anchor.handle, handle)
        if not first:
            self.give_back(handle)
        if not complete or after is None or self.gpu.lost is not None:
            return False
        anchor.narrow(before - after, seen - after)
        return True

    def _new_event(self) -> int:
        gpu = self.gpu
        if gpu.lost is not None:
            return 0
        try:
            return gpu.timed_events.pop()
        except IndexError:
            pass
        try:
            with gpu.device:
                return int(runtime.eventCreateWithFlags(_default_flags))
        except runtime.CUDARuntimeError as failure:
            self._fails(failure)
            return 0

    def _record(self, handle: int, lane: Lane) -> bool:
        try:
            runtime.eventRecord(handle, lane.ptr)
        except runtime.CUDARuntimeError as failure:
            self.give_back(handle)
            self._fails(failure)
            return False
        return True

    def _is_complete(self, handle: int) -> bool:
        """Whether an event is complete, or never will be, since the GPU is lost."""
        status = runtime.eventQuery(handle)
        if status not in (0, NOT_READY):
            self._fails(runtime.CUDARuntimeError(status))
        return bool(status != NOT_READY)

    def _elapsed(self, start: int, end: int) -> float | None:
        """Nanoseconds between two events; None where one of them is not complete, or the GPU is lost."""
        if self.gpu.lost is not None:
            return None
        try:
            return float(runtime.eventElapsedTime(start, end)) * 1e6
        except runtime.CUDARuntimeError as failure:
            if failure.status != NOT_READY:
                self._fails(failure)
            return None

    def _fails(self, failure: runtime.CUDARuntimeError) -> None:
        if not is_sticky(failure):
            raise failure
        self.gpu.failed(failure)


def _step(anchor: Anchor, before: Anchor) -> float:
    """Nanoseconds of the GPU between two anchors. A GPU that was lost tells nothing: then they are the host's."""
    return anchor.low - before.low if anchor.step is None else anchor.step
