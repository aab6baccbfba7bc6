"""Profile: what a program enqueued inside a `with` block, when it ran, and why not earlier."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, TextIO

from cuplace import errors
from cuplace.profiling.bubble import Bubble, bubble_of
from cuplace.profiling.gaps import Gap, gaps_of
from cuplace.profiling.intervals import common, length, merged
from cuplace.profiling.report import report_text
from cuplace.profiling.spans import COMPUTE, TRANSFER, Lane, Span, lanes_of, spans_of
from cuplace.profiling.svg import svg_text
from cuplace.profiling.trace import trace_text
from cuplace.runtime.platform import Platform, current
from cuplace.runtime.submission import HostWait, Submission, SubmissionLog

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Measurement

_CALIBRATION = 2000


class Profile:
    """What ran inside ``with cuplace.profile() as prof:``. Looking at it waits for what is still running.

    Times are nanoseconds: of virtual time on the simulator, measured elsewhere. On `cuda` they are known when somebody
    looks at the profile.

    Attributes:
        records: the submissions, in the order in which they were enqueued.
        waits: the times in which the host waited.
        clock: what the times are, in words.
    """

    def __init__(
        self, platform: Platform, records: Sequence[Submission], waits: Sequence[HostWait],
        measurement: Measurement | None = None,
    ) -> None:  # fmt: skip
        self._platform = platform
        self._measurement = measurement
        self.records = records
        self.waits = waits
        machine = getattr(platform.backend, "machine", None)
        self.clock = "measured" if machine is None else f"in virtual time on {machine.name}"

    @cached_property
    def spans(self) -> list[Span]:
        """What ran, with its times, in the order in which it was enqueued."""
        streams = [stream for device in self._platform.devices for stream in device.streams()]
        self._platform.scheduler.drain(streams)
        if self._measurement is not None:
            self._measurement.read()
        return spans_of(self.records)

    @cached_property
    def lanes(self) -> list[Lane]:
        """Where it ran: for each device what it computes, then what it receives."""
        return lanes_of(self.spans)

    @cached_property
    def gaps(self) -> list[Gap]:
        """The times in which a device waited between two computations, with the reasons; the longest first."""
        return gaps_of(self.spans, self.records, self.waits)

    @cached_property
    def bubble(self) -> Bubble | None:
        """The idle share of the devices; None where nothing was computed."""
        return bubble_of(self.spans, self.records)

    @property
    def start(self) -> float:
        """When the first call began to enqueue."""
        return min((record.enqueue for record in self.records), default=0)

    @property
    def seconds(self) -> float:
        """From the first call to the end of the last work, in seconds."""
        return (max((span.end for span in self.spans), default=self.start) - self.start) * 1e-9

    def busy(self, *lanes: Lane) -> float:
        """The share of the whole time in which something runs in one of the lanes."""
        mine = merged((span.start, span.end) for span in self.spans if span.lane in lanes)
        return length(mine) * 1e-9 / self.seconds if self.seconds else 0.0

    @property
    def transfer_seconds(self) -> float:
        """The sum of the times of all transfers, in seconds."""
        return length((span.start, span.end) for span in self.spans if span.lane.kind == TRANSFER) * 1e-9

    @property
    def hidden_seconds(self) -> float:
        """The part of `transfer_seconds` during which at least one device computed."""
        computing = merged((span.start, span.end) for span in self.spans if span.lane.kind == COMPUTE)
        transfers = [(span.start, span.end) for span in self.spans if span.lane.kind == TRANSFER]
        return sum(common(transfer, computing) for transfer in transfers) * 1e-9

    @property
    def clock_error(self) -> float:
        """By how many seconds times of one device may be wrong against those of another one, or of the host: 0 where
        all are told by one clock. On `cuda` it is how long the host took, at worst, to record an event on an idle
        stream and to see it complete, of two GPUs together."""
        return 0.0 if self._measurement is None else self._measurement.error_ns * 1e-9

    def cost_of_a_record(self) -> float:
        """Seconds that being recorded and measured adds to the enqueueing of one piece of work, measured now."""
        log = SubmissionLog()
        off = _appending(log)
        with log.record():
            recording = max(0.0, _appending(log) - off)
        return recording + (0.0 if self._measurement is None else self._measurement.seconds_a_record())

    def __str__(self) -> str:
        return report_text(self)

    def __repr__(self) -> str:
        return f"Profile({len(self.records)} records)"

    def report(self, width: int = 72, file: TextIO | None = None) -> None:
        """Print lanes, busy shares, hidden and exposed transfers, the bubble, and what the longest gaps waited for.

        Args:
            width: of the lanes, in characters.
            file: where to; by default standard output.
        """
        print(report_text(self, width), file=sys.stdout if file is None else file)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a trace that https://ui.perfetto.dev opens (JSON, Chrome's trace event format).

        Raises:
            OSError: the file cannot be written.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(trace_text(self))

    def svg(self, path: str | PathLike[str]) -> None:
        """Draw the lanes as an SVG picture.

        Raises:
            OSError: the file cannot be written.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(svg_text(self))

    def to_dict(self) -> dict[str, Any]:
        """The figures of the report. Times are in seconds; None stands for what does not exist."""
        bubble = self.bubble
        return {
            "clock": self.clock,
            "records": len(self.records),
            "seconds": self.seconds,
            "busy": {f"{lane.kind} {lane.name}": self.busy(lane) for lane in self.lanes},
            "transfer_seconds": self.transfer_seconds,
            "hidden_seconds": self.hidden_seconds,
            "bubble": None if bubble is None else bubble.share,
            "bubble_bound": None if bubble is None else bubble.bound,
            "gaps": [
                {"device": gap.lane.name, "seconds": (gap.end - gap.start) * 1e-9, "reason": gap.reason,
                 "text": gap.text, "before": gap.record.name, "line": str(gap.record.line)}
                for gap in self.gaps
            ],
        }  # fmt: skip


