"""Gap: a time in which a device did not compute, and what it waited for.

What it waited for may have waited itself: a stage for a transfer, the transfer for the host, which wanted a value. So
a gap is followed back from its end, from each piece of work to the last thing that it had to wait for, and is put
down to what took most of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from cuplace.profiling.intervals import common
from cuplace.profiling.spans import COMPUTE, Lane, Span, lane_name
from cuplace.runtime.submission import (
    MEMORY_WAIT,
    RUN_AHEAD_WAIT,
    STAGING_WAIT,
    VALUE_WAIT,
    HostWait,
    Submission,
)

TRANSFER = "transfer"
OPERAND = "operand"
MEMORY = "memory"
HOST = "host"
BACK_PRESSURE = "back-pressure"
BUSY = "busy"
HOST_WAITS = {
    VALUE_WAIT: HOST, MEMORY_WAIT: MEMORY, RUN_AHEAD_WAIT: BACK_PRESSURE, STAGING_WAIT: BACK_PRESSURE,
}  # fmt: skip
"""The reason of a gap in which the host itself waited, by the kind of its wait."""


class Gap(NamedTuple):
    """
    Attributes:
        lane: of the device that did not compute.
        start, end: nanoseconds, as in the records.
        reason: `transfer`, `operand` (made by another computation), `memory`, `back-pressure`, `host`, or `busy` where
            the work could have begun, but other work had the processors or engines.
        text: the reason in words.
        record: the work that ended the gap.
        cause: the work that took most of the gap, where it is one.
    """

    lane: Lane
    start: float
    end: float
    reason: str
    text: str
    record: Submission
    cause: Submission | None


class _Part(NamedTuple):
    """What filled a part of a gap."""

    nanoseconds: float
    reason: str
    text: str
    cause: Submission | None


def gaps_of(spans: Sequence[Span], records: Sequence[Submission], waits: Sequence[HostWait]) -> list[Gap]:
    """The gaps between what each device computes, the longest first."""
    history = _History(records, waits)
    lanes: dict[Lane, list[Span]] = {}
    for span in spans:
        if span.lane.kind == COMPUTE:
            lanes.setdefault(span.lane, []).append(span)
    found = []
    for lane, mine in lanes.items():
        mine.sort(key=lambda span: span.start)
        for before, after in pairwise(mine):
            if after.start > before.end:
                part = history.explain(before.end, after.record)
                found.append(Gap(lane, before.end, after.start, part.reason, part.text, after.record, part.cause))
    return sorted(found, key=lambda gap: gap.start - gap.end)


class _History:
    """What each piece of work had to wait for."""

    def __init__(self, records: Sequence[Submission], waits: Sequence[HostWait]) -> None:
        self._records = records
        self._waits = waits
        self._by_id = {record.id: record for record in records}
        self._makers: dict[int, list[Submission]] = {}
        self._before: dict[int, Submission] = {}
        latest: dict[int, list[Submission]] = {}
        on_stream: dict[object, Submission] = {}
        for record in records:
            self._makers[record.id] = [maker for buffer in record.reads for maker in latest.get(buffer, ())]
            if record.stream in on_stream:
                self._before[record.id] = on_stream[record.stream]
            on_stream[record.stream] = record
            for buffer in record.writes:  # the moves of one plan write parts of a buffer
                joins = record.kind == "move" and latest.get(buffer, [record])[-1].kind == "move"
                latest[buffer] = [*latest.get(buffer, []), record] if joins else [record]

    def explain(self, start: float, record: Submission) -> _Part:
        """What took most of the time from ``start`` to the start of ``record``."""
        parts: list[_Part] = []
        until = float(record.start)
        while until > start:
            cause, reason = self._last_need(record)
            ready = max(start, record.enqueue if cause is None else cause.end)
            if until > ready:
                parts.append(self._late_part(ready, until))
            if cause is None:
                parts.append(self._host_part(start, ready))
                break
            begin = min(max(start, cause.start), ready)
            parts.append(_Part(ready - begin, reason, _words(reason, cause), cause))
            record, until = cause, begin
        return max(parts, key=lambda part: part.nanoseconds)

    def _last_need(self, record: Submission) -> tuple[Submission | None, str]:
        """The work that ended last of all that ``record`` had to wait for, and why it had to; None for the host, which
        enqueued it after all that."""
        makers = self._makers[record.id]
        known = {maker.id for maker in makers}
        needs = [(maker, OPERAND if maker.kind == "compute" else TRANSFER) for maker in makers]
        needs += [(self._by_id[id], MEMORY) for id in record.waits if id in self._by_id and id not in known]
        if record.kind != "compute" and record.id in self._before:
            needs.append((self._before[record.id], TRANSFER))
        needs = [(need, reason) for need, reason in needs if need.end > record.enqueue]
        return max(needs, key=lambda pair: pair[0].end, default=(None, HOST))

    def _late_part(self, ready: float, start: float) -> _Part:
        """Why work began as late as at ``start``, although all that it needs was there: the host was enqueueing it, and
        had to wait for pinned memory, or other work had the engines."""
        pressed = [wait for wait in self._waits if wait.kind == STAGING_WAIT]
        shares = [common((ready, start), [(wait.start, wait.end)]) for wait in pressed]
        if sum(shares) * 2 < start - ready:
            return _Part(start - ready, BUSY, "it was ready, but the processor that runs it was busy", None)
        longest = pressed[max(range(len(shares)), key=shares.__getitem__)]
        return _Part(start - ready, BACK_PRESSURE, wait_words(longest, self._by_id), None)

    def _host_part(self, start: float, end: float) -> _Part:
        """Why the host enqueued work as late as at ``end``."""
        shares: dict[tuple[str, str], float] = {}
        examples: dict[tuple[str, str], HostWait] = {}
        for wait in self._waits:
            share = common((start, end), [(wait.start, wait.end)])
            kind = wait.kind, str(wait.line)
            shares[kind] = shares.get(kind, 0.0) + share
            if share and kind not in examples:
                examples[kind] = wait
        most = max(examples, key=lambda kind: shares[kind], default=None)
        if most is not None and sum(shares.values()) * 2 >= end - start:
            return _Part(end - start, HOST_WAITS[most[0]], wait_words(examples[most], self._by_id), None)
        busy = sum(start < record.enqueue < end for record in self._records)
        work = f"enqueued {busy} other pieces of work" if busy else "did something else"
        return _Part(end - start, HOST, f"the host {work} before it enqueued this", None)


def _words(reason: str, cause: Submission) -> str:
    line = "" if cause.line is None else f", enqueued at {cause.line}"
    if reason == MEMORY:
        return f"its memory was still used by {cause.kind} {cause.name!r} on {lane_name(cause)}{line}"
    if reason == TRANSFER:
        return f"{cause.nbytes:,} bytes on {lane_name(cause)}{line}"
    return f"{cause.name!r} on {cause.device}{line}"


def wait_words(wait: HostWait, by_id: Mapping[int, Submission]) -> str:
    """What the host waited for, and where, in words."""
    line = "" if wait.line is None else f" at {wait.line}"
    found = by_id.get(wait.submission)
    work = "work from before" if found is None else f"{found.kind} {found.name!r} on {lane_name(found)}"
    why = {
        MEMORY_WAIT: "memory that was still used by ", STAGING_WAIT: "pinned memory that was still used by ",
        RUN_AHEAD_WAIT: "the oldest of too much unfinished work, ",
    }  # fmt: skip
    return f"the host waited{line} for {why.get(wait.kind, '')}{work}"
