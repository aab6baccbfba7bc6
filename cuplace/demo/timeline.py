"""Span: what ran where from when to when; lanes of spans as text, and how much of them overlaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cuplace.profiling.intervals import common, merged
from cuplace.profiling.report import drawn
from cuplace.runtime.submission import Submission

COMPUTE = "compute"
TRANSFER = "transfer"


class Span(NamedTuple):
    """One piece of work: its device's number, `compute` or `transfer`, its label, and start and end."""

    device: int
    lane: str
    label: str
    start: float
    end: float


def measured(submissions: Sequence[Submission], label: Callable[[int], str]) -> list[Span]:
    """The spans as they ran, in nanoseconds. `label` gives the character of a submission's id."""
    place = _places(submissions)
    return [Span(*place(s), label(s.id), s.start, s.end) for s in submissions if s.start and s.end]


def replayed(submissions: Sequence[Submission], label: Callable[[int], str]) -> list[Span]:
    """The spans that the order alone allows: every piece of work takes one step, every stream runs by itself.

    A piece starts when the work before it on its stream, and all that it depends on, has ended: what wrote its
    reads, what read or wrote its writes, and what the scheduler made it wait for.
    """
    ends: dict[int, int] = {}
    streams: dict[object, int] = {}
    users: dict[int, list[int]] = {}
    writers: dict[int, list[int]] = {}
    spans = []
    place = _places(submissions)
    for s in submissions:
        before = {*s.waits}
        for buffer in s.reads:
            before.update(writers.get(buffer, ()))
        for buffer in s.writes:
            # Moves of one plan write disjoint boxes of a buffer, and the scheduler orders them by `waits` only.
            before.update(() if s.kind == "move" else users.get(buffer, ()))
        start = max([streams.get(s.stream, 0), *(ends[id] for id in before if id in ends)])
        ends[s.id] = streams[s.stream] = start + 1
        for buffer in s.reads:
            users.setdefault(buffer, []).append(s.id)
        for buffer in s.writes:
            writers[buffer] = [*(writers.get(buffer, ()) if s.kind == "move" else ()), s.id]
            users.setdefault(buffer, []).append(s.id)
        spans.append(Span(*place(s), label(s.id), start, start + 1))
    return spans


def _places(submissions: Iterable[Submission]) -> Callable[[Submission], tuple[int, str]]:
    """Where work is drawn: computing at its device, a transfer at the device that computes with what it brings."""
    readers = {buffer: s.device.id for s in submissions if s.kind == "compute" for buffer in s.reads}

    def place(s: Submission) -> tuple[int, str]:
        if s.kind == "compute":
            return s.device.id, COMPUTE
        return readers.get(s.writes[0], s.device.id) if s.writes else s.device.id, TRANSFER

    return place


def draw(spans: Sequence[Span], devices: int, width: int) -> list[str]:
    """Two lines a device: what it computes and what it receives. A column shows what took most of its time."""
    first, last = min(span.start for span in spans), max(span.end for span in spans)
    lines = []
    for device in range(devices):
        for lane in (COMPUTE, TRANSFER):
            name = f"device {device}" if lane == COMPUTE else ""
            mine = [(s.label, s.start, s.end) for s in spans if s.device == device and s.lane == lane]
            does = "computes" if lane == COMPUTE else "receives"
            lines.append(f"{name:>9} {does} {drawn(mine, first, last, width)}")
    return lines


class Overlap(NamedTuple):
    """How much ran at once.

    Attributes:
        span: from the first start to the last end.
        serial: the sum of all pieces of work.
        transfer: the sum of all transfers.
        hidden: the part of `transfer` during which at least one device computed.
    """

    span: float
    serial: float
    transfer: float
    hidden: float

    @property
    def concurrency(self) -> float:
        return self.serial / self.span

    @property
    def hidden_share(self) -> float:
        return self.hidden / self.transfer if self.transfer else 1.0


def overlap(spans: Sequence[Span]) -> Overlap:
    """What of the transfers ran behind computing, and how many things ran at once on average.

    Example:
        >>> found = overlap([Span(0, COMPUTE, "0", 0, 4), Span(1, TRANSFER, "0", 3, 5)])
        >>> found.hidden_share, found.concurrency
        (0.5, 1.2)
    """
    computing = merged((span.start, span.end) for span in spans if span.lane == COMPUTE)
    transfers = [(span.start, span.end) for span in spans if span.lane == TRANSFER]
    hidden = sum(common(transfer, computing) for transfer in transfers)
    return Overlap(
        span=max(span.end for span in spans) - min(span.start for span in spans),
        serial=sum(span.end - span.start for span in spans),
        transfer=sum(end - start for start, end in transfers),
        hidden=hidden,
    )
