"""Memory: what moves and pipelines need at most, against what plans say and what they may need.

A move needs the target shards, and at most one chunk of staging memory a device. A pipeline whose calls do not wait
runs ahead: until its work is done, dead memory cannot come back. With donation, stages write over what they read.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import cuplace
from cuplace import NamedSharding
from cuplace.demo import pipeline as page
from cuplace.runtime.config import config
from cuplace.runtime.staging import CHUNK_BYTES

from .chart import DASHED, POINTS, Chart, Panel, Series
from .harness import Bench, Benchmark, Budget, Column, Result, Row, Table, WrongOption, whole
from .reshard import cases

MIB = 1 << 20
COLUMNS = 2048  # of the arrays that are moved
MOST_DEVICES = 128  # as many as an array of 1 MiB has rows
STAGES = 4
BUDGET = 1.05


def peaks(devices: Sequence[Any], run: Callable[[], Any]) -> tuple[Any, dict[Any, int]]:
    """What a run makes, and the bytes that each device needed at most beside what it had."""
    _settle(devices)
    before = {}
    for device in devices:
        before[device] = device.memory.peak = device.memory.in_use
    made = cuplace.block_until_ready(run())
    return made, {device: device.memory_stats()["peak_bytes"] - before[device] for device in devices}


def _settle(devices: Sequence[Any]) -> None:
    """All work is done, and what is dead has come back."""
    scheduler = devices[0].scheduler
    scheduler.drain([stream for device in devices for stream in device.streams()])
    scheduler.tidy()


# --- moves --------------------------------------------------------------------------------------------------


def moves(bench: Bench, nbytes: int) -> list[Row]:
    """A row for each pair of layouts, of an array of so many bytes; what arrives is checked."""
    devices = bench.platform.devices
    wide = np.arange(nbytes // 4, dtype=np.float32).reshape(-1, COLUMNS)
    narrow = wide.reshape(-1, 2 * len(devices))
    rows_to_columns = cases(devices)["rows to columns"]
    found = [move(devices, name, wide, *pair) for name, pair in cases(devices).items()]
    return [*found, move(devices, "rows to columns, two wide", narrow, *rows_to_columns)]


def move(
    devices: Sequence[Any], name: str, values: np.ndarray, source: NamedSharding, target: NamedSharding
) -> Row:  # fmt: skip
    """What one move needs on the device that needs most, compared with what it may.

    Raises:
        AssertionError: what arrives is wrong.
    """
    x = cuplace.block_until_ready(cuplace.device_put(values, source))
    plan = cuplace.plan(x, target)
    y, took = peaks(devices, lambda: cuplace.device_put(x, target))
    if not np.array_equal(np.asarray(y), values):
        raise AssertionError(f"{name}: wrong values")
    staging = {device: plan.peak_bytes.get(device, 0) - plan.new_bytes.get(device, 0) for device in devices}
    allowed = {device: plan.new_bytes.get(device, 0) + CHUNK_BYTES * bool(staging[device]) for device in devices}
    most = max(devices, key=lambda device: took[device])
    return {
        "move": name, "moves": plan.num_moves, "shards": plan.new_bytes.get(most, 0), "staging": staging[most] or None,
        "planned": plan.peak_bytes.get(most, 0), "took": took[most],
        "of_plan": most_of(took, plan.peak_bytes), "of_allowed": most_of(took, allowed),
    }  # fmt: skip


def most_of(took: Mapping[Any, int], allowed: Mapping[Any, int]) -> float:
    """The largest of what was taken as a part of what was allowed; infinite where nothing was."""
    parts = [n / allowed[device] if allowed.get(device) else float("inf") for device, n in took.items() if n]
    return max(parts, default=1.0)


# --- pipelines ----------------------------------------------------------------------------------------------


@cuplace.jit
def stage(x: Any) -> Any:
    """The stage of the page."""
    return page.stage(x)


donating_stage = cuplace.jit(page.stage, donate_argnums=0)


def pipelines(bench: Bench, size: int, microbatches: int) -> list[Row]:
    """A row for each way to run the page's pipeline."""
    devices = bench.platform.devices
    stages = min(STAGES, len(devices))
    meshes, inputs = page.stage_meshes(bench.platform, stages), page.inputs(microbatches, size)
    shard = inputs[0].nbytes // meshes[0].size
    rows = []
    for name, donate in (("as on the page", False), ("donated", True)):
        for waits in (False, True):
            config.update("sync", waits)
            try:
                pipeline(meshes, inputs[:1], donate)  # traced and placed
                results, took = peaks(devices, lambda donate=donate: pipeline(meshes, inputs, donate))
            finally:
                config.update("sync", False)
            for result, x in zip(results, inputs, strict=True):
                np.testing.assert_allclose(np.asarray(result), page.expected(x, stages), rtol=1e-5)
            del results, result
            rows.append(_pipeline_row(name, waits, shard, [took[mesh.flat_devices[0]] for mesh in meshes]))
    return rows


