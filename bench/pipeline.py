"""Pipelines: how near they come to the least time that their stages and microbatches allow.

Two programs, written as a user would write them: the pipeline of the page "Data placement", and one step of training
a stack of layers in the order 1F1B (`training`). Each runs as it is, and with `config.sync`, which waits after each
call: the baseline that overlaps nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import cuplace
from cuplace.demo import pipeline as page
from cuplace.runtime.config import config
from cuplace.runtime.machine import Machine
from cuplace.runtime.platform import activated, open_platform
from cuplace.runtime.presets import HGX_H200

from .chart import DASHED, Chart, Panel, Series
from .critical_path import critical_path, makespan
from .figure import Figure
from .harness import Bench, Benchmark, Budget, Column, Result, Row, Table, WrongOption, whole
from .limits import cores
from .reshard import scaled
from .training import Trainer, problem

PAGE_SIZE = 256  # rows and columns of the page's microbatches
SIZES = {"cpu": 1024, "sim": 64, "cuda": 4096}
"""Rows and columns of the weights, and of the microbatches, that training has by itself."""

ENLARGED = 128
"""On the simulator a matrix stands for one that is so many times as wide and as high."""

NEAR, FASTER = 1.03, 1.6
LARGEST_ERROR = 1e-3


@dataclass(frozen=True)
class Program:
    """A pipeline: `run` enqueues all of it, and returns what has to be waited for. `devices`: how many it has."""

    name: str
    stages: int
    microbatches: int
    devices: int
    run: Callable[[], Any]

    @property
    def least_bubble(self) -> float:
        """The least idle share of its devices."""
        return (self.stages - 1) / (self.microbatches + self.stages - 1)

    def least_idle(self, at_once: int) -> float:
        """The same where only so many devices can compute at a time."""
        return max(self.least_bubble, 1.0 - at_once / self.devices)


def page_program(platform: Any, stages: int, microbatches: int, size: int = PAGE_SIZE) -> Program:
    """The page's loop. Its results are checked at once.

    Raises:
        AssertionError: they are wrong.
    """
    meshes, inputs = page.stage_meshes(platform, stages), page.inputs(microbatches, size)

    def run() -> list[Any]:
        passed = page.Run()
        page.enqueue(passed, meshes, inputs)
        return passed.results

    for result, x in zip(run(), inputs, strict=True):
        np.testing.assert_allclose(np.asarray(result), page.expected(x, stages), rtol=1e-5)
    return Program("the page's", stages, microbatches, sum(mesh.size for mesh in meshes), run)


def training_program(devices: Sequence[Any], stages: int, microbatches: int, size: int) -> Program:
    """One step of training on all devices, as many for each stage. The loss of the first step is checked.

    Raises:
        AssertionError: it is wrong.
    """
    width = len(devices) // stages
    meshes = [cuplace.make_mesh((width,), ("x",), devices=devices[i * width :]) for i in range(stages)]
    weights, inputs, targets = problem(stages, microbatches, size, size)
    trainer = Trainer(meshes, weights)

    def run() -> list[Any]:
        losses = trainer.train(inputs, targets)
        return losses + [stage.weights for stage in trainer.stages]

    found = sum(float(loss) for loss in run()[:microbatches])
    np.testing.assert_allclose(found, loss_by_numpy(weights, inputs, targets), rtol=LARGEST_ERROR)
    return Program("training, 1F1B", stages, microbatches, len(devices), run)


def loss_by_numpy(weights: list[np.ndarray], inputs: list[np.ndarray], targets: list[np.ndarray]) -> float:
    """The loss of all microbatches."""
    outputs = inputs
    for w in weights:
        outputs = [np.maximum(x @ w, 0) for x in outputs]
    parts = [np.mean((y - target) ** 2, dtype=np.float64) for y, target in zip(outputs, targets, strict=True)]
    return float(np.mean(parts))


def measured(bench: Bench, program: Program) -> Row:
    """A row: times with and without waiting after each call, the idle share, and the bound on the simulator."""

    def done() -> None:
        cuplace.block_until_ready(program.run())

    def waiting() -> None:
        config.update("sync", True)
        try:
            done()
        finally:
            config.update("sync", False)

    samples = bench.turns({"seconds": done, "sync": waiting})
    ours, sync = Figure.of(samples["seconds"]), Figure.of(samples["sync"])
    with cuplace.profile() as profile:
        done()
    bubble = profile.bubble if bench.timed else None
    least = program.least_idle(cores()) if bench.name == "cpu" else program.least_bubble
    row: Row = {
        "pipeline": program.name, "stages": program.stages, "microbatches": program.microbatches, "seconds": ours,
        "sync": sync, "faster": None if ours is None or sync is None else sync.median / ours.median,
        "bubble": None if bubble is None else bubble.share, "least_bubble": least,
    }  # fmt: skip
    if bench.machine is not None:
        took, path = makespan(profile.records), critical_path(bench.platform, profile.records)
        row |= {"critical_path": path, "ratio": took / path}
    return row


@contextmanager
def for_training(bench: Bench, count: int) -> Iterator[Bench]:
    """The same for training on so many devices; on the simulator with a machine that is as slow as its matrices are
    small."""
    if bench.machine is None:
        yield bench
        return
    platform = open_platform("sim", count, machine=slowed(bench.machine))
    try:
        with activated(platform):
            yield replace(bench, platform=platform, machine=platform.backend.machine)
    finally:
        platform.close()


def slowed(machine: Machine, factor: int = ENLARGED) -> Machine:
    """The machine on which small matrices take as long as some that are so many times as wide and as high."""
    slow = scaled(machine, factor**2)
    return replace(slow, gpu=replace(slow.gpu, tflops=slow.gpu.tflops / factor**3))


def run(bench: Bench) -> Result:
    options = bench.options
    stages, microbatches, needed = options.stages, options.microbatches, options.stages * options.per_stage
    size = options.size or (32 if bench.quick else SIZES[bench.name])
    check(len(bench.platform.devices), options, size)
    bench.step("the page's")
    rows = [measured(bench, page_program(bench.platform, stages, microbatches))]
    with for_training(bench, needed) as own:
        devices = own.platform.devices[:needed]
        for count in counts(microbatches):
            bench.step(f"training, {count} microbatches")
            rows.append(measured(own, training_program(devices, stages, count, size)))
    return Result([_table(bench, rows)], budgets=_budgets(bench, rows), notes=_notes(bench, size), chart=_chart(rows))


def check(devices: int, options: argparse.Namespace, size: int) -> None:
    """There have to be devices for all stages, over which microbatches split evenly.

    Raises:
        WrongOption: there are not, or they do not.
    """
    stages, per_stage = options.stages, options.per_stage
    if stages * per_stage > devices:
        raise WrongOption(f"--devices {devices}: {stages} stages of training need {stages * per_stage}")
    for side, width in ((PAGE_SIZE, devices // stages), (size, per_stage)):
        if side % width:
            raise WrongOption(f"microbatches of {side} rows do not split evenly over {width} devices of a stage")


def counts(microbatches: int) -> list[int]:
    """The numbers of microbatches that training is measured with, up to the one asked for.

    >>> counts(6)
    [1, 2, 4, 6]
    """
    return [1 << i for i in range(microbatches.bit_length()) if 1 << i < microbatches] + [microbatches]


def _table(bench: Bench, rows: list[Row]) -> Table:
    columns = [
        Column("pipeline", "pipeline"), Column("stages", "stages"), Column("microbatches", "microbatches"),
        Column("seconds", "takes", "s"), Column("sync", "with config.sync", "s"), Column("faster", "faster", "x"),
        Column("bubble", "idle", "share"), Column("least_bubble", "at least", "share"),
    ]  # fmt: skip
    if bench.machine is not None:
        columns += [Column("critical_path", "critical path", "s"), Column("ratio", "ratio", "x")]
    return Table("Pipelines", columns, rows)


def _budgets(bench: Bench, rows: list[Row]) -> list[Budget]:
    first, last = rows[0], rows[-1]
    if bench.machine is not None and bench.machine.name == HGX_H200.name:  # elsewhere copies share links
        near = [first, last] if bench.options.per_stage == 1 else [first]
        return [Budget(f"{row['pipeline']}, against its critical path", row["ratio"], NEAR) for row in near]
    if bench.name == "cpu" and cores() > 1 and not bench.quick:
        return [Budget("training, against config.sync", last["faster"], FASTER, least=True)]
    return []


def _notes(bench: Bench, size: int) -> list[str]:
    least = "at least: (S - 1) / (M + S - 1) with S stages that take equally long, and M microbatches"
    if bench.name == "cpu":
        least += f"; and 1 - {cores()} / n: {cores()} cores compute for all n devices"
    notes = [
        "idle: of the time from the first to the last computing, the share in which a device does not compute",
        least,
        f"training: weights and microbatches are {size} x {size}, float32",
    ]
    if bench.machine is not None:
        notes.append(f"the machine of training is slowed down as if its matrices were {size * ENLARGED} wide and high")
        notes.append("critical path: the longest chain of enqueueing, data and streams, each with the machine alone")
    return notes


def _chart(rows: list[Row]) -> Chart | None:
    """The idle share by the number of microbatches, beside the least there is."""
    trained = [row for row in rows[1:] if row["bubble"] is not None]
    if not trained:
        return None
    x = [float(row["microbatches"]) for row in trained]
    series = [
        Series("idle", x, [row["bubble"] for row in trained]),
        Series("at least", x, [row["least_bubble"] for row in trained], DASHED),
    ]
    title = f"Training in {trained[0]['stages']} stages (1F1B): the idle share of the devices"
    return Chart(
        title, "microbatches", "idle", [Panel("", series)], y_unit="share", log_x=True,
        x_ticks=[(count, f"{count:.0f}") for count in x],
    )  # fmt: skip


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stages", type=whole(1, 64), default=4, help="stages of the pipelines")
    parser.add_argument("--microbatches", type=whole(1, 256), default=8, help="microbatches that pass them")
    parser.add_argument("--per-stage", type=whole(1, 64), default=1, help="devices of each stage in training")
    parser.add_argument("--size", type=whole(1, 16384), help="rows and columns of the matrices in training")


BENCHMARK = Benchmark(
    "pipelines against the least that their stages allow, and against waiting after each call", run,
    steps=lambda options: 1 + len(counts(options.microbatches)), options=_options,
)  # fmt: skip
