"""A profile in Chrome's trace event format, which https://ui.perfetto.dev opens.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cuplace.profiling.gaps import wait_words
from cuplace.profiling.spans import COMPUTE, Lane, Span, depths_of
from cuplace.runtime.submission import HostWait

if TYPE_CHECKING:
    from cuplace.profiling.profile import Profile

_HOST = 1
_FIRST = 2
"""Numbers of processes: the host, and device 0. Perfetto takes 0 for the kernel's."""

Thread = tuple[Lane, int]
"""A lane, and the depth in it, since Perfetto wants events of a thread to lie inside each other or apart."""


def trace_text(profile: Profile) -> str:
    """The whole trace: a process for each device, a thread for each lane, arrows for the waits that were made."""
    start = profile.start
    tracks = list(zip([span.lane for span in profile.spans], depths_of(profile.spans), strict=True))
    order = {lane: i for i, lane in enumerate(profile.lanes)}
    ordered = sorted(set(tracks), key=lambda track: (order[track[0]], track[1]))
    threads = {track: number for number, track in enumerate(ordered, 1)}
    numbers = {span.record.id: threads[track] for span, track in zip(profile.spans, tracks, strict=True)}
    events = _names(threads)
    events += [_complete(span, numbers[span.record.id], start) for span in profile.spans]
    by_id = {record.id: record for record in profile.records}
    events += [_host_wait(wait, wait_words(wait, by_id), start) for wait in profile.waits]
    events += _arrows(profile.spans, numbers, start)
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events})


def _names(threads: dict[Thread, int]) -> list[dict[str, Any]]:
    processes = {_HOST: "host"} | {_FIRST + lane.device: f"device {lane.device}" for lane, _ in threads}
    named = [_about("process_name", process, 0, name=name) for process, name in processes.items()]
    named += [_about("process_sort_index", process, 0, sort_index=process) for process in processes]
    named.append(_about("thread_name", _HOST, 1, name="waits"))
    for (lane, _), number in threads.items():
        name = "compute" if lane.kind == COMPUTE else lane.name
        named.append(_about("thread_name", _FIRST + lane.device, number, name=name))
        named.append(_about("thread_sort_index", _FIRST + lane.device, number, sort_index=number))
    return named


def _about(what: str, process: int, thread: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": arguments}


def _complete(span: Span, thread: int, start: float) -> dict[str, Any]:
    record = span.record
    arguments = {"data": span.label, "line": str(record.line), "enqueued_us": (record.enqueue - start) / 1e3}
    if record.nbytes:
        arguments |= {"bytes": record.nbytes, "path": record.path}
    return {
        "ph": "X", "name": record.name, "cat": span.lane.kind, "pid": _FIRST + span.lane.device, "tid": thread,
        "ts": (span.start - start) / 1e3, "dur": (span.end - span.start) / 1e3, "args": arguments,
    }  # fmt: skip


def _host_wait(wait: HostWait, words: str, start: float) -> dict[str, Any]:
    return {
        "ph": "X", "name": words, "cat": "host", "pid": _HOST, "tid": 1,
        "ts": (wait.start - start) / 1e3, "dur": (wait.end - wait.start) / 1e3,
        "args": {"kind": wait.kind, "line": str(wait.line)},
    }  # fmt: skip


def _arrows(spans: list[Span], threads: dict[int, int], start: float) -> list[dict[str, Any]]:
    """From the end of what was waited for to the start of what waited."""
    by_id = {span.record.id: span for span in spans}
    arrows: list[dict[str, Any]] = []
    for span in spans:
        for source in [by_id[id] for id in span.record.waits if id in by_id]:
            common = {"name": "wait", "cat": "wait", "id": len(arrows)}
            end = {**_place(source, threads), "ts": (source.end - start) / 1e3}
            begin = {**_place(span, threads), "ts": (span.start - start) / 1e3}
            arrows += [{"ph": "s", **common, **end}, {"ph": "f", "bp": "e", **common, **begin}]
    return arrows


def _place(span: Span, threads: dict[int, int]) -> dict[str, int]:
    return {"pid": _FIRST + span.lane.device, "tid": threads[span.record.id]}
