"""Exponents of known costs; and what calls, plans and arrays cost is counted, not timed, to be linear."""

from __future__ import annotations

import gc
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import cuplace
from bench import scaling
from bench.harness import Bench
from bench.scaling import DISPATCH, MEMORY, PLANNING, Place, Point
from cuplace.runtime.platform import activated, open_platform

SIZES = (16, 32, 64)


@contextmanager
def place(devices: int) -> Iterator[Place]:
    platform = open_platform("sim", devices, eagerness=0.0)
    with activated(platform):
        yield Place(platform.devices)
    platform.close()


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power(power: float) -> None:
    sizes = [1.0, 2.0, 4.0, 8.0, 16.0, 64.0]
    assert scaling.exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power, abs=1e-9)


def test_what_all_calls_cost_alike_does_not_hide_the_exponent() -> None:
    sizes = [float(1 << i) for i in range(10)]
    found = scaling.exponent(sizes, [100 + size**2 for size in sizes])
    assert found is not None
    assert found > 1.9


def test_there_is_no_exponent_of_one_size() -> None:
    assert scaling.exponent([4.0], [1.0]) is None


def test_costs_grow_with_moves_where_there_are_any() -> None:
    points = [Point(PLANNING, "plan", n, n * n, 5.0 * n * n) for n in (1, 2, 4, 8, 16)]
    row = scaling.row_of(points)
    assert (row["by"], row["exponent"], row["each"]) == ("moves", pytest.approx(1.0), 5.0)
    row = scaling.row_of([Point(MEMORY, "array", n, 0, 5.0 * n * n) for n in (1, 2, 4, 8, 16)])
    assert (row["by"], row["exponent"], row["doubling"]) == ("devices", pytest.approx(2.0), pytest.approx(4.0))


def calls_of(run: Callable[[], Any]) -> int:
    """How many functions a run calls, of Python and of C."""
    run()
    counted = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        result = run()
    finally:
        sys.setprofile(None)
        gc.enable()
    cuplace.block_until_ready([one for one in (result,) if isinstance(one, cuplace.Array)])
    return counted


def assert_linear(values: list[int] | list[float], text: str) -> None:
    """32 more devices cost twice as much as 16 more; if anything were quadratic, in the end four times as much."""
    first, second, third = values
    assert third - second < 3 * (second - first), f"{text}: {values}"


def test_calls_call_as_many_functions_as_there_are_shards() -> None:
    counts: dict[str, list[int]] = {}
    for devices in SIZES:
        with place(devices) as here:
            for name, (moves, call) in scaling.calls(here).items():
                if not moves:
                    counts.setdefault(name, []).append(calls_of(call))
    assert len(counts) == 6
    for name, found in counts.items():
        assert_linear(found, name)


def test_arrays_and_shardings_take_memory_for_each_shard() -> None:
    found: dict[str, list[Point]] = {}
    for devices in SIZES:
        with place(devices) as here:
            for point in scaling.memories(here):
                found.setdefault(point.name, []).append(point)
    assert len(found) == 3
    for name, points in found.items():
        assert points[0].value > 100
        if points[0].moves:
            assert [point.moves for point in points] == [size**2 for size in SIZES]
            assert points[2].value <= 1.1 * points[1].value * (SIZES[2] / SIZES[1]) ** 2
        else:
            assert_linear([point.value for point in points], name)


def test_the_moves_of_plans_are_those_that_layouts_need() -> None:
    with place(4) as here:
        moves = {point.name: point.moves for point in scaling.plannings(here)}
    assert moves == {
        "reversed order": 4,
        "rows to columns": 16,
        "sharded to replicated": 16,
        "replicated to sharded": 4,
        "one to replicated": 3,
    }


def test_it_runs() -> None:
    options = Namespace(most=2)
    result = scaling.run(Bench(None, "sim", options, quick=False))
    planning, dispatch, memory = result.tables
    assert (len(planning.rows), len(dispatch.rows), len(memory.rows)) == (5, 7, 3)
    assert all(row["kind"] == DISPATCH and row["last"] > 0 for row in dispatch.rows)
    assert len(result.budgets) == sum(row["exponent"] is not None for table in result.tables for row in table.rows)
    assert result.chart is not None
    assert len(result.chart.panels) == 3
