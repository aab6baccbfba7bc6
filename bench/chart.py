"""Chart: lines and points over an axis, in panels side by side, as an SVG picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LINE, DASHED, WIDE, POINTS = "line", "dashed", "wide", "points"


@dataclass(frozen=True)
class Series:
    """Values of one kind: `line` (with dots), `points`, or what they are compared with: `dashed`, or `wide` and pale.

    Attributes:
        labels: a text below each point, where there is one.
        low, high: the range of each value, drawn as a bar.
        colour: series of the same number have the same colour; None takes the next, and grey for `dashed`.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    kind: str = LINE
    labels: Sequence[str] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    colour: int | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes, with a title and its series.

    Attributes:
        y_unit: of its y axis, which is then its own; None for the axis of the chart.
    """

    title: str
    series: Sequence[Series]
    y_unit: str | None = None


@dataclass(frozen=True)
class Chart:
    """A picture: panels with the same axes. Series of the same name look the same, if there are not too many.

    Attributes:
        title, subtitle: above it.
        x, y: what the axes are.
        x_unit, y_unit: of the numbers at the axes (see `figure.SCALES`).
        log_x, log_y: whether an axis is logarithmic.
        x_ticks: where the x axis has marks, with their texts; found by itself where it is empty.
    """

    title: str
    x: str
    y: str
    panels: Sequence[Panel]
    subtitle: str = ""
    x_unit: str = ""
    y_unit: str = ""
    log_x: bool = False
    log_y: bool = False
    x_ticks: Sequence[tuple[float, str]] = ()
