"""`python -m bench overlap`: on the simulator, and in the virtual time of fake GPUs, the answer is known."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench import limits, overlap
from bench.harness import Bench, Result, Row
from bench.load import Load
from bench.report import table_lines
from cuplace.runtime.config import config
from cuplace.runtime.machine import Machine
from cuplace.runtime.platform import activated, open_platform
from cuplace.runtime.presets import PRESETS
from cuplace.testing.setting import fresh
from tests import fakegpus, hardware

MICRO = 1e-6
TOLERANCE = 2e-9  # records are whole nanoseconds


def simulated(machine: Machine, devices: int | None = None) -> Result:
    platform = open_platform("sim", devices, machine=machine)
    try:
        with activated(platform):
            return overlap.run(Bench(platform, "sim", argparse.Namespace(), machine=machine))
    finally:
        platform.close()


def rows_of(result: Result) -> dict[str, list[Row]]:
    """Rows by the title of their table, without the summary."""
    return {table.title.partition(",")[0]: list(table.rows) for table in result.tables[1:]}


@pytest.fixture(scope="module")
def hgx() -> Result:
    return simulated(PRESETS["hgx-h200"])


def test_at_every_ratio_all_that_can_be_hidden_is(hgx: Result) -> None:
    rows = rows_of(hgx)
    assert list(rows) == ["Host to device", "Device to host", "Device to device", "All three at once"]
    for mine in rows.values():
        assert [row["ratio"] for row in mine] == ["1/8", "1/4", "1/2", "1", "2", "4", "8"]
        assert all(row["hidden"].median >= 0.95 for row in mine)
    assert [budget.met for budget in hgx.budgets] == [True] * 4


def test_both_take_as_long_as_the_longer_one(hgx: Result) -> None:
    """To the nanosecond: the transfer is enqueued second, so it begins when two pieces of work are enqueued."""
    submit = PRESETS["hgx-h200"].submit_us * MICRO
    for mine in rows_of(hgx).values():
        for row in mine:
            compute, transfer, both = (row[name].median for name in ("compute", "transfer", "both"))
            assert both == pytest.approx(max(compute, transfer + submit), abs=TOLERANCE)
            hidden = (compute + transfer - both) / min(compute, transfer)
            assert row["hidden"].median == pytest.approx(hidden, rel=1e-6)


@pytest.mark.parametrize(
    ("way", "gb_s", "latency_us"),
    [("Host to device", 55.4, 5.0), ("Device to host", 55.1, 5.0), ("Device to device", 396.0, 3.0)],
)
def test_a_transfer_alone_takes_what_the_machine_says(hgx: Result, way: str, gb_s: float, latency_us: float) -> None:
    nbytes = overlap.SIZES["sim"] * overlap.ENLARGED
    expected = nbytes / (gb_s * 1e9) + (latency_us + 10.0) * MICRO
    for row in rows_of(hgx)[way]:
        assert row["transfer"].median == pytest.approx(expected, abs=TOLERANCE)


def test_one_direction_does_not_slow_the_other_unless_the_link_says_so(hgx: Result) -> None:
    """A link to the host of less than twice its speed both ways is what all three at once wait for."""
    alone, together = (rows_of(hgx)[way][0]["transfer"].median for way in ("Device to host", "All three at once"))
    assert together == pytest.approx(alone + 20 * MICRO, abs=30 * MICRO)
    narrow = rows_of(simulated(PRESETS["dgx-a100"]))
    ratio = narrow["All three at once"][0]["transfer"].median / narrow["Host to device"][0]["transfer"].median
    assert ratio == pytest.approx(2 * 26.0 / 37.2, rel=0.01)


def test_on_one_gpu_its_partitions_are_measured() -> None:
    result = simulated(PRESETS["one-gpu"], 2)
    assert "Partition to partition" in rows_of(result)
    assert [budget.met for budget in result.budgets] == [True] * 4


def test_a_machine_that_copies_and_computes_by_turns_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `config.sync` does to the same program: the budgets see it."""
    start = overlap.Way.start

    def after_the_computing(way: overlap.Way) -> list[Any]:
        from cuplace.runtime.platform import current

        platform = current()
        platform.scheduler.drain([platform.devices[0].compute])
        return start(way)

    monkeypatch.setattr(overlap.Way, "start", after_the_computing)
    result = simulated(PRESETS["hgx-h200"])
    assert [budget.met for budget in result.budgets] == [False] * 4
    assert all(row["hidden"].median < 0.1 for mine in rows_of(result).values() for row in mine)


