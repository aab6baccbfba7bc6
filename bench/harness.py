"""Benchmark: what a module of this package offers, what it is given, and what it returns.

A benchmark is a module with a value `BENCHMARK`. The command line (`bench.command`) loads it by its name, reads the
options, opens the platform, and calls `run` with a `Bench`; `run` measures and returns a `Result`, from which the text,
the JSON and the picture are made. So a benchmark prints nothing, parses nothing, and opens nothing::

    def options(parser):                                # optional: options of its own
        parser.add_argument("--stages", type=whole(1, 64), default=4, help="stages of the pipeline")

    def run(bench):
        rows = []
        for size in (64,) if bench.quick else (256, 1024):
            bench.step(f"{size} x {size}")              # the progress bar says it
            samples = bench.turns({"ours": lambda: ..., "in turn": lambda: ...})
            rows.append({"size": size, **{name: Figure.of(found) for name, found in samples.items()},
                         "jax": bench.beside("jax", jax_side, size=size)})
        columns = (Column("size", "side"), Column("ours", "ours", "s"), Column("jax", "JAX", "s"))
        return Result([Table("What it takes", columns, rows)], limits=limits.measure(bench))

    BENCHMARK = Benchmark("one line that says what it measures", run, peers=("jax",), steps=2, options=options)

Rules: a value that cannot be known is None (all times on fake GPUs, peers that were not asked for); what runs is
checked to be right, and a wrong value raises; times are read by `Bench.turns`, `Bench.seconds` or `Bench.now` only,
which are virtual on the simulator. `--quick` means sizes so small that all of it takes about a second. Modules import
each other relatively (`from .harness import Bench`): in a wheel the package is called `cuplace.bench`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .chart import Chart
from .figure import Figure
from .progress import Progress

Row = dict[str, Any]
"""A row of a table: for each key of a column a `Figure`, a number, a text, or None."""


class WrongOption(Exception):
    """What the options ask for cannot be had: the command ends with status 2. The text is one line. `run` may raise it,
    too, as long as it has not measured."""


@dataclass(frozen=True)
class Column:
    """A column: its key in the rows and in the JSON, its heading, and the unit of its numbers (see `figure.SCALES`)."""

    key: str
    title: str
    unit: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of the same kind. What a row has beyond the columns is in the JSON only."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]


@dataclass(frozen=True)
class Budget:
    """A figure and what it may be.

    Attributes:
        name: of what.
        value: the figure; None where it is not known.
        limit: the most that it may be, or the least where `least` is set.
        unit: of both.
    """

    name: str
    value: float | None
    limit: float
    unit: str = "x"
    least: bool = False

    @property
    def met(self) -> bool | None:
        """None where the figure is not known."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.least else self.value <= self.limit


@dataclass(frozen=True)
class Limit:
    """What the machine itself does in the same run: a flat copy, a bare matmul. `value` is None without times."""

    name: str
    value: Figure | float | None
    unit: str


@dataclass(frozen=True)
class Result:
    """What a benchmark found.

    Attributes:
        tables: figures, ours beside those of peers.
        limits: what the machine does (`limits.measure`).
        budgets: figures that are judged.
        notes: lines below the tables: what the figures mean here, and what they do not show.
        chart: what `--plot` draws.
    """

    tables: Sequence[Table]
    limits: Sequence[Limit] = ()
    budgets: Sequence[Budget] = ()
    notes: Sequence[str] = ()
    chart: Chart | None = None


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, as the command line needs it.

    Attributes:
        title: what it measures, in a line.
        run: measures.
        platforms: where it runs; without `--platform` the configured one if it is among them, else the first.
        peers: what `--peer` may name: `jax`, `numpy`, `cupy`.
        devices: how many there are unless `--devices` or a machine says so.
        least: fewer devices than this are an error.
        rounds: of measuring, unless `--rounds` says so; on the simulator, where nothing is noise, it is one.
        steps: how often `run` calls `Bench.step`; a function where it depends on the options.
        options: adds options of its own to the parser.
        opens: whether a platform is opened for `run`. Those that measure in other processes only, or on many platforms,
            get `Bench.platform` None.
        machine: whether `--machine` may name a machine to simulate.
        draws: whether its results have a chart.
        virtual: whether its times are those of the simulator, where it runs there, and not the host's own.
    """

    title: str
    run: Callable[[Bench], Result]
    platforms: tuple[str, ...] = ("cpu", "sim", "cuda")
    peers: tuple[str, ...] = ()
    devices: int = 8
    least: int = 1
    rounds: int = 5
    steps: int | Callable[[argparse.Namespace], int] = 1
    options: Callable[[argparse.ArgumentParser], None] | None = None
    opens: bool = True
    machine: bool = True
    draws: bool = True
    virtual: bool = True


@dataclass
class Bench:
    """What `run` is given.

    Attributes:
        platform: opened, and the current one.
        name: `cpu`, `sim` or `cuda`.
        timed: whether there are times; not on fake GPUs.
        rounds, quick, peers: as asked for.
        options: all options, those of the benchmark too.
        machine: what the simulator tells times for; None elsewhere, and where `run` opens platforms itself and none was
            asked for.
    """

    platform: Any
    name: str
    options: argparse.Namespace
    rounds: int = 1
    quick: bool = False
    peers: tuple[str, ...] = ()
    timed: bool = True
    progress: Progress = field(default_factory=Progress)
    machine: Any = None

    def now(self) -> float:
        """Seconds of the platform's clock: of virtual time on the simulator, which stands still while no work is
        enqueued and nothing is waited for. Without a platform they are the processor's."""
        return time.perf_counter() if self.platform is None else float(self.platform.backend.now()) * 1e-9

    def step(self, text: str) -> None:
        """The next step begins; the progress bar says what it is about."""
        self.progress.step(text)

    def turns(self, runs: Mapping[str, Callable[[], Any]], warm_up: int = 1) -> dict[str, list[float]]:
        """How long each of several runs takes, in seconds: after a warm-up they take turns, for so many rounds, so that
        what disturbs the machine disturbs all. A run waits for its own end. Without times, all samples are empty."""
        for _ in range(warm_up):
            for run in runs.values():
                run()
        found: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(self.rounds if self.timed else 0):
            for name, run in runs.items():
                start = self.now()
                run()
                found[name].append(self.now() - start)
        return found

    def seconds(self, run: Callable[[], Any], warm_up: int = 1) -> Figure | None:
        """How long one run takes."""
        return Figure.of(self.turns({"": run}, warm_up)[""])

    def beside(self, peer: str, function: Callable[..., Any], **arguments: Any) -> Figure | None:
        """The same by another library, in a process of its own: the median of the seconds that `function(**arguments)`
        returns there, a list, after its own warm-up. None where the peer was not asked for.

        `function` is one of a module's top level; its arguments are what JSON holds.
        """
        if peer not in self.peers:
            return None
        from .child import call

        return Figure.of(call(self.name, function, arguments))


def whole(least: int, most: int) -> Callable[[str], int]:
    """The type of an option that is a whole number."""

    def whole_number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return whole_number
