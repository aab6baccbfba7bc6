"""Scaling: what planning, calls and arrays cost on 1 to 512 devices.

Devices are simulated, since what is measured is the host's own work: processor time until a call returns, and bytes
of Python's objects. What is enqueued runs when somebody waits for it, and so counts for reading values only. An
exponent tells how a cost grows: with n devices it is n to the power of it, on the last stretch, in which devices
become 16 times as many, and what all calls cost alike matters little.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

import cuplace
import cuplace.numpy as jnp
from cuplace import NamedSharding, P
from cuplace.runtime.platform import activated, open_platform
from cuplace.transfer.plan import plan_move

from .chart import DASHED, Chart, Panel, Series
from .harness import Bench, Benchmark, Budget, Column, Result, Row, Table, whole

MACHINE = "hgx-h200"
STRETCH = 16
LEAST_SECONDS = 5e-3  # of processor time that a sample takes
SAMPLES = 5
MOST_CALLS = 64  # in a sample
KEPT = 8  # arrays, or the like, whose bytes are counted
MOST_MOVES = 1024  # of a call that is measured: the simulator looks at all streams for each piece of work
GROWS = 1.25  # what is linear may have this exponent, since on the way caches are left; 1.5 would be n times its root

PLANNING, DISPATCH, MEMORY = "planning", "dispatch", "memory"
UNITS = {PLANNING: "s", DISPATCH: "s", MEMORY: "B"}
DEVICES, MOVES = "devices", "moves"


@dataclass(frozen=True)
class Point:
    """One cost on so many devices: seconds or bytes; `moves` are those of its plan, 0 where there is none."""

    kind: str
    name: str
    devices: int
    moves: int
    value: float


class Place:
    """Simulated devices, as the current platform, with the layouts that the cases share."""

    def __init__(self, devices: Sequence[Any]) -> None:
        self.devices = list(devices)
        self.count = count = len(self.devices)
        self.mesh = cuplace.make_mesh((count,), ("x",), devices=self.devices)
        self.rows = NamedSharding(self.mesh, P("x"))
        self.columns = NamedSharding(self.mesh, P(None, "x"))
        self.everywhere = NamedSharding(self.mesh, P())
        self.reversed = NamedSharding(cuplace.make_mesh((count,), ("x",), devices=self.devices[::-1]), P("x"))
        self.first = NamedSharding(cuplace.make_mesh((1,), ("x",), devices=self.devices[:1]), P())

    def values(self) -> np.ndarray:
        """Four bytes for each device."""
        return np.ones(self.count, np.float32)

    def square(self) -> np.ndarray:
        """Of which each device has a row, or a column."""
        return np.ones((self.count, self.count), np.float32)


# --- planning -----------------------------------------------------------------------------------------------

LAYOUTS = {
    "reversed order": ("rows", "reversed"),
    "rows to columns": ("rows", "columns"),
    "sharded to replicated": ("rows", "everywhere"),
    "replicated to sharded": ("everywhere", "rows"),
    "one to replicated": ("first", "everywhere"),
}


def plannings(place: Place) -> Iterator[Point]:
    """Processor time of plans, each of a shape that was not seen before."""
    dtype, number = np.dtype(np.float32), count(1)
    for name, (source, target) in LAYOUTS.items():
        old, new = getattr(place, source), getattr(place, target)

        def plan(old: Any = old, new: Any = new) -> Any:
            return plan_move((place.count * next(number), place.count), dtype, old, new)

        moves = plan().num_moves
        yield Point(PLANNING, name, place.count, moves, processor_seconds(plan))


# --- dispatch -----------------------------------------------------------------------------------------------


def dispatches(place: Place) -> Iterator[Point]:
    """Processor time until calls return."""
    for name, (moves, call) in calls(place).items():
        if moves <= MOST_MOVES:
            yield Point(DISPATCH, name, place.count, moves, processor_seconds(call, cuplace.block_until_ready))


def calls(place: Place) -> dict[str, tuple[int, Callable[[], Any]]]:
    """The calls by name, each with the moves that it makes. A call touches each shard, or each move, once."""
    put, values = cuplace.device_put, place.values()
    x = cuplace.block_until_ready(put(values, place.rows))
    square = cuplace.block_until_ready(put(place.square(), place.rows))
    stage = cuplace.jit(lambda x: jnp.sin(x) + 1.0)

    def first_call() -> Any:
        return cuplace.jit(lambda x: jnp.sin(x) + 1.0)(x)

    moves = plan_move(square.shape, square.dtype, place.rows, place.columns).num_moves
    return {
        "x + x": (0, lambda: x + x),
        "jitted sin(x) + 1": (0, lambda: stage(x)),
        "its first call": (0, first_call),
        "device_put from the host": (0, lambda: put(values, place.rows)),
        "device_put, reversed order": (0, lambda: put(x, place.reversed)),
        "device_put, rows to columns": (moves, lambda: put(square, place.columns)),
        "numpy.asarray": (0, lambda: np.asarray(x + x)),
    }


def processor_seconds(call: Callable[[], Any], wait: Callable[[Any], Any] = id) -> float:
    """The median of the processor time that a call takes in this thread; collections of garbage are left out."""
    wait(call())
    times, spent = 1, _spent(call, wait, 1)
    while spent < LEAST_SECONDS and times < MOST_CALLS:
        times *= 2
        spent = _spent(call, wait, times)
    return statistics.median([spent, *(_spent(call, wait, times) for _ in range(SAMPLES - 1))]) / times


def _spent(call: Callable[[], Any], wait: Callable[[Any], Any], times: int) -> float:
    collects = gc.isenabled()
    gc.disable()
    try:
        start = time.thread_time()
        for _ in range(times):
            result = call()
        spent = time.thread_time() - start
    finally:
        if collects:
            gc.enable()
    wait(result)
    return spent


# --- memory -------------------------------------------------------------------------------------------------


def memories(place: Place) -> Iterator[Point]:
    """Bytes of Python's objects that something keeps: what comes back when it goes."""
    dtype, number = np.dtype(np.float32), count(1000)

    def plan() -> Any:
        return plan_move((place.count * next(number), place.count), dtype, place.rows, place.columns)

    def array() -> Any:
        return x + x

    def sharding() -> Any:
        name = f"axis{next(number)}"
        made = NamedSharding(cuplace.make_mesh((place.count,), (name,), devices=place.devices), P(name))
        made.layout((place.count,))
        return made

    x = cuplace.device_put(place.values(), place.rows)
    yield Point(MEMORY, "an array of one number a device", place.count, 0, kept_bytes(array, place))
    yield Point(MEMORY, "a mesh, a sharding and a layout", place.count, 0, kept_bytes(sharding, place))
    yield Point(MEMORY, "a plan, rows to columns", place.count, plan().num_moves, kept_bytes(plan, place))


