"""Charts: every value is where its axes say, and all is inside of the picture."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from bench.chart import DASHED, POINTS, WIDE, Chart, Panel, Series
from bench.svg import Axis, svg_text

NAMESPACE = "{http://www.w3.org/2000/svg}"


def drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(svg_text(chart))


def parts(chart: Chart, tag: str) -> list[ElementTree.Element]:
    return list(drawn(chart).iter(NAMESPACE + tag))


def texts(chart: Chart) -> list[str]:
    return [element.text or "" for element in parts(chart, "text")]


def panel(*series: Series) -> Panel:
    return Panel("a panel", list(series))


def number(element: ElementTree.Element, name: str) -> float:
    return float(element.attrib[name])


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("panels", [1, 2, 3, 4])
def test_every_value_is_a_dot_inside_of_its_picture(panels: int, log: bool) -> None:
    x, y = [1.0, 2.0, 4.0, 8.0], [3.0, 1.0, 200.0, 7.0]
    one = panel(Series("ours", x, y, labels=["a", "b", "c", "d"]), Series("theirs", x, y[::-1], DASHED))
    chart = Chart("Title", "x", "y", [one] * panels, log_x=log, log_y=log)
    root = drawn(chart)
    width, height = number(root, "width"), number(root, "height")
    for element in root.iter():
        for name, most in (("x", width), ("x1", width), ("cx", width), ("y", height), ("y1", height), ("cy", height)):
            value = element.attrib.get(name)
            assert value is None or 0 <= float(value) <= most, element.attrib
    dots = list(root.iter(NAMESPACE + "circle"))
    assert len(dots) == panels * len(x) + 1  # and the one of the legend
    assert sum(1 for text in texts(chart) if text in "abcd") == panels * 4


def test_higher_values_are_higher_up() -> None:
    chart = Chart("Title", "x", "y", [panel(Series("ours", [1.0, 2.0, 3.0], [5.0, 10.0, 20.0]))])
    first, second, third = parts(chart, "circle")
    rise = number(first, "cy") - number(second, "cy")
    assert number(second, "cy") - number(third, "cy") == pytest.approx(2 * rise, abs=0.2)
    step = number(second, "cx") - number(first, "cx")
    assert number(third, "cx") - number(second, "cx") == pytest.approx(step, abs=0.2)


def test_panels_have_the_same_axes() -> None:
    small, large = (panel(Series("ours", [1.0, 2.0], [value, 2 * value])) for value in (1.0, 100.0))
    chart = Chart("Title", "x", "y", [small, large])
    ticks = [text for text in texts(chart) if re.fullmatch(r"\d+", text)]
    assert ticks[: len(ticks) // 2] == ticks[len(ticks) // 2 :]


def test_what_things_are_compared_with_has_no_dots() -> None:
    x = [1.0, 2.0]
    series = (Series("a", x, x, DASHED), Series("b", x, x, WIDE), Series("c", x, x, POINTS))
    chart = Chart("Title", "x", "y", [panel(*series)])
    assert len(parts(chart, "polyline")) == 2
    assert len(parts(chart, "circle")) == 2 + 1
    dashed, wide = parts(chart, "polyline")
    assert "stroke-dasharray" in dashed.attrib
    assert "stroke-opacity" in wide.attrib


def test_a_single_series_needs_no_legend_and_names_are_escaped() -> None:
    chart = Chart("a < b & c", "x", "y", [panel(Series("<ours>", [1.0, 2.0], [1.0, 2.0]))])
    assert "a < b & c" in texts(chart)
    assert "<ours>" not in texts(chart)
    two = [Series(name, [1.0], [1.0]) for name in ("<ours>", "<theirs>")]
    assert "<theirs>" in texts(Chart("", "", "", [panel(*two)]))


def test_the_same_name_has_the_same_colour_in_all_panels() -> None:
    x = [1.0, 2.0]
    one, other = panel(Series("a", x, x), Series("b", x, x)), panel(Series("b", x, x))
    colours = [line.attrib["stroke"] for line in parts(Chart("", "x", "y", [one, other]), "polyline")]
    assert colours[1] == colours[2] != colours[0]


def test_panels_with_more_series_than_colours_have_legends_of_their_own() -> None:
    x = [1.0, 2.0]
    panels = [panel(*[Series(f"{name}{i}", x, x) for i in range(6)]) for name in "ab"]
    root = drawn(Chart("", "x", "y", panels))
    lines = list(root.iter(NAMESPACE + "polyline"))
    assert [line.attrib["stroke"] for line in lines[:6]] == [line.attrib["stroke"] for line in lines[6:]]
    assert len({line.attrib["stroke"] for line in lines}) == 6
    places = {text.text: number(text, "x") for text in root.iter(NAMESPACE + "text")}
    assert all(places[f"a{i}"] < number(root, "width") / 2 < places[f"b{i}"] for i in range(6))


def test_a_panel_may_have_a_y_axis_of_its_own() -> None:
    x = [1.0, 2.0]
    panels = [Panel("", [Series("a", x, [1e-3, 1.0])], "s"), Panel("", [Series("b", x, [1024.0, 4096.0])], "B")]
    chart = Chart("", "x", "", panels, log_y=True)
    assert {"1 ms", "10 ms", "100 ms", "1 KiB", "2 KiB", "4 KiB"} <= set(texts(chart))
    dots = parts(chart, "circle")[2:]  # those of the legend come first
    assert number(dots[0], "cy") == pytest.approx(number(dots[2], "cy"), abs=0.2)


def test_ranges_are_bars() -> None:
    chart = Chart("", "x", "y", [panel(Series("a", [1.0], [2.0], low=[1.0], high=[4.0]))])
    bars = [line for line in parts(chart, "line") if "stroke-opacity" in line.attrib]
    (dot,) = parts(chart, "circle")
    assert [number(bar, "y1") > number(dot, "cy") > number(bar, "y2") for bar in bars] == [True]


def test_ticks_have_units() -> None:
    x = [1.0, 512.0]
    chart = Chart("", "devices", "", [panel(Series("a", x, [1e-5, 2.0]))], y_unit="s", log_x=True, log_y=True)
    assert {"10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s", "1", "10", "100"} <= set(texts(chart))
    shares = Chart("", "", "", [panel(Series("a", x, [0.0, 1.0]))], y_unit="share")
    assert {"0%", "20%", "100%"} <= set(texts(shares))
    assert "1/8" in texts(Chart("", "", "", [panel(Series("a", [0.125], [1.0]))], log_x=True, x_ticks=[(0.125, "1/8")]))


@pytest.mark.parametrize(("x", "y"), [([1.0], [1.0]), ([1.0, 2.0], [0.0, 0.0]), ([1.0, 1.0], [-3.0, 5.0])])
def test_values_without_a_range_are_drawn(x: list[float], y: list[float]) -> None:
    dots = parts(Chart("", "x", "y", [panel(Series("a", x, y))]), "circle")
    assert all(math.isfinite(number(dot, name)) for dot in dots for name in ("cx", "cy"))
    assert len(dots) == len(x)


@pytest.mark.parametrize(
    ("low", "high", "log", "unit", "ticks"),
    [
        (0.0, 10.0, False, "", [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]),
        (-1.0, 1.0, False, "s", [-1.0, -0.5, 0.0, 0.5, 1.0]),
        (0.9, 600.0, True, "", [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]),
        (0.9, 600.0, True, "B", [1.0, 16.0, 256.0]),
        (0.9, 6000.0, True, "s", [1.0, 10.0, 100.0, 1000.0]),
        (1e-9, 1e9, True, "", [1e-8, 1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6, 1e8]),
        (0.1, 9.0, True, "", [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0]),
        (3e-4, 7e-3, True, "s", [5e-4, 1e-3, 2e-3, 5e-3]),
    ],
)
def test_ticks_are_round(low: float, high: float, log: bool, unit: str, ticks: list[float]) -> None:
    axis = Axis(low, high, 0.0, 100.0, log)
    assert axis.ticks(unit) == pytest.approx(ticks)
    assert [axis.at(low), axis.at(high)] == pytest.approx([0.0, 100.0])
