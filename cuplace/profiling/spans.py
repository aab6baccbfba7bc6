"""Span: one piece of work in its lane, with the label of the data that it works on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cuplace.runtime.submission import Submission

COMPUTE = "compute"
TRANSFER = "transfer"
HOST = "host"
LATCH = "latch"
ARROW = " -> "


class Lane(NamedTuple):
    """A stream as it is drawn.

    Attributes:
        kind: `compute`, `transfer`, or `host` for what the host computes and copies in host memory of a device.
        name: the device that computes, or where a transfer comes from and goes to.
        device: the number of the device at which it is drawn: that which computes, or receives; or sends to the host.
    """

    kind: str
    name: str
    device: int


class Span(NamedTuple):
    """What one submission did.

    Attributes:
        lane: where.
        label: the number of the data: of the call that brought the latest of it to the devices.
        start, end: nanoseconds, as in the record.
        record: the submission.
    """

    lane: Lane
    label: int
    start: float
    end: float
    record: Submission


def spans_of(records: Sequence[Submission]) -> list[Span]:
    """The spans of those records that have run, in their order."""
    labels = labelled(records)
    ids = {str(record.device): record.device.id for record in records}
    return [
        Span(_lane(record, ids), labels[record.id], record.start, record.end, record)
        for record in records
        if record.end and record.kind != LATCH
    ]


def _lane(record: Submission, ids: dict[str, int]) -> Lane:
    name = lane_name(record)
    if record.stream.role == HOST:
        return Lane(HOST, name, record.device.id)
    if record.kind == "compute":
        return Lane(COMPUTE, name, record.device.id)
    return Lane(TRANSFER, name, ids.get(name.partition(ARROW)[2], record.device.id))


def lane_name(record: Submission) -> str:
    """The name of the lane that a record is drawn in."""
    device, name = record.device, record.stream.name
    if record.stream.role == HOST:
        return f"{device} host"
    if record.kind == "compute":
        return str(device)
    if ARROW in name:
        return name
    return f"{device}{ARROW}host" if record.stream is device.download else f"host{ARROW}{device}"


def lanes_of(spans: Sequence[Span]) -> list[Lane]:
    """The lanes in the order in which they are drawn: what a device computes, what the host does on its memory of the
    device, then what the device receives."""
    return sorted({span.lane for span in spans}, key=lambda lane: (lane.device, lane.kind, lane.name))


def depths_of(spans: Sequence[Span]) -> list[int]:
    """For each span how many others of its lane it has to be drawn below, so that none covers another one.

    Pieces of work of one lane overlap where they pass through two streams: copies through memory of the host, whose
    first half is enqueued while the second half of the one before runs.
    """
    depths = [0] * len(spans)
    ends: dict[Lane, list[float]] = {}
    for i in sorted(range(len(spans)), key=lambda i: spans[i].start):
        span = spans[i]
        rows = ends.setdefault(span.lane, [])
        depths[i] = next((depth for depth, end in enumerate(rows) if end <= span.start), len(rows))
        rows[depths[i] : depths[i] + 1] = [span.end]
    return depths


def calls_of(records: Sequence[Submission]) -> Iterator[list[Submission]]:
    """The records of one call after the other: neighbours that do the same on different streams, for one and the same
    call of the user's, which has a `Line` of its own, also where a loop comes by the same line again."""
    call: list[Submission] = []
    streams: set[object] = set()
    for record in records:
        if call and (_what(record) != _what(call[0]) or record.stream in streams):
            yield call
            call, streams = [], set()
        call.append(record)
        streams.add(record.stream)
    if call:
        yield call


def _what(record: Submission) -> tuple[object, ...]:
    return record.kind, record.name, id(record.line)


def labelled(records: Sequence[Submission]) -> dict[int, int]:
    """The label of each record, by its id: what reads nothing known brings new data, the rest works on what it reads.

    In a pipeline it is the number of the microbatch, as far as parameters are older than all microbatches.
    """
    labels: dict[int, int] = {}
    of_buffer: dict[int, int] = {}
    fresh = 0
    for call in calls_of(records):
        found = [of_buffer[buffer] for record in call for buffer in record.reads if buffer in of_buffer]
        label = max(found) if found else fresh
        fresh += not found
        for record in call:
            labels[record.id] = label
            of_buffer.update(dict.fromkeys(record.writes, label))
    return labels