def kept_bytes(make: Callable[[], Any], place: Place) -> float:
    """Bytes that come back when one of what ``make`` makes is given up, with the caches that hold it."""
    tracemalloc.start()
    try:
        kept = [make() for _ in range(KEPT)]
        _settle(place, kept)
        before = tracemalloc.get_traced_memory()[0]
        del kept
        plan_move.cache_clear()
        _settle(place, None)
        return (before - tracemalloc.get_traced_memory()[0]) / KEPT
    finally:
        tracemalloc.stop()


def _settle(place: Place, made: Any) -> None:
    """All work is done, and all that is dead has gone."""
    cuplace.block_until_ready([one for one in made or () if isinstance(one, cuplace.Array)])
    place.devices[0].scheduler.tidy()
    gc.collect()


# --- all of it ----------------------------------------------------------------------------------------------


def points(devices: int) -> Iterator[Point]:
    """All costs on so many devices."""
    platform = open_platform("sim", devices, machine=MACHINE, eagerness=0.0)
    try:
        with activated(platform):
            place = Place(platform.devices)
            yield from plannings(place)
            yield from dispatches(place)
            yield from memories(place)
    finally:
        platform.close()


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """The slope of the line that fits the logarithms best, in the last stretch; None where there are no two sizes.

    >>> round(exponent([1, 2, 4, 8], [5, 20, 80, 320]), 6)
    2.0
    """
    pairs = [(math.log(x), math.log(y)) for x, y in zip(sizes, values, strict=True) if x * STRETCH >= max(sizes)]
    if len(pairs) < 2:
        return None
    xs, ys = zip(*pairs, strict=True)
    return float(np.polyfit(xs, ys, 1)[0])