class ProfileBlock(AbstractContextManager["Profile"]):
    """What `profile` gives: the block, which gives the profile when it begins."""

    def __init__(self, nvtx: bool) -> None:
        self._block = _recorded(nvtx)

    def __enter__(self) -> Profile:
        return self._block.__enter__()

    def __exit__(self, *exception: Any) -> bool | None:
        return self._block.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise errors.ProfileBlockError(name)


def profile(*, nvtx: bool = False) -> ProfileBlock:
    """Record everything that is enqueued inside the ``with`` block, from any thread, on the current platform.

    Nothing waits for work at the end of the block; `Profile.report` and the like wait for what is still running.

    On `cuda` each piece of work is enclosed by two events that tell the time. No work waits for them. Each GPU has a
    clock of its own, which drifts: at the beginning, every second, at the end and when the profile is read, events on
    an idle stream of each GPU tie it to the clock of the host, which waits for these, some ten microseconds each. The
    host knows when it began to record such an event and when it saw it complete; what it takes for the time between is
    wrong by at most that difference, and several of them in a row make it smaller. Those of two GPUs together are
    `Profile.clock_error`. Times of one GPU are exact to half a microsecond against each other, as CUDA tells them.
    Work of a GPU that is lost has no times.

    Args:
        nvtx: also tell NVIDIA's profilers: while a piece of work is enqueued, a range of NVTX is open that has its
            kind, its name and the line of the program. Other platforms than `cuda` have no such profilers.

    Example::

        with cuplace.profile() as prof:
            outputs = [stage(mb) for mb in microbatches]
        prof.report()
        prof.svg("timeline.svg")
    """
    return ProfileBlock(nvtx)


@contextmanager
def _recorded(nvtx: bool) -> Iterator[Profile]:
    platform = current()
    log = platform.scheduler.log
    measurement = platform.backend.measure(nvtx)
    try:
        with log.record() as records, log.record_waits() as waits:
            yield Profile(platform, records, waits, measurement)
    finally:
        if measurement is not None:
            measurement.end()


def _appending(log: SubmissionLog) -> float:
    item: Any = None
    start = time.perf_counter()
    for _ in range(_CALIBRATION):
        log.append(item)
    return (time.perf_counter() - start) / _CALIBRATION
