"""Rows of a comparison: what is measured, against what, within which budget.

Each side (cuplace, JAX, NumPy, ...) runs in processes of its own, so that neither's threads or allocator
disturb the other. The sides take turns for several rounds; a figure is the median of the rounds, with their
range. Since cuplace has JAX's names, a case is written once and runs on both.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from . import harness, limits
from .child import call
from .figure import Figure, told
from .harness import Bench, Column, Result, Table, WrongOption

VERDICTS = {True: "PASS", False: "MISS", None: None}
QUICK = 5  # calls a batch, where only whether it runs is of interest

COLUMNS = (
    Column("label", ""), Column("ours", "cuplace"), Column("against", "against"), Column("theirs", "theirs"),
    Column("ratio", "ratio"), Column("budget", "budget"), Column("verdict", ""),
)  # fmt: skip


class Lib:
    """One of the two libraries with eight CPU devices, and the meshes and arrays that the cases share."""

    def __init__(self, side: str, quick: bool = False) -> None:
        import numpy

        name = "jax" if side == "jax" else "cuplace"
        self.np = numpy
        self.jax = jax = __import__(name)
        self.name = side
        self.quick = quick
        self.devices_wanted = int(side.partition("@")[2] or 8)
        jax.config.update("jax_num_cpu_devices", self.devices_wanted)
        self.jnp = __import__(f"{name}.numpy").numpy
        self.P = jax.P
        self.sharding = __import__(f"{name}.sharding").sharding
        self.full = jax.make_mesh((self.devices_wanted,), ("x",))
        self.mesh_a = self.mesh(0, 4)
        self.mesh_b = self.mesh(4, 8)

    def mesh(self, start: int, stop: int) -> Any:
        return self.jax.make_mesh((stop - start,), ("x",), devices=self.full.devices[start:stop])

    def on(self, mesh: Any, *spec: Any) -> Any:
        return self.sharding.NamedSharding(mesh, self.P(*spec))

    def put(self, value: Any, sharding: Any) -> Any:
        return self.jax.block_until_ready(self.jax.device_put(value, sharding))


def only_numpy(quick: bool) -> Any:
    """What the cases of the side `numpy` get."""
    import numpy

    return SimpleNamespace(np=numpy, jax=SimpleNamespace(block_until_ready=lambda result: result), quick=quick)


@dataclass(frozen=True)
class Case:
    """One thing to time, on whichever sides the rows ask for.

    Attributes:
        build: takes a `Lib` (or what `only_numpy` gives) and returns the function to time.
        mode: `call` (the call returns: a batch of `number` calls is timed, then waited for), `done` (the call
            and the wait for its result), `one` (one call returns, then it is waited for), `own` (the function
            returns seconds that it measured itself), `figure` (the same, for what is not a time).
        number: calls a batch.
        samples: how many figures a round takes the median of.
    """

    build: Callable[[Any], Callable[[], Any]]
    mode: str = "call"
    number: int = 200
    samples: int = 7


@dataclass(frozen=True)
class Row:
    """A budget. `ours` and `theirs` are written `side:case`; the sides are `cuplace`, `jax`, `numpy`,
    `cuplace@512` (with 512 devices), `cuplace-sync` (with `config.sync`) and `python` (bare processes).

    Attributes:
        budget: the largest `ours / theirs`; without `theirs`, the largest `ours` in the case's own unit. Infinite
            where a figure is shown without a limit.
        faster: the budget is the least `theirs / ours`.
        plus: the budget is the most that `ours - theirs` may be, in seconds.
    """

    label: str
    ours: str
    theirs: str | None
    budget: float
    faster: bool = False
    plus: bool = False


@dataclass(frozen=True)
class Comparison:
    """Cases and rows of a module, and `extra`, which gives the figures of the side `python`.

    `rows` takes whether sizes are tiny. A module keeps its comparison as `COMPARISON`.
    """

    module: str
    title: str
    cases: dict[str, Case]
    rows: Callable[[bool], list[Row]]
    extra: Callable[[Bench], dict[str, Figure]] | None = None

    def benchmark(self) -> harness.Benchmark:
        """The comparison as the command line runs it."""
        return harness.Benchmark(
            self.title, self.run, platforms=("cpu",), peers=("jax", "numpy"), options=_options, opens=False,
            machine=False, draws=False,
        )  # fmt: skip

    def run(self, bench: Bench) -> Result:
        """Measure the rows that were asked for."""
        rows = [row for row in self.rows(bench.quick) if bench.options.only in row.label]
        if not rows:
            raise WrongOption(f"no row contains {bench.options.only!r}")
        keys = {key for row in rows for key in (row.ours, row.theirs) if key is not None and _wanted(key, bench.peers)}
        elsewhere = {key for key in keys if key.startswith("python:")}
        figures = self.collect(bench, keys - elsewhere)
        if elsewhere and self.extra is not None:
            figures.update(self.extra(bench))
        lines = [judge(row, figures) for row in rows]
        alone = limits.measure(bench)
        notes = ["Budgets hold for full sizes only."] if bench.quick else []
        if bench.quick:
            lines = [{**line, "verdict": None, "met": None} for line in lines]
        return Result([Table("On eight devices", COLUMNS, lines)], alone, notes=notes)

    def collect(self, bench: Bench, keys: Iterable[str]) -> dict[str, Figure]:
        """Figures by `side:case` for the keys wanted; the sides take turns, each turn in a fresh process."""
        sides: dict[str, list[str]] = {}
        for side, _, name in (key.partition(":") for key in sorted(keys)):
            sides.setdefault(side, []).append(name)
        samples: dict[str, list[float]] = {}
        bench.progress.expect(bench.rounds * len(sides))
        for number in range(bench.rounds):
            for side, names in sides.items():
                bench.step(f"{side}, round {number + 1}")
                given = {"module": self.module, "side": side, "names": names, "quick": bench.quick}
                more = {"CUPLACE_SYNC": "1"} if side == "cuplace-sync" else {}
                for name, value in call("cpu", figures_of, given, more).items():
                    samples.setdefault(f"{side}:{name}", []).append(value)
        return {
            key: Figure(statistics.median(found), min(found), max(found), self._unit(key))
            for key, found in samples.items()
        }

    def _unit(self, key: str) -> str:
        return "" if self.cases[key.partition(":")[2]].mode == "figure" else "s"


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="TEXT", default="", help="only rows whose label contains this text")


def _wanted(key: str, peers: tuple[str, ...]) -> bool:
    side = key.partition(":")[0]
    return side in peers or side not in ("jax", "numpy")


# ---------------------------------------------------------------------- in a process of each side


def figures_of(module: str, side: str, names: list[str], quick: bool) -> dict[str, float]:
    """The figures of some cases on one side."""
    comparison: Comparison = importlib.import_module(module).COMPARISON
    lib = only_numpy(quick) if side == "numpy" else Lib(side, quick)
    return {name: float(measure(comparison.cases[name], lib)) for name in names}


def measure(case: Case, lib: Any) -> float:
    """The median of `case.samples` figures of one case, in seconds, after a warm-up."""
    fn = case.build(lib)
    samples = 1 if lib.quick else case.samples
    if case.mode in ("own", "figure"):
        return statistics.median(fn() for _ in range(samples))
    wait = lib.jax.block_until_ready
    for _ in range(3):
        wait(fn())
    number = min(case.number, QUICK) if lib.quick else case.number
    return statistics.median(_sample(case.mode, number, fn, wait) for _ in range(samples))


def _sample(mode: str, number: int, fn: Callable[[], Any], wait: Callable[[Any], Any]) -> float:
    clock = time.perf_counter
    if mode == "done":
        start = clock()
        wait(fn())
        return clock() - start
    number = 1 if mode == "one" else number
    start = clock()
    for _ in range(number):
        result = fn()
    seconds = (clock() - start) / number
    wait(result)
    return seconds


# ---------------------------------------------------------------------- judging


def judge(row: Row, figures: dict[str, Figure]) -> harness.Row:
    """One line of the table: both figures, the ratio (or the figure itself) and the verdict; nothing of a ratio whose
    other side was not measured."""
    side, _, case = (row.theirs or "").partition(":")
    ours, against = figures[row.ours], case if side == "python" else side
    line: harness.Row = {"label": row.label, "ours": ours, "against": against}
    if row.theirs is not None and row.theirs not in figures:
        return line
    theirs = None if row.theirs is None else figures[row.theirs]
    value, text, limit = _ratio(row, ours, theirs)
    limited = math.isfinite(row.budget)
    met = (value >= row.budget if row.faster else value <= row.budget) if limited else None
    return {
        **line, "theirs": theirs, "ratio": text, "budget": limit, "verdict": VERDICTS[met],
        "value": value, "limit": row.budget if limited else None, "met": met,
    }  # fmt: skip


def _ratio(row: Row, ours: Figure, theirs: Figure | None) -> tuple[float, str, str]:
    """What is judged, and how it and its limit are told."""
    if theirs is None:
        limit = told(row.budget, ours.unit) if math.isfinite(row.budget) else "none"
        return ours.median, told(ours.median, ours.unit), limit
    if row.plus:
        value = ours.median - theirs.median
        return value, f"{value * 1e3:+.0f} ms", f"{row.budget * 1e3:+.0f} ms"
    if row.faster:
        value = theirs.median / ours.median
        return value, f"{value:.2f}x", f">= {row.budget}x"
    value = ours.median / theirs.median
    return value, f"{value:.3g}x", f"{row.budget}x"
