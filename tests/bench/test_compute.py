"""Operations give what NumPy gives, on every platform; what bounds them is computed from known rates."""

from __future__ import annotations

from argparse import Namespace

import pytest

import cuplace.numpy as jnp
from bench import compute
from bench.compute import CHAIN, OPERATIONS, Rates
from bench.figure import Figure
from bench.harness import Bench, Limit, WrongOption
from bench.reshard import scaled
from cuplace.runtime.platform import Platform, activated, open_platform
from cuplace.runtime.presets import find_machine

OPTIONS = Namespace(quick=True)


def bench_of(platform: Platform) -> Bench:
    machine = platform.backend.machine if platform.name == "sim" else None
    return Bench(
        platform, platform.name, OPTIONS, quick=True, timed=platform.name != "cuda", machine=machine
    )  # fmt: skip


def test_it_runs_everywhere(platform: Platform) -> None:
    """Values are checked on the way."""
    bench = bench_of(platform)
    result = compute.run(bench)
    rows = result.tables[0].rows
    assert [(row["operation"], row["nbytes"]) for row in rows] == [
        (operation.name, operation.nbytes(side)) for operation in OPERATIONS.values() for side in compute.QUICK
    ]
    for row in rows:
        assert (row["ours"] is not None) == (row["share"] is not None) == bench.timed
        assert row["jax"] is row["numpy"] is row["cupy"] is row["of_jax"] is None
    assert (result.chart is not None) == bench.timed


def test_wrong_values_raise(platform: Platform) -> None:
    wrong = compute.Operation("wrong", lambda xp, x: x + (1 if xp is jnp else 0))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        compute.checked(wrong, 16, platform.devices)


@pytest.mark.parametrize("name", OPERATIONS)
def test_peers_do_the_same_work(name: str) -> None:
    assert len(compute.numpy_side(name, 16, rounds=2)) == 2


@pytest.mark.parametrize(
    ("name", "traffic", "flops"),
    [
        ("x + y", 3 * 64 * 128 * 4, 0), ("sin(x)", 2 * 64 * 128 * 4, 0), ("sum(x)", 64 * 128 * 4, 0),
        ("x @ y", 3 * 32 * 32 * 4, 2 * 32**3), (CHAIN.name, 2 * 64 * 128 * 4, 0),
    ],
)  # fmt: skip
def test_what_bounds_an_operation(name: str, traffic: int, flops: int) -> None:
    operation = OPERATIONS[name]
    assert operation.traffic(64) == traffic
    assert operation.flops(64) == flops
    assert Rates(traffic / 2, 1e30).seconds(operation, 64) == pytest.approx(2.0)
    if flops:
        assert Rates(1e30, flops / 3).seconds(operation, 64) == pytest.approx(3.0)
        assert Rates(1e30, None).seconds(operation, 64) is None
    assert Rates(None, 1.0).seconds(operation, 64) is None


def test_all_gpus_together_are_the_limit() -> None:
    """A flat copy of so many bytes reads them and writes them."""
    platform = open_platform("sim", 8, machine="hgx-h200")
    found = [Limit("copy inside a GPU", Figure(100.0, 90.0, 110.0, "B/s"), "B/s"), Limit("float32", 5.0, "flop/s")]
    assert Rates.of(bench_of(platform), found) == Rates(8 * 2 * 100.0, 8 * 5.0)
    assert Rates.of(bench_of(platform), []) == Rates(None, None)
    platform.close()


def test_in_virtual_time_large_operations_come_near_to_the_limit() -> None:
    """One device of a slow machine, where enqueueing and launching are nothing."""
    platform = open_platform("sim", 1, machine=scaled(find_machine("hgx-h200"), 1e6))
    with activated(platform):
        bench = bench_of(platform)
        rates = Rates.of(bench, compute.limits.measure(bench))
        for name in ("x + y", "sin(x)"):
            (row,) = compute.measured(bench, OPERATIONS[name], [64], rates)
            assert row["share"] == pytest.approx(1.0, abs=0.01)
    platform.close()


def test_rows_that_do_not_split_evenly() -> None:
    platform = open_platform("sim", 3)
    with activated(platform), pytest.raises(WrongOption, match="--devices 3: arrays of 8 rows do not split evenly"):
        compute.run(bench_of(platform))
    platform.close()
