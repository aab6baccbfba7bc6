"""Comparisons: what is judged, and which sides are measured."""

from __future__ import annotations

import argparse
import math
from typing import Any

import pytest

from bench import common, dispatch, limits, transfer
from bench.common import Case, Comparison, Row, judge
from bench.figure import Figure
from bench.harness import Bench


def exactly(value: float, unit: str = "s") -> Figure:
    return Figure(value, value, value, unit)


FIGURES = {
    "cuplace:a": exactly(0.002), "jax:a": exactly(0.004), "cuplace-sync:a": exactly(0.003),
    "cuplace:peak": exactly(1.02, ""),
}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "value", "ratio", "budget", "verdict"),
    [
        (Row("", "cuplace:a", "jax:a", 0.5), 0.5, "0.5x", "0.5x", "PASS"),
        (Row("", "cuplace:a", "jax:a", 0.4), 0.5, "0.5x", "0.4x", "MISS"),
        (Row("", "cuplace:a", "cuplace-sync:a", 1.6, faster=True), 1.5, "1.50x", ">= 1.6x", "MISS"),
        (Row("", "cuplace:a", "cuplace-sync:a", 1.5, faster=True), 1.5, "1.50x", ">= 1.5x", "PASS"),
        (Row("", "jax:a", "cuplace:a", 0.001, plus=True), 0.002, "+2 ms", "+1 ms", "MISS"),
        (Row("", "cuplace:a", None, 1e-3), 0.002, "2 ms", "1 ms", "MISS"),
        (Row("", "cuplace:peak", None, 1.05), 1.02, "1.02", "1.05", "PASS"),
        (Row("", "cuplace:a", None, math.inf), 0.002, "2 ms", "none", None),
    ],
)
def test_what_a_row_comes_to(row: Row, value: float, ratio: str, budget: str, verdict: str | None) -> None:
    line = judge(row, FIGURES)
    assert line["value"] == pytest.approx(value)
    assert (line["ratio"], line["budget"], line["verdict"]) == (ratio, budget, verdict)
    assert line["met"] == {"PASS": True, "MISS": False, None: None}[verdict]


def test_a_row_without_its_other_side_has_no_ratio() -> None:
    line = judge(Row("", "cuplace:a", "numpy:a", 0.5), FIGURES)
    assert line == {"label": "", "ours": exactly(0.002), "against": "numpy"}


def bench(*peers: str, only: str = "", rounds: int = 1) -> Bench:
    return Bench(None, "cpu", argparse.Namespace(only=only), rounds=rounds, peers=peers)


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine does by itself is not measured."""
    monkeypatch.setattr(limits, "measure", lambda bench: [])


COMPARISON = Comparison(
    __name__, "A comparison", {"a": Case(lambda lib: lambda: None), "b": Case(lambda lib: lambda: None, mode="figure")},
    lambda quick: [Row("first", "cuplace:a", "jax:a", 1.0), Row("second", "cuplace-sync:b", "numpy:a", 1.0)],
    lambda bench: {},
)  # fmt: skip


def test_sides_take_turns_and_each_measures_what_rows_need(
    unlimited: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, tuple[str, ...], dict[str, str]]] = []

    def measured(platform: str, function: Any, given: dict[str, Any], more: dict[str, str]) -> dict[str, float]:
        assert (platform, function, given["module"]) == ("cpu", common.figures_of, __name__)
        calls.append((given["side"], tuple(given["names"]), more))
        return {name: float(len(calls)) for name in given["names"]}

    monkeypatch.setattr(common, "call", measured)
    (table,) = COMPARISON.run(bench("jax", rounds=2)).tables
    one_round = [("cuplace-sync", ("b",), {"CUPLACE_SYNC": "1"}), ("cuplace", ("a",), {}), ("jax", ("a",), {})]
    assert calls == one_round * 2
    first, second = table.rows
    assert (first["ours"], first["theirs"]) == (Figure(3.5, 2.0, 5.0), Figure(4.5, 3.0, 6.0))
    assert second["ours"] == Figure(2.5, 1.0, 4.0, "")
    assert "theirs" not in second


def test_only_some_rows_may_be_measured(unlimited: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "call", lambda platform, function, given, more: dict.fromkeys(given["names"], 1.0))
    (table,) = COMPARISON.run(bench("jax", only="first")).tables
    assert [row["label"] for row in table.rows] == ["first"]


@pytest.mark.parametrize("comparison", [dispatch.COMPARISON, transfer.COMPARISON], ids=["dispatch", "transfer"])
def test_rows_name_cases_that_there_are(comparison: Comparison) -> None:
    for quick in (False, True):
        for row in comparison.rows(quick):
            for key in filter(None, (row.ours, row.theirs)):
                side, _, name = key.partition(":")
                assert name in (dispatch.IMPORTS if side == "python" else comparison.cases)


@pytest.mark.parametrize("mode", ["call", "done", "one"])
def test_each_way_of_measuring_waits_for_what_it_has_started(mode: str) -> None:
    lib = common.only_numpy(quick=False)
    started: list[object] = []
    waited: list[object] = []
    lib.jax.block_until_ready = waited.append

    def build(lib: Any) -> Any:
        return lambda: started.append(object()) or started[-1]

    assert common.measure(Case(build, mode, number=5, samples=2), lib) >= 0
    calls = {"call": 5, "done": 1, "one": 1}[mode]
    assert len(started) == 3 + 2 * calls  # a warm-up of three
    assert waited == [*started[:3], started[2 + calls], started[2 + 2 * calls]]
