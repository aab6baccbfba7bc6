"""A benchmark that measures nothing: it tells what it was given."""

from __future__ import annotations

import argparse
from typing import Any

from bench.chart import Chart, Panel, Series
from bench.figure import Figure
from bench.harness import Bench, Benchmark, Budget, Column, Limit, Result, Table, whole

given: list[Bench] = []


def run(bench: Bench) -> Result:
    given.append(bench)
    if bench.options.fails is not None:
        raise {"interrupt": KeyboardInterrupt, "wrong": RuntimeError}[bench.options.fails]("2 values are wrong\nall")
    bench.step("this")
    rows: list[dict[str, Any]] = [
        {"name": "one", "took": Figure(0.002, 0.001, 0.0045), "share": 0.5, "count": 3},
        {"name": "another", "took": Figure(0.1, 0.1, 0.1), "share": None, "count": 12, "beside": {"x": 1}},
    ]
    shares = (Column("share", "share", "share"), Column("count", ""))
    columns = (Column("name", "what"), Column("took", "took", "s"), *shares)
    return Result(
        [Table("A table", columns, rows)],
        limits=[Limit("memcpy", Figure(5e9, 4e9, 6e9, "B/s"), "B/s"), Limit("link", None, "B/s")],
        budgets=[
            Budget("near enough", 1.01, 1.03), Budget("far", 1.5, 1.6, least=True),
            Budget("unknown", None, 0.95, "share"),
        ],
        notes=["a note"],
        chart=Chart("Title", "x", "y", [Panel("", [Series("ours", [1.0, 2.0], [1.0, 3.0])])]),
    )  # fmt: skip


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=whole(1, 8), default=2)
    parser.add_argument("--fails", choices=("interrupt", "wrong"))


BENCHMARK = Benchmark("a probe", run, peers=("jax", "numpy", "cupy"), least=2, rounds=7, options=_options)
