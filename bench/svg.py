"""A chart as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from .chart import DASHED, LINE, POINTS, WIDE, Chart, Panel, Series
from .figure import number, scale_of, told

MARGIN, GAP = 16.0, 26.0  # pixels: around all, between panels
LEFT, BOTTOM, HEAD = 70.0, 42.0, 24.0  # for the numbers of an axis, and the title of a panel
SIZES = {1: (640.0, 360.0), 2: (430.0, 290.0)}  # of the area of a panel, by how many stand in a row
LETTER = 6.7  # pixels of a character
MOST_TICKS = 9
ROUNDING = 1e-9
ONE = (1.0,)
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#9c755f")
GREY = "#8a8a8a"

Looks = dict[str, tuple[Series, str]]
"""For each name of a series, one of that name and its colour."""

Ticks = Sequence[tuple[float, str]]
"""Values with their texts."""

_STYLE = (
    "text{font:11px Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#333}.t{font-size:13px;font-weight:600}"
    ".h{font-weight:600}.k{fill:#777}.m{text-anchor:middle}.e{text-anchor:end}"
    ".v{font-size:10px;text-anchor:middle;paint-order:stroke;stroke:#fff;stroke-width:3px}"
)


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` on pixels from `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float
    log: bool

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high, here = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.stop - self.start) * (here - low) / (high - low)

    def ticks(self, unit: str = "") -> list[float]:
        """Round values along it."""
        return _log_ticks(self.low, self.high, unit) if self.log else _even_ticks(self.low, self.high)


def svg_text(chart: Chart) -> str:
    """The picture: the title, the legend, then the panels in rows. They have legends of their own where they have more
    series together than there are colours."""
    across = 1 if len(chart.panels) == 1 else 2
    width, height = SIZES[across]
    every = _looks([series for panel in chart.panels for series in panel.series])
    shared = sum(series.kind in (LINE, POINTS) for series, _ in every.values()) <= len(COLOURS)
    looks = [every if shared else _looks(panel.series) for panel in chart.panels]
    top = 46.0 if chart.subtitle else 30.0
    parts = [f'<text class="t" x="{MARGIN}" y="24">{escape(chart.title)}</text>']
    if chart.subtitle:
        parts.append(f'<text class="k" x="{MARGIN}" y="41">{escape(chart.subtitle)}</text>')
    cell_width, head = LEFT + width, HEAD
    whole_width = 2 * MARGIN + across * cell_width + (across - 1) * GAP
    if shared:
        legend, top = _legend(every, MARGIN, top, whole_width - 2 * MARGIN)
        parts += legend
    else:
        head += max(_legend(look, 0.0, 0.0, width)[1] for look in looks)
    cell_height = head + height + BOTTOM
    for i, (panel, look) in enumerate(zip(chart.panels, looks, strict=True)):
        left = MARGIN + LEFT + (i % across) * (cell_width + GAP)
        upper = top + (i // across) * (cell_height + GAP / 2)
        parts.append(f'<text class="h" x="{left:.1f}" y="{upper + 15:.1f}">{escape(panel.title)}</text>')
        if not shared:
            parts += _legend(look, left, upper + 16, width)[0]
        parts += _panel(chart, panel, look, left, upper + head)
    rows = -(-len(chart.panels) // across)
    whole_height = top + rows * cell_height + (rows - 1) * GAP / 2 + MARGIN / 2
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole_width:.0f} {whole_height:.0f}" '
        f'width="{whole_width:.0f}" height="{whole_height:.0f}"><style>{_STYLE}</style>'
        '<rect width="100%" height="100%" fill="#fff"/>'
    )
    return "\n".join([opening, *parts, "</svg>"]) + "\n"


# ---------------------------------------------------------------------- looks and legends


def _looks(shown: Sequence[Series]) -> Looks:
    """The colours of series, in turn where they have none."""
    found: Looks = {}
    taken = 0
    for series in shown:
        if series.name in found:
            continue
        if series.colour is None and series.kind in (LINE, POINTS):
            colour, taken = COLOURS[taken % len(COLOURS)], taken + 1
        else:
            colour = GREY if series.colour is None else COLOURS[series.colour % len(COLOURS)]
        found[series.name] = series, colour
    return found


def _legend(looks: Looks, left: float, top: float, width: float) -> tuple[list[str], float]:
    """The legend, in lines of this width, and where it ends. A single series needs none."""
    if len(looks) < 2:
        return [], top
    parts, x, y = [], left, top + 16
    for name, (series, colour) in looks.items():
        needed = 30 + LETTER * len(name)
        if x > left and x + needed > left + width:
            x, y = left, y + 17
        parts.append(_sample(series, colour, x, y - 4))
        parts.append(f'<text x="{x + 30:.1f}" y="{y:.1f}">{escape(name)}</text>')
        x += needed + 22
    return parts, y + 8


def _sample(series: Series, colour: str, x: float, y: float) -> str:
    line = f'<line x1="{x}" y1="{y}" x2="{x + 22}" y2="{y}" stroke="{colour}"{_look(series)}/>'
    dot = f'<circle cx="{x + 11}" cy="{y}" r="3.5" fill="{colour}"/>'
    return {LINE: line + dot, DASHED: line, WIDE: line, POINTS: dot}[series.kind]


def _look(series: Series) -> str:
    """How its line is drawn."""
    looks = {DASHED: ' stroke-width="1.5" stroke-dasharray="5 4"', WIDE: ' stroke-width="9" stroke-opacity="0.3"'}
    return looks.get(series.kind, ' stroke-width="2"')


# ---------------------------------------------------------------------- a panel


def _panel(chart: Chart, panel: Panel, looks: Looks, left: float, upper: float) -> list[str]:
    width, height = SIZES[1 if len(chart.panels) == 1 else 2]
    x = Axis(*_range(chart, chart.panels, "x", chart.log_x), left, left + width, chart.log_x)
    shown = chart.panels if panel.y_unit is None else [panel]
    y = Axis(*_range(chart, shown, "y", chart.log_y), upper + height, upper, chart.log_y)
    unit = chart.y_unit if panel.y_unit is None else panel.y_unit
    across = list(chart.x_ticks) or _labelled(x.ticks(chart.x_unit), chart.x_unit)
    parts = _grid(x, y, across, _labelled(y.ticks(unit), unit))
    parts += _names(chart, x, y)
    for series in panel.series:
        parts += _drawn(series, looks[series.name][1], x, y)
    return parts


def _grid(x: Axis, y: Axis, across: Ticks, up: Ticks) -> list[str]:
    parts = []
    for value, text in across:
        pixel = x.at(value)
        parts.append(_rule(pixel, y.stop, pixel, y.start))
        parts.append(f'<text class="k m" x="{pixel:.1f}" y="{y.start + 15:.1f}">{escape(text)}</text>')
    for value, text in up:
        pixel = y.at(value)
        parts.append(_rule(x.start, pixel, x.stop, pixel))
        parts.append(f'<text class="k e" x="{x.start - 6:.1f}" y="{pixel + 4:.1f}">{escape(text)}</text>')
    return parts


def _names(chart: Chart, x: Axis, y: Axis) -> list[str]:
    """What the axes are."""
    middle, height, side = (x.start + x.stop) / 2, (y.start + y.stop) / 2, x.start - LEFT + 10
    turned = f'transform="rotate(-90 {side:.1f} {height:.1f})"'
    return [
        f'<text class="m" x="{middle:.1f}" y="{y.start + 31:.1f}">{escape(chart.x)}</text>',
        f'<text class="m" {turned} x="{side:.1f}" y="{height:.1f}">{escape(chart.y)}</text>',
    ]


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e4e4e4"/>'


def _labelled(values: Sequence[float], unit: str) -> Ticks:
    """Values with texts, all in one unit where it is small enough to read."""
    if unit in ("s", "B"):
        return [(value, told(value, unit)) for value in values]
    scale = scale_of(max(map(abs, values), default=0.0), unit)
    suffix = scale[0] if scale[0] in ("%", "x") else f" {scale[0]}" if scale[0] else ""
    return [(value, f"{number(value / scale[1])}{suffix}") for value in values]


def _drawn(series: Series, colour: str, x: Axis, y: Axis) -> list[str]:
    points = [(x.at(a), y.at(b)) for a, b in zip(series.x, series.y, strict=True)]
    parts = []
    for (pixel, _), low, high in zip(points, series.low, series.high, strict=False):
        parts.append(
            f'<line x1="{pixel:.1f}" y1="{y.at(low):.1f}" x2="{pixel:.1f}" y2="{y.at(high):.1f}" '
            f'stroke="{colour}" stroke-width="1.5" stroke-opacity="0.5"/>'
        )
    if series.kind != POINTS:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"{_look(series)}/>')
    if series.kind in (LINE, POINTS):
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}"/>' for a, b in points]
    for (a, b), text in zip(points, series.labels, strict=False):
        parts.append(f'<text class="v" x="{a + 8:.1f}" y="{b + 17:.1f}">{escape(text)}</text>')
    return parts


# ---------------------------------------------------------------------- axes


def _range(chart: Chart, panels: Sequence[Panel], name: str, log: bool) -> tuple[float, float]:
    """From the least to the largest value of some panels, with some room."""
    extra = ("low", "high") if name == "y" else ()
    values = [
        value
        for panel in panels
        for series in panel.series
        for kind in (name, *extra)
        for value in getattr(series, kind)
    ]
    if name == "x":
        values += [value for value, _ in chart.x_ticks]
    low, high = min(values), max(values)
    below = 0.13 if name == "y" and any(series.labels for panel in panels for series in panel.series) else 0.06
    if log:
        whole = high / low if high > low else 2.0
        return low / whole**below, high * whole**0.06
    low = min(low, 0.0) if name == "y" else low
    room = (high - low) * 0.06 or 1.0
    return (low - room if name == "x" or low < 0 else low), high + room


def _even_ticks(low: float, high: float) -> list[float]:
    """Some multiples of 1, 2, 2.5 or 5 times a power of ten.

    >>> _even_ticks(0.0, 1.06)
    [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
    """
    rough = (high - low) / 6
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, unit: str) -> list[float]:
    """Powers of two where people count so, and few; else 1, 2, 5 times powers of ten; else powers of ten, or of more.
    Bytes have powers of two only.

    >>> _log_ticks(0.9, 9.0, ""), _log_ticks(0.9, 9.0, "s"), _log_ticks(0.5, 2000.0, "s")
    ([1.0, 2.0, 4.0, 8.0], [1.0, 2.0, 5.0], [1.0, 10.0, 100.0, 1000.0])
    """
    binary, decimal = ((2.0, ONE), (16.0, ONE), (1024.0, ONE)), ((10.0, (1.0, 2.0, 5.0)), (10.0, ONE), (100.0, ONE))
    steps = {"B": binary, "": (binary[0], *decimal), "x": (binary[0], *decimal)}.get(unit, decimal)
    found: list[float] = []
    for base, factors in steps:
        first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
        every = [base**i * factor for i in range(first, last + 1) for factor in factors]
        found = [value for value in every if low * (1 - ROUNDING) <= value <= high * (1 + ROUNDING)]
        if len(found) <= MOST_TICKS:
            break
    return found
