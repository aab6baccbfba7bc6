"""A chart as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from .chart import DASHED, LINE, POINTS, WIDE, Chart, Panel, Series
from .figure import number, scale_of, told

MARGIN, GAP = 16.0, 26.0  # pixels: around all, between panels
LEFT, BOTTOM, HEAD = 58.0, 42.0, 24.0  # for the numbers of an axis, and the title of a panel
SIZES = {1: (640.0, 360.0), 2: (430.0, 290.0)}  # of the area of a panel, by how many stand in a row
LETTER = 6.7  # pixels of a character
MOST_TICKS = 9
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#9c755f")
GREY = "#8a8a8a"

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

    def ticks(self) -> list[float]:
        """Round values along it."""
        return _log_ticks(self.low, self.high) if self.log else _even_ticks(self.low, self.high)


def svg_text(chart: Chart) -> str:
    """The picture: the title, the legend, then the panels in rows."""
    across = 1 if len(chart.panels) == 1 else 2
    width, height = SIZES[across]
    styles = _styles(chart)
    legend, top = _legend(chart, styles, across)
    cell_width, cell_height = LEFT + width, HEAD + height + BOTTOM
    parts = [f'<text class="t" x="{MARGIN}" y="24">{escape(chart.title)}</text>']
    if chart.subtitle:
        parts.append(f'<text class="k" x="{MARGIN}" y="41">{escape(chart.subtitle)}</text>')
    parts += legend
    x_range, y_range = _range(chart, "x", chart.log_x), _range(chart, "y", chart.log_y)
    for i, panel in enumerate(chart.panels):
        left = MARGIN + LEFT + (i % across) * (cell_width + GAP)
        upper = top + HEAD + (i // across) * (cell_height + GAP / 2)
        x = Axis(*x_range, left, left + width, chart.log_x)
        y = Axis(*y_range, upper + height, upper, chart.log_y)
        parts += _panel(chart, panel, x, y, styles)
    rows = -(-len(chart.panels) // across)
    whole_width = 2 * MARGIN + across * cell_width + (across - 1) * GAP
    whole_height = top + rows * cell_height + (rows - 1) * GAP / 2 + MARGIN / 2
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole_width:.0f} {whole_height:.0f}" '
        f'width="{whole_width:.0f}" height="{whole_height:.0f}"><style>{_STYLE}</style>'
        '<rect width="100%" height="100%" fill="#fff"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


# ---------------------------------------------------------------------- styles and legend


def _styles(chart: Chart) -> dict[str, tuple[Series, str]]:
    """For each name of a series, one of that name and its colour."""
    found: dict[str, tuple[Series, str]] = {}
    taken = 0
    for panel in chart.panels:
        for series in panel.series:
            if series.name in found:
                continue
            if series.colour is None and series.kind in (LINE, POINTS):
                colour, taken = COLOURS[taken % len(COLOURS)], taken + 1
            else:
                colour = GREY if series.colour is None else COLOURS[series.colour % len(COLOURS)]
            found[series.name] = series, colour
    return found


def _legend(chart: Chart, styles: dict[str, tuple[Series, str]], across: int) -> tuple[list[str], float]:
    """The legend, and where it ends."""
    y = 46.0 if chart.subtitle else 30.0
    if len(styles) < 2:
        return [], y
    width = across * (LEFT + SIZES[across][0]) + (across - 1) * GAP
    parts, x, y = [], MARGIN, y + 16
    for name, (series, colour) in styles.items():
        needed = 30 + LETTER * len(name) + 22
        if x > MARGIN and x + needed > MARGIN + width:
            x, y = MARGIN, y + 17
        parts.append(_sample(series, colour, x, y - 4))
        parts.append(f'<text x="{x + 30:.1f}" y="{y:.1f}">{escape(name)}</text>')
        x += needed
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


def _panel(chart: Chart, panel: Panel, x: Axis, y: Axis, styles: dict[str, tuple[Series, str]]) -> list[str]:
    parts = [f'<text class="h" x="{x.start:.1f}" y="{y.stop - 9:.1f}">{escape(panel.title)}</text>']
    parts += _grid(chart, x, y)
    for series in panel.series:
        parts += _drawn(series, styles[series.name][1], x, y)
    return parts


def _grid(chart: Chart, x: Axis, y: Axis) -> list[str]:
    parts = []
    across = list(chart.x_ticks) or _labelled(x.ticks(), chart.x_unit)
    for value, text in across:
        pixel = x.at(value)
        parts.append(_rule(pixel, y.stop, pixel, y.start))
        parts.append(f'<text class="k m" x="{pixel:.1f}" y="{y.start + 15:.1f}">{escape(text)}</text>')
    for value, text in _labelled(y.ticks(), chart.y_unit):
        pixel = y.at(value)
        parts.append(_rule(x.start, pixel, x.stop, pixel))
        parts.append(f'<text class="k e" x="{x.start - 6:.1f}" y="{pixel + 4:.1f}">{escape(text)}</text>')
    middle = (x.start + x.stop) / 2
    parts.append(f'<text class="m" x="{middle:.1f}" y="{y.start + 31:.1f}">{escape(chart.x)}</text>')
    height = (y.start + y.stop) / 2
    turned = f"rotate(-90 {x.start - LEFT + 12:.1f} {height:.1f})"
    parts.append(
        f'<text class="m" transform="{turned}" x="{x.start - LEFT + 12:.1f}" y="{height:.1f}">{escape(chart.y)}</text>'
    )
    return parts


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e4e4e4"/>'


def _labelled(values: Sequence[float], unit: str) -> list[tuple[float, str]]:
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


def _range(chart: Chart, name: str, log: bool) -> tuple[float, float]:
    """From the least to the largest value of all panels, with some room."""
    extra = ("low", "high") if name == "y" else ()
    values = [
        value
        for panel in chart.panels
        for series in panel.series
        for kind in (name, *extra)
        for value in getattr(series, kind)
    ]
    if name == "x":
        values += [value for value, _ in chart.x_ticks]
    low, high = min(values), max(values)
    below = 0.13 if name == "y" and any(series.labels for panel in chart.panels for series in panel.series) else 0.06
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


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of two where there are few of them, else of ten, or of more where there are many.

    >>> _log_ticks(0.9, 9.0), _log_ticks(0.5, 2000.0)
    ([1.0, 2.0, 4.0, 8.0], [1.0, 10.0, 100.0, 1000.0])
    """
    def powers(base: float) -> list[float]:
        first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
        return [base**i for i in range(first, last + 1)]

    return next((found for base in (2.0, 10.0, 100.0) if len(found := powers(base)) <= MOST_TICKS), powers(1000.0))