def row_of(series: Sequence[Point]) -> Row:
    """What the points of one cost say together."""
    first, last = series[0], series[-1]
    by = MOVES if last.moves else DEVICES
    sizes = [float(point.moves if last.moves else point.devices) for point in series]
    grown = [(size, point.value) for size, point in zip(sizes, series, strict=True) if size]
    slope = exponent(*zip(*grown, strict=True))
    return {
        "kind": last.kind, "cost": last.name, "first": first.value, "last": last.value, "devices": last.devices,
        "moves": last.moves or None, "by": by, "exponent": slope, "doubling": None if slope is None else 2**slope,
        "each": last.value / sizes[-1], "sizes": sizes, "values": [point.value for point in series],
    }  # fmt: skip


def numbers(most: int) -> list[int]:
    """1, 2, 4 and so on, and the most.

    >>> numbers(12)
    [1, 2, 4, 8, 12]
    """
    return [*(1 << i for i in range(most.bit_length()) if 1 << i < most), most]


def run(bench: Bench) -> Result:
    most = 16 if bench.quick else bench.options.most
    found: list[Point] = []
    for devices in numbers(most):
        bench.step(f"{devices} devices")
        found += points(devices)
    names = dict.fromkeys((point.kind, point.name) for point in found)
    series = {key: [point for point in found if (point.kind, point.name) == key] for key in names}
    rows = {key: row_of(each) for key, each in series.items()}
    tables = [_table(kind, [row for (own, _), row in rows.items() if own == kind], most) for kind in UNITS]
    budgets = [] if bench.quick else [_budget(row) for row in rows.values() if row["exponent"] is not None]
    return Result(tables, budgets=budgets, notes=_NOTES, chart=_chart(series))


_NOTES = (
    f"exponent e: the cost grows as size^e, fitted on the last stretch, in which the size grows {STRETCH} times",
    "an exponent of 0 is constant, 1 linear, 2 quadratic; twice the size costs 2^e times as much",
    "planning and dispatch: processor time until the call returns; plans are of new shapes, all else is warm",
    "memory: bytes of Python's objects; of the data of an array there are 4 bytes a device",
)


def _table(kind: str, rows: list[Row], most: int) -> Table:
    unit = UNITS[kind]
    columns = (
        Column("cost", kind), Column("first", "1 device", unit), Column("last", f"up to {most}", unit),
        Column("devices", "devices"), Column("moves", "moves"), Column("each", "each", unit),
        Column("by", "grows with"), Column("exponent", "exponent"), Column("doubling", "twice as many", "x"),
    )  # fmt: skip
    return Table(kind.capitalize(), columns, rows)


def _budget(row: Row) -> Budget:
    return Budget(f"{row['kind']}, {row['cost']}: exponent in {row['by']}", row["exponent"], GROWS, "")


def _chart(series: dict[tuple[str, str], list[Point]]) -> Chart:
    panels = []
    for kind, unit in UNITS.items():
        drawn = [
            Series(name, [point.devices for point in each], [point.value for point in each])
            for (own, name), each in series.items()
            if own == kind
        ]
        most = max(drawn[0].x)
        stretch = [size for size in drawn[0].x if size * STRETCH >= most]
        middle = statistics.median(line.y[-1] for line in drawn)
        drawn.append(Series("linear", stretch, [middle * size / most for size in stretch], DASHED))
        panels.append(Panel(kind, drawn, unit))
    return Chart("What the host's work costs on many devices", "devices", "cost", panels, log_x=True, log_y=True)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--most", type=whole(2, 1024), default=512, metavar="N", help="devices at most (default: 512)")


BENCHMARK = Benchmark(
    "what planning, calls and arrays cost the host on 1 to 512 simulated devices", run, platforms=("sim",), rounds=1,
    steps=lambda options: len(numbers(16 if options.quick else options.most)), options=_options, opens=False,
    machine=False, virtual=False,
)  # fmt: skip
