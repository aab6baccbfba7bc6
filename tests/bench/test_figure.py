"""Figures and how they are told."""

from __future__ import annotations

import pytest

from bench.figure import Figure, cell, told


def test_a_figure_is_the_median_and_the_range() -> None:
    assert Figure.of([3.0, 1.0, 2.0]) == Figure(2.0, 1.0, 3.0)
    assert Figure.of([1.0, 2.0], "x") == Figure(1.5, 1.0, 2.0, "x")
    assert Figure.of([]) is None


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure(0.00123, 0.00123, 0.00123), "1.23 ms"),
        (Figure(0.00123, 0.0009, 0.0145), "1.23 ms [0.9..14.5]"),
        (Figure(2.5e9, 2e9, 3e9, "B/s"), "2.5 GB/s [2..3]"),
        (Figure(0.95678, 0.9, 1.0, "share"), "95.7% [90..100]"),
        (Figure(7, 7, 7, ""), "7"),
    ],
)
def test_a_figure_is_told_in_the_unit_of_its_median(figure: Figure, text: str) -> None:
    assert str(figure) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0 s"), (2.5, "s", "2.5 s"), (3e-10, "s", "0.3 ns"), (-0.002, "s", "-2 ms"),
        (3 << 20, "B", "3 MiB"), (100, "B", "100 B"), (67e12, "flop/s", "67 TFLOP/s"), (1e8, "flop/s", "0.1 GFLOP/s"),
        (1.0, "share", "100%"), (-1e-5, "share", "0%"), (1.03, "x", "1.03x"), (262144, "", "262144"),
        (float("inf"), "s", "inf s"),
    ],
)  # fmt: skip
def test_values_have_units_that_suit_them(value: float, unit: str, text: str) -> None:
    assert told(value, unit) == text
    assert cell(value, unit) == text


def test_what_is_not_known_is_a_dash_and_texts_are_themselves() -> None:
    assert (cell(None, "s"), cell("peer", "s")) == ("-", "peer")