def pipeline(meshes: Sequence[cuplace.Mesh], inputs: Sequence[Any], donate: bool) -> list[Any]:
    """The page's loop; with donation each move and each stage gives up what it reads."""
    targets = [NamedSharding(mesh, cuplace.P("x")) for mesh in meshes]
    apply, results = donating_stage if donate else stage, []
    for mb in inputs:
        for i, target in enumerate(targets):
            mb = apply(cuplace.device_put(mb, target, donate=donate and i > 0))  # noqa: PLW2901
        results.append(mb)
    return results


def _pipeline_row(name: str, waits: bool, shard: int, took: list[int]) -> Row:
    between = max(took[:-1], default=took[-1])
    return {
        "pipeline": name, "waits": "after each call" if waits else "at the end", "shard": shard, "between": between,
        "between_shards": between / shard, "last": took[-1], "last_shards": took[-1] / shard,
    }  # fmt: skip


# --- the ring -----------------------------------------------------------------------------------------------


class Ring:
    """The most pinned memory that copies between host and GPUs have used so far; nothing where there is none."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def note(self, after: str) -> None:
        pinned = cuplace.memory_report().pinned
        if pinned is not None:
            waits = pinned.pressure_waits
            self.rows.append({"after": after, "peak": pinned.peak, "limit": pinned.limit, "waits": waits})


# --- all of it ----------------------------------------------------------------------------------------------


def run(bench: Bench) -> Result:
    mib, size, microbatches = (1, 64, 4) if bench.quick else (bench.options.mib, 512, 8)
    check(len(bench.platform.devices))
    ring = Ring()
    bench.step(f"moves of {mib} MiB")
    moved = moves(bench, mib * MIB)
    ring.note("moves, and reading back")
    bench.step("pipelines")
    piped = pipelines(bench, size, microbatches)
    ring.note("pipelines")
    tables = [_moves_table(moved, mib), _pipelines_table(piped, microbatches)]
    tables += [_ring_table(ring.rows)] if ring.rows else []
    budgets = [
        Budget("memory of a move, against its plan", max(row["of_plan"] for row in moved), BUDGET),
        Budget("memory of a move, against shards and one chunk", max(row["of_allowed"] for row in moved), BUDGET),
    ]
    return Result(tables, budgets=budgets, notes=_NOTES, chart=_chart(moved))


def check(devices: int) -> None:
    """All arrays have to split evenly over the devices, and over halves of them.

    Raises:
        WrongOption: they do not.
    """
    if devices & (devices - 1) or devices > MOST_DEVICES:
        raise WrongOption(f"--devices {devices}: arrays split over a power of two of devices, up to {MOST_DEVICES}")


_NOTES = (
    "all figures are of the device that needs most, beside what it had before",
    f"allowed are the target shards, and one chunk of {CHUNK_BYTES // MIB} MiB where boxes with short rows are packed",
    "pipelines: what a device needs of which a stage is but the last, and of the last, which keeps all results",
)


def _moves_table(rows: list[Row], mib: int) -> Table:
    columns = (
        Column("move", "move"), Column("moves", "copies"), Column("shards", "target shard", "B"),
        Column("staging", "staging", "B"), Column("planned", "planned", "B"), Column("took", "took", "B"),
        Column("of_plan", "of the plan", "x"), Column("of_allowed", "of what is allowed", "x"),
    )  # fmt: skip
    return Table(f"Moves of an array of {mib} MiB", columns, rows)


def _pipelines_table(rows: list[Row], microbatches: int) -> Table:
    columns = (
        Column("pipeline", "pipeline"), Column("waits", "waits"), Column("shard", "shard of a microbatch", "B"),
        Column("between", "a stage before the last", "B"), Column("between_shards", "in shards"),
        Column("last", "the last stage", "B"), Column("last_shards", "in shards"),
    )  # fmt: skip
    return Table(f"The page's pipeline, {microbatches} microbatches", columns, rows)


def _ring_table(rows: list[Row]) -> Table:
    columns = (
        Column("after", "after"), Column("peak", "most that was pinned", "B"), Column("limit", "at most", "B"),
        Column("waits", "calls that waited"),
    )  # fmt: skip
    return Table("Pinned memory that copies pass through", columns, rows)


def _chart(rows: list[Row]) -> Chart:
    """What moves took, over what their plans say."""
    planned = [float(row["planned"]) for row in rows if row["planned"]]
    took = [float(row["took"]) for row in rows if row["planned"]]
    line = [min(planned), max(planned)]
    series = [Series("moves", planned, took, POINTS), Series("as planned", line, line, DASHED)]
    return Chart(
        "Memory that moves need on a device", "planned", "took", [Panel("", series)], x_unit="B", y_unit="B",
        log_x=True, log_y=True,
    )  # fmt: skip


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=whole(1, 16384), default=64, help="size of the arrays that move (default: 64)")


BENCHMARK = Benchmark(
    "what moves need at most against their plans, and the page's pipeline with and without donation", run, least=4,
    rounds=1, steps=2, options=_options,
)  # fmt: skip
