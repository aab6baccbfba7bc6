"""A profile in Chrome's trace event format, which https://ui.perfetto.dev opens.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cuplace.profiling.gaps import wait_words
from cuplace.profiling.spans import COMPUTE, Lane, Span
from cuplace.runtime.submission import HostWait

if TYPE_CHECKING:
    from cuplace.profiling.profile import Profile

_HOST = -1


def trace_text(profile: Profile) -> str:
    """The whole trace: a process for each device, a thread for each lane, arrows for the waits that were made."""
    start = profile.start
    threads = {lane: number for number, lane in enumerate(profile.lanes, 1)}
    events = _names(threads)
    events += [_complete(span, threads[span.lane], start) for span in profile.spans]
    by_id = {record.id: record for record in profile.records}
    events += [_host_wait(wait, wait_words(wait, by_id), start) for wait in profile.waits]
    events += _arrows(profile.spans, threads, start)
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events})


def _names(threads: dict[Lane, int]) -> list[dict[str, Any]]:
    named = [_name("process_name", _HOST, 0, "host")]
    devices = sorted({lane.device for lane in threads})
    named += [_name("process_name", device, 0, f"device {device}") for device in devices]
    return named + [
        _name("thread_name", lane.device, number, "compute" if lane.kind == COMPUTE else lane.name)
        for lane, number in threads.items()
    ]


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _complete(span: Span, thread: int, start: float) -> dict[str, Any]:
    record = span.record
    arguments = {"data": span.label, "line": str(record.line), "enqueued_us": (record.enqueue - start) / 1e3}
    if record.nbytes:
        arguments |= {"bytes": record.nbytes, "path": record.path}
    return {
        "ph": "X", "name": record.name, "cat": span.lane.kind, "pid": span.lane.device, "tid": thread,
        "ts": (span.start - start) / 1e3, "dur": (span.end - span.start) / 1e3, "args": arguments,
    }  # fmt: skip


def _host_wait(wait: HostWait, words: str, start: float) -> dict[str, Any]:
    return {
        "ph": "X", "name": words, "cat": "host", "pid": _HOST, "tid": 0,
        "ts": (wait.start - start) / 1e3, "dur": (wait.end - wait.start) / 1e3,
        "args": {"kind": wait.kind, "line": str(wait.line)},
    }  # fmt: skip


def _arrows(spans: list[Span], threads: dict[Lane, int], start: float) -> list[dict[str, Any]]:
    """From the end of what was waited for to the start of what waited."""
    by_id = {span.record.id: span for span in spans}
    arrows: list[dict[str, Any]] = []
    for span in spans:
        for source in [by_id[id] for id in span.record.waits if id in by_id]:
            common = {"name": "wait", "cat": "wait", "id": len(arrows)}
            end = {"pid": source.lane.device, "tid": threads[source.lane], "ts": (source.end - start) / 1e3}
            begin = {"pid": span.lane.device, "tid": threads[span.lane], "ts": (span.start - start) / 1e3}
            arrows += [{"ph": "s", **common, **end}, {"ph": "f", "bp": "e", **common, **begin}]
    return arrows
