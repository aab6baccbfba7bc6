"""A profile as a picture: a row a lane, time from left to right."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

from cuplace.profiling.report import clock
from cuplace.profiling.spans import COMPUTE, TRANSFER, Lane, Span, depths_of

if TYPE_CHECKING:
    from cuplace.profiling.profile import Profile

ROW, GAP, GROUP = 18, 3, 8  # pixels: height of a lane, between lanes, more between devices
MARGIN, WIDTH, TOP, BOTTOM = 12, 1000, 40, 44
LETTER = 6.7  # pixels of a character of the names
TICKS = 10  # at most, at times that are easy to read
COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#edc948", "#9c755f", "#ff9da7", "#8cd17d",
)  # fmt: skip
"""Of data, in turn; transfers have the colour of what they bring, paler."""

DARK = frozenset(("#4e79a7", "#59a14f", "#e15759", "#b07aa1", "#9c755f"))
"""Colours that white numbers stand out from."""

LOWEST = 9  # pixels: pieces that are lower carry no number

NARROW, NARROWEST = 3.0, 1.0  # pixels: pieces below the first have no border, which would hide them

_STYLE = (
    "text{font:11px Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#333}.t{font-size:13px;font-weight:600}"
    ".l{fill:#fff;font-size:10px;text-anchor:middle}.p{fill:#333;font-size:10px;text-anchor:middle}"
    ".k{text-anchor:middle;fill:#777}.r{text-anchor:end}"
)


def svg_text(profile: Profile) -> str:
    """The picture. Pieces of work that are wide enough carry the number of their data; hovering tells the rest."""
    left = MARGIN + 10 + LETTER * max((len(_label(lane)) for lane in profile.lanes), default=0)
    rows, height = _rows(profile.lanes)
    span_of_time = profile.seconds * 1e9 or 1.0
    scale = WIDTH / span_of_time
    told = clock(profile.seconds)
    parts = [_head(left, height), _title(profile, told)]
    parts += _axis(left, height, span_of_time, scale, told)
    for lane in profile.lanes:
        parts.append(f'<text class="r" x="{left - 8:.1f}" y="{rows[lane] + 13:.1f}">{escape(_label(lane))}</text>')
        parts.append(f'<rect x="{left:.1f}" y="{rows[lane]:.1f}" width="{WIDTH}" height="{ROW}" fill="#f4f4f4"/>')
    depths = depths_of(profile.spans)
    counts: dict[Lane, int] = {}
    for span, depth in zip(profile.spans, depths, strict=True):
        counts[span.lane] = max(counts.get(span.lane, 1), depth + 1)
    for span, depth in zip(profile.spans, depths, strict=True):
        size = ROW / counts[span.lane]
        y = rows[span.lane] + depth * size
        parts.append(_piece(span, left + (span.start - profile.start) * scale, y, size, scale, told))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _label(lane: Lane) -> str:
    return f"{lane.name} computes" if lane.kind == COMPUTE else lane.name


def _rows(lanes: list[Lane]) -> tuple[dict[Lane, float], float]:
    """The top of each lane, and the bottom of all."""
    rows, y, before = {}, float(TOP), None
    for lane in lanes:
        if before is not None and lane.device != before:
            y += GROUP
        rows[lane], y, before = y, y + ROW + GAP, lane.device
    return rows, y


def _head(left: float, height: float) -> str:
    width = left + WIDTH + 3 * MARGIN  # half of the last time stands beyond the lanes
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height + BOTTOM:.0f}" '
        f'width="{width:.0f}" height="{height + BOTTOM:.0f}"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>'
    )


def _title(profile: Profile, told: Callable[[float], str]) -> str:
    transfer = profile.transfer_seconds
    hidden = f", {profile.hidden_seconds / transfer:.0%} of transfer time hidden" if transfer else ""
    text = f"{len(profile.spans)} pieces of work in {told(profile.seconds * 1e9)}, {profile.clock}{hidden}"
    return f'<text class="t" x="{MARGIN}" y="22">{escape(text)}</text>'


def _axis(left: float, height: float, whole: float, scale: float, told: Callable[[float], str]) -> list[str]:
    parts = []
    step = _step(whole / TICKS)
    for i in range(int(whole / step) + 1):
        time = step * i
        x = left + time * scale
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{height:.1f}" stroke="#ddd"/>')
        parts.append(f'<text class="k" x="{x:.1f}" y="{height + 16:.1f}">{told(time)}</text>')
    return parts


def _step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, ... microseconds that is not below ``least`` (nanoseconds)."""
    power = 10.0 ** max(3, math.floor(math.log10(least)))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least)


def _piece(span: Span, x: float, y: float, height: float, scale: float, told: Callable[[float], str]) -> str:
    width = max((span.end - span.start) * scale, NARROWEST)
    colour = COLOURS[span.label % len(COLOURS)]
    computes = span.lane.kind != TRANSFER
    amount = "" if not span.record.nbytes else f", {span.record.nbytes:,} bytes"
    hover = f"{span.record.name}, data {span.label}, {told(span.end - span.start)}{amount}, {span.record.line}"
    border = ' stroke="#fff" stroke-width="0.5"' if width > NARROW else ""
    piece = (
        f'<g><title>{escape(hover)}</title><rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.4g}" '
        f'fill="{colour}" fill-opacity="{1 if computes else 0.45}"{border}/>'
    )
    if width > LETTER * len(str(span.label)) + 2 and height >= LOWEST:
        kind = "l" if computes and colour in DARK else "p"
        piece += f'<text class="{kind}" x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}">{span.label}</text>'
    return piece + "</g>"
