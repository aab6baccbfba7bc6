"""A profile as text: lanes, shares, and the reasons of gaps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from cuplace.profiling.gaps import Gap
from cuplace.profiling.intervals import length
from cuplace.profiling.spans import COMPUTE, LATCH, TRANSFER, Lane, Span, lane_name

if TYPE_CHECKING:
    from cuplace.profiling.profile import Profile

IDLE = "·"
LABELS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
SHORT = 10_000_000
"""Profiles of less than this many nanoseconds are told in microseconds."""

MOST_LANES = 40
MOST_REASONS = 8


def report_text(profile: Profile, width: int = 72) -> str:
    """Everything that `Profile.report` prints."""
    if not profile.spans:
        return f"Profile    {len(profile.records)} pieces of work, none of which has run"
    told = clock(profile.seconds)
    work, devices = len(profile.spans), _devices(profile.lanes)
    lines = [f"Profile    {work} pieces of work on {devices} in {told(profile.seconds * 1e9)}, {profile.clock}"]
    lines += _timeline(profile, width, told)
    lines += _transfers(profile, told)
    lines += _bubble(profile)
    lines += _reasons(profile.gaps, told)
    lines += _clocks(profile)
    return "\n".join([*lines, *_without_times(profile), _cost(profile)])


def clock(seconds: float) -> Callable[[float], str]:
    """How to tell nanoseconds, in a unit that suits the whole."""
    if seconds * 1e9 < SHORT:
        return lambda nanoseconds: f"{nanoseconds / 1e3:.0f} us"
    return lambda nanoseconds: f"{nanoseconds / 1e6:.1f} ms"


def _devices(lanes: Sequence[Lane]) -> str:
    count = len({lane.device for lane in lanes})
    return f"{count} device{'' if count == 1 else 's'}"


def _timeline(profile: Profile, width: int, told: Callable[[float], str]) -> list[str]:
    first, last = profile.start, profile.start + profile.seconds * 1e9
    rows = rows_of(profile.lanes)
    column = max(map(len, rows)) + 2
    end = told(last - first)
    lines = ["", f"{'':{column}}{'0':<{width - len(end)}}{end}   busy"]
    for name, lanes in rows.items():
        mine = [(_character(span), span.start, span.end) for span in profile.spans if span.lane in lanes]
        lines.append(f"{name:{column}}{drawn(mine, first, last, width)}{profile.busy(*lanes):7.0%}")
    return [*lines, f"{'':{column}}a character tells which data was worked on, {IDLE} that nothing ran", ""]


def rows_of(lanes: Sequence[Lane]) -> dict[str, list[Lane]]:
    """The lanes of each row, by its name: what a device receives is one row where there are many links."""
    many = len(lanes) > MOST_LANES
    rows: dict[str, list[Lane]] = {}
    for lane in lanes:
        device = next((other.name for other in lanes if other.kind == COMPUTE and other.device == lane.device), "")
        name = f"  receives {device}" if many and lane.kind == TRANSFER else f"  {lane.name}"
        rows.setdefault(lane.name if lane.kind == COMPUTE else name.rstrip(), []).append(lane)
    return rows


def _character(span: Span) -> str:
    return LABELS[span.label % len(LABELS)]


def drawn(pieces: Iterable[tuple[str, float, float]], first: float, last: float, width: int) -> str:
    """Pieces of work (character, start, end) as a line; each column shows what took most of its time.

    >>> drawn([("a", 0, 2), ("b", 3, 4)], 0, 4, 4)
    'aa·b'
    """
    column = (last - first) / width
    shares: list[dict[str, float]] = [{} for _ in range(width)]
    for label, begin, stop in pieces:
        start, end = (begin - first) / column, (stop - first) / column
        for i in range(int(start), min(int(end) + 1, width)):
            share = min(end, i + 1) - max(start, i)
            if share > 0:
                shares[i][label] = shares[i].get(label, 0.0) + share
    return "".join(max(share, key=lambda label: share[label]) if share else IDLE for share in shares)


def _transfers(profile: Profile, told: Callable[[float], str]) -> list[str]:
    whole, hidden = profile.transfer_seconds * 1e9, profile.hidden_seconds * 1e9
    if not whole:
        return ["Transfers  none"]
    share, exposed = hidden / whole, told(whole - hidden)
    text = f"{told(hidden)} ({share:.0%}) hidden: a device computed meanwhile; {exposed} exposed"
    return [f"Transfers  {told(whole)}, of which {text}"]


def _bubble(profile: Profile) -> list[str]:
    found = profile.bubble
    if found is None:
        return []
    text = f"Bubble     devices are idle for {found.share:.0%} of the time"
    if found.bound is not None:
        text += f"; {found.stages} stages and {found.microbatches} microbatches need at least {found.bound:.0%}"
    return [text]


def _reasons(gaps: Sequence[Gap], told: Callable[[float], str]) -> list[str]:
    """The gaps by reason and line, those that took longest together first."""
    if not gaps:
        return ["Gaps       none"]
    groups: dict[tuple[str, str, str], list[Gap]] = {}
    for gap in gaps:
        cause = "" if gap.cause is None else str(gap.cause.line)
        groups.setdefault((gap.reason, cause, str(gap.record.line)), []).append(gap)
    whole = length((gap.start, gap.end) for gap in gaps)
    ordered = sorted(groups.values(), key=lambda group: -length((gap.start, gap.end) for gap in group))
    lines = [f"Gaps       {len(gaps)} between computations, {told(whole)} together, by what was waited for:"]
    for group in ordered[:MOST_REASONS]:
        lines += _reason(group, told)
    if len(ordered) > MOST_REASONS:
        lines.append(f"           and {len(ordered) - MOST_REASONS} more reasons")
    return lines


def _reason(group: Sequence[Gap], told: Callable[[float], str]) -> list[str]:
    longest = group[0]
    total = told(length((gap.start, gap.end) for gap in group))
    times = "once" if len(group) == 1 else f"{len(group)} times"
    line = "" if longest.record.line is None else f", enqueued at {longest.record.line}"
    return [
        f"  {total:>8}  {longest.reason}, {times}: {longest.text}",
        f"            before {longest.record.name!r} on {longest.lane.name}{line}",
    ]


def _clocks(profile: Profile) -> list[str]:
    error = profile.clock_error
    if math.isinf(error):
        return ["Clocks     of the devices were never seen beside the host's: times of different ones may not fit"]
    return [f"Clocks     of the devices and of the host agree within {error * 1e6:.1f} us"] if error else []


def _without_times(profile: Profile) -> list[str]:
    missing = [record for record in profile.records if not record.end and record.kind != LATCH]
    if not missing:
        return []
    where = f"{missing[0].kind} {missing[0].name!r} on {lane_name(missing[0])}"
    return [f"Not shown  {len(missing)} pieces of work that did not run, or whose GPU was lost; the first is {where}"]


def _cost(profile: Profile) -> str:
    cost = profile.cost_of_a_record()
    return f"Recording  added about {cost * 1e9:.0f} ns to each of {len(profile.records)} pieces of work"
