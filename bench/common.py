"""Rows of a benchmark: what is measured, against what, within which budget.

Each side (cuplace, JAX, NumPy, ...) runs in processes of its own, so that neither's threads or allocator
disturb the other. The sides take turns for several rounds; a figure is the median of the rounds, with their
range. Since cuplace has JAX's names, a case is written once and runs on both.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
UNITS = (("s ", 1.0), ("ms", 1e-3), ("us", 1e-6))


class Lib:
    """One of the two libraries with eight CPU devices, and the meshes and arrays that the cases share."""

    def __init__(self, side: str) -> None:
        import numpy

        name = "jax" if side == "jax" else "cuplace"
        self.np = numpy
        self.jax = jax = __import__(name)
        self.name = side
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


@dataclass(frozen=True)
class Case:
    """One thing to time, on whichever sides the rows ask for.

    Attributes:
        build: takes a `Lib` (or None on the numpy side) and returns the function to time.
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
class Figure:
    """Median and range over the rounds."""

    median: float
    low: float
    high: float
    timed: bool = True

    @classmethod
    def of(cls, samples: list[float], timed: bool = True) -> Figure:
        return cls(statistics.median(samples), min(samples), max(samples), timed)

    def __str__(self) -> str:
        if not self.timed:
            return f"{self.median:.3f} [{self.low:.3f}..{self.high:.3f}]"
        unit, scale = next(((u, s) for u, s in UNITS if self.median >= s), UNITS[-1])
        return f"{self.median / scale:.4g} {unit} [{self.low / scale:.4g}..{self.high / scale:.4g}]"


def measure(case: Case, lib: Any) -> float:
    """The median of `case.samples` figures of one case, in seconds, after a warm-up."""
    fn = case.build(lib)
    if case.mode in ("own", "figure"):
        return statistics.median(fn() for _ in range(case.samples))
    wait = lib.jax.block_until_ready if lib is not None else (lambda result: result)
    for _ in range(3):
        wait(fn())
    return statistics.median(_sample(case, fn, wait) for _ in range(case.samples))


def _sample(case: Case, fn: Callable[[], Any], wait: Callable[[Any], Any]) -> float:
    clock = time.perf_counter
    if case.mode == "done":
        start = clock()
        wait(fn())
        return clock() - start
    number = 1 if case.mode == "one" else case.number
    start = clock()
    for _ in range(number):
        result = fn()
    seconds = (clock() - start) / number
    wait(result)
    return seconds


def collect(module: str, cases: dict[str, Case], keys: set[str], rounds: int) -> dict[str, Figure]:
    """Figures by `side:case` for the keys wanted; the sides take turns, each turn in a fresh process."""
    sides: dict[str, list[str]] = {}
    for side, _, name in (key.partition(":") for key in sorted(keys)):
        sides.setdefault(side, []).append(name)
    samples: dict[str, list[float]] = {}
    for number in range(rounds):
        for side, names in sides.items():
            print(f"  round {number + 1} of {rounds}: {side:20}", end="\r", file=sys.stderr, flush=True)
            for name, value in _child(module, side, names).items():
                samples.setdefault(f"{side}:{name}", []).append(value)
    print(" " * 60, end="\r", file=sys.stderr, flush=True)
    return {key: Figure.of(v, cases[key.partition(":")[2]].mode != "figure") for key, v in samples.items()}


def _child(module: str, side: str, names: list[str]) -> dict[str, float]:
    # The page's float64 is narrowed with a warning, which is not what is measured.
    environment = dict(os.environ, CUPLACE_PLATFORM="cpu", JAX_PLATFORMS="cpu", PYTHONWARNINGS="ignore")
    if side == "cuplace-sync":
        environment["CUPLACE_SYNC"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", module, "--side", side, "--cases", ",".join(names)],
        cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{module}: the {side} side failed (exit status {done.returncode}); its errors are above.")
    return json.loads(done.stdout.splitlines()[-1])


def judge(row: Row, figures: dict[str, Figure]) -> dict[str, Any]:
    """One line of the table as a dict: both figures, the ratio (or the figure itself) and the verdict."""
    ours = figures[row.ours]
    theirs = figures[row.theirs] if row.theirs else None
    if theirs is None:
        value, text = ours.median, str(ours).partition(" [")[0]
        limit = str(Figure.of([row.budget], ours.timed)).partition(" [")[0] if math.isfinite(row.budget) else "none"
    elif row.plus:
        value = ours.median - theirs.median
        text, limit = f"{value * 1e3:+.0f} ms", f"{row.budget * 1e3:+.0f} ms"
    elif row.faster:
        value = theirs.median / ours.median
        text, limit = f"{value:.2f}x", f">= {row.budget}x"
    else:
        value = ours.median / theirs.median
        text, limit = f"{value:.3g}x", f"{row.budget}x"
    met = value >= row.budget if row.faster else value <= row.budget
    return {
        "label": row.label, "ours": ours, "theirs": theirs, "against": (row.theirs or "").partition(":")[0],
        "value": value, "text": text, "budget": limit, "met": met,
    }  # fmt: skip


def show(title: str, lines: list[dict[str, Any]]) -> None:
    """Print the table."""
    print(f"{title}: median [range] over the rounds")
    print(f"{'':44} {'cuplace':30} {'against':36} {'ratio':>9} {'budget':>9}")
    for line in lines:
        theirs = f"{line['against']} {line['theirs']}" if line["theirs"] else ""
        verdict = "PASS" if line["met"] else "MISS"
        figures = f"{line['ours']!s:30} {theirs:36}"
        print(f"{line['label']:44} {figures} {line['text']:>9} {line['budget']:>9}  {verdict}")


def main(module: str, title: str, cases: dict[str, Case], rows: list[Row], extra: Any = None) -> None:
    """The command line of a benchmark; `extra(rounds)` gives the figures of the side `python`."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=title)
    parser.add_argument("--rounds", type=int, default=3, help="turns that each side takes (default 3)")
    parser.add_argument("--only", default="", help="only rows whose label contains this text")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--cases", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        lib = None if options.side == "numpy" else Lib(options.side)
        print(json.dumps({name: measure(cases[name], lib) for name in options.cases.split(",")}))
        return
    wanted = [row for row in rows if options.only in row.label]
    if not wanted:
        sys.exit(f"{module}: no row contains {options.only!r}")
    keys = {key for row in wanted for key in (row.ours, row.theirs) if key}
    elsewhere = {key for key in keys if key.startswith("python:")}
    figures = collect(module, cases, keys - elsewhere, options.rounds)
    if elsewhere:
        figures.update(extra(options.rounds))
    lines = [judge(row, figures) for row in wanted]
    if options.json:
        print(json.dumps([_plain(line) for line in lines], indent=1))
    else:
        show(title, lines)


def _plain(line: dict[str, Any]) -> dict[str, Any]:
    return {key: asdict(value) if isinstance(value, Figure) else value for key, value in line.items()}