def test_the_picture_shows_all_ways_between_all_hidden_and_nothing_hidden(hgx: Result) -> None:
    assert hgx.chart is not None
    assert [panel.title for panel in hgx.chart.panels] == [title.lower() for title in rows_of(hgx)]
    for panel in hgx.chart.panels:
        nothing, everything, ours = panel.series
        assert [series.name for series in panel.series] == ["one after the other", "all hidden", "cuplace"]
        for least, found, most in zip(everything.y, ours.y, nothing.y, strict=True):
            assert least - 1e-9 <= found < most
        assert list(ours.labels) == [f"{share:.0%}" for share in map(hidden_of, ours.y, everything.y, nothing.y)]


def hidden_of(found: float, everything: float, nothing: float) -> float:
    return (nothing - found) / (nothing - everything)


def test_the_page_shows_what_is_printed(hgx: Result) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md").read_text()
    shown = "".join(f"    {line}".rstrip() + "\n" for line in table_lines(hgx.tables[0]))
    assert shown in page
    assert f"A byte stands for {overlap.ENLARGED}," in page


# ---------------------------------------------------------------------- GPUs


@dataclass
class VirtualBench(Bench):
    """A bench of the fake's clock."""

    clock: Any = None

    def now(self) -> float:
        return float(self.clock.now()) * 1e-9


@pytest.fixture(params=[1, 2])
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    if hardware.chosen() or fakegpus.missing():
        pytest.skip(fakegpus.missing() or "these tests run on the GPUs of this machine")
    from tests import fakecuda

    monkeypatch.setattr(limits, "measure", lambda bench: [])  # cuBLAS is not there
    with (
        fresh(lambda: fakegpus.open_fake(fakegpus.Case("lazy", gpus=request.param))) as platform,
        fakecuda.virtual_time(bytes_per_second=1e9) as clock,
    ):
        yield VirtualBench(platform, "cuda", argparse.Namespace(), rounds=1, quick=True, clock=clock)
    fakegpus.assert_no_reports()


def test_gpus_hide_all_that_they_can(fake: Bench) -> None:
    """The cuda platform enqueues so that streams run at once, and so do the bare copies beside it."""
    for way, mine in rows_of(overlap.run(fake)).items():
        for row in mine:
            assert row["hidden"].median >= 0.95, (way, row)
            assert row["bare_hidden"].median >= 0.95, (way, row)


def test_gpus_hide_nothing_where_each_call_waits(fake: Bench) -> None:
    """With `config.sync`, which the bare copies know nothing of."""
    config.update("sync", True)
    for way, mine in rows_of(overlap.run(fake)).items():
        for row in mine:
            assert row["hidden"].median < 0.1, (way, row)
            assert row["bare_hidden"].median >= 0.95, (way, row)


def test_without_times_all_runs_and_nothing_is_known(fake: Bench) -> None:
    fake.timed = False
    result = overlap.run(fake)
    assert result.chart is None
    for mine in rows_of(result).values():
        for row in mine:
            assert {row[name] for name in ("compute", "transfer", "both", "hidden", "bare_hidden")} == {None}
    assert [budget.met for budget in result.budgets] == []


# ---------------------------------------------------------------------- the processor


def test_the_processor_computes_for_about_as_long_as_is_asked_for() -> None:
    """In matmuls: so many as take so long, by what one was found to take."""
    platform = open_platform("cpu", 2)
    try:
        load = Load(Bench(platform, "cpu", argparse.Namespace(), quick=True))
        assert load.matmuls(0.0) == 1
        assert load.matmuls(0.02) == pytest.approx(2 * load.matmuls(0.01), abs=2)
        platform.scheduler.host_wait([load.enqueue(platform.devices[0], 1e-4)])
    finally:
        platform.close()


def test_the_processor_is_measured_beside_bare_threads() -> None:
    platform = open_platform("cpu", 2)
    try:
        with activated(platform):
            result = overlap.run(Bench(platform, "cpu", argparse.Namespace(), rounds=2, quick=True))
    finally:
        platform.close()
    for mine in rows_of(result).values():
        assert [row["ratio"] for row in mine] == ["1/8", "1", "8"]
        assert all(row[name].median > 0 for row in mine for name in ("compute", "transfer", "both", "bare_both"))
    assert not result.budgets
    assert result.chart is not None
    assert "without cuplace" in {series.name for panel in result.chart.panels for series in panel.series}
