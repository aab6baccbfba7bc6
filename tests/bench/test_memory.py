"""Peaks of moves are those of their plans; a pipeline needs what donation and waiting let it need."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest

import cuplace
from bench import memory
from bench.harness import Bench, WrongOption
from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform

MICROBATCHES = 3
OPTIONS = Namespace(mib=1)


def bench_of(platform: Platform) -> Bench:
    return Bench(platform, platform.name, OPTIONS, quick=True, timed=platform.name != "cuda")


def test_moves_need_what_their_plans_say(platform: Platform) -> None:
    rows = memory.moves(bench_of(platform), 1 << 18)
    assert len(rows) == 16
    for row in rows:
        assert row["took"] == row["planned"] == row["shards"] + (row["staging"] or 0) > 0, row
        assert row["of_plan"] == 1.0
        assert 0 < row["of_allowed"] <= 1.0
    packs = [row["move"] for row in rows if row["staging"]]
    assert packs == ([] if platform.name == "cpu" or platform.devices[-1].gpu == 0 else ["rows to columns, two wide"])


def test_pipelines_that_wait_need_two_shards_or_one_with_donation(platform: Platform) -> None:
    """The input and the output of a stage, or one for both; the last stage keeps all results, too."""
    rows = memory.pipelines(bench_of(platform), 16, MICROBATCHES)
    found = {(row["pipeline"], row["waits"]): (row["between_shards"], row["last_shards"]) for row in rows}
    assert found["as on the page", "after each call"] == (2, MICROBATCHES + 1)
    assert found["donated", "after each call"] == (1, MICROBATCHES)
    for name in ("as on the page", "donated"):
        assert 1 <= found[name, "at the end"][0] <= 2 * MICROBATCHES
    assert not config.sync


def test_more_than_is_allowed_shows() -> None:
    assert memory.most_of({"a": 100, "b": 210}, {"a": 100, "b": 200}) == 1.05
    assert memory.most_of({"a": 100, "b": 1}, {"a": 100, "b": 0}) == float("inf")
    assert memory.most_of({"a": 0}, {}) == 1.0


def test_peaks_count_what_is_needed_for_a_moment(platform: Platform) -> None:
    device = platform.devices[0]
    x = cuplace.device_put(np.zeros(64, np.float32), device)
    config.update("sync", True)
    made, found = memory.peaks(platform.devices, lambda: (x + 1) + 1)
    assert made.nbytes == 256
    assert found == {one: 512 * (one is device) for one in platform.devices}


def test_it_runs_everywhere(platform: Platform) -> None:
    result = memory.run(bench_of(platform))
    titles = [table.title for table in result.tables]
    assert len(titles) == (3 if platform.name == "cuda" else 2)
    assert [budget.met for budget in result.budgets] == [True, True]
    assert result.chart is not None
    assert len(result.chart.panels[0].series[0].x) == 16
    if platform.name == "cuda":
        for row in result.tables[-1].rows:
            assert 0 < row["peak"] <= row["limit"]


@pytest.mark.parametrize("devices", [3, 6, 256])
def test_devices_that_arrays_do_not_split_over(devices: int) -> None:
    with pytest.raises(WrongOption, match=f"--devices {devices}: arrays split over a power of two"):
        memory.check(devices)
    memory.check(memory.MOST_DEVICES)
