"""Pipelines in virtual time: as quick as the known bounds allow; and what the benchmark says of them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest

from bench import pipeline
from bench.harness import Bench, WrongOption
from cuplace.runtime.config import config
from cuplace.runtime.machine import PeerLink
from cuplace.runtime.platform import Platform, activated, open_platform
from cuplace.runtime.presets import find_machine

STAGES, MICROBATCHES = 4, 8
OPTIONS = Namespace(stages=2, microbatches=2, per_stage=2, size=8)
H200 = find_machine("hgx-h200")


@pytest.fixture
def bench() -> Iterator[Bench]:
    """On a machine where only computing takes time, as long as its matrices were 8192 wide and high."""
    slow = pipeline.slowed(replace(H200, submit_us=0.0), 256)
    peer = PeerLink(1e6, latency_us=0.0)
    host = replace(slow.host, up_gb_s=1e6, down_gb_s=1e6, latency_us=0.0)
    opened = open_platform("sim", 8, machine=replace(slow, host=host, peer=peer))
    with activated(opened):
        yield Bench(opened, "sim", OPTIONS, machine=opened.backend.machine)
    opened.close()


@pytest.mark.parametrize("microbatches", [1, MICROBATCHES])
def test_training_has_the_bubble_of_1f1b(bench: Bench, microbatches: int) -> None:
    program = pipeline.training_program(bench.platform.devices[:STAGES], STAGES, microbatches, 32)
    row = pipeline.measured(bench, program)
    assert program.least_bubble == (STAGES - 1) / (microbatches + STAGES - 1)
    assert row["bubble"] == pytest.approx(program.least_bubble, abs=0.02)
    assert row["ratio"] == pytest.approx(1.0, abs=0.001)


@pytest.mark.parametrize(("at_once", "least"), [(8, 3 / 11), (4, 3 / 11), (2, 0.5), (1, 0.75)])
def test_few_cores_leave_devices_idle(at_once: int, least: float) -> None:
    program = pipeline.Program("four stages", STAGES, MICROBATCHES, STAGES, list)
    assert program.least_idle(at_once) == pytest.approx(least)


def test_waiting_after_each_call_overlaps_nothing(bench: Bench) -> None:
    """S M passes one after the other, where M + S - 1 would do."""
    row = pipeline.measured(bench, pipeline.training_program(bench.platform.devices[:STAGES], STAGES, MICROBATCHES, 32))
    serial, pipelined = STAGES * MICROBATCHES, MICROBATCHES + STAGES - 1
    assert row["faster"] == pytest.approx(serial / pipelined, rel=0.05)
    assert row["sync"].median / row["critical_path"] == pytest.approx(serial / pipelined, rel=0.05)


def test_on_h200_all_pipelines_keep_to_their_budgets() -> None:
    platform = open_platform("sim", 8, machine=H200)
    options = Namespace(stages=STAGES, microbatches=4, per_stage=1, size=16)
    with activated(platform):
        result = pipeline.run(Bench(platform, "sim", options, machine=H200))
    platform.close()
    assert len(result.budgets) == 2
    assert all(budget.met for budget in result.budgets), result.budgets
    assert [row["microbatches"] for row in result.tables[0].rows] == [4, 1, 2, 4]


def test_it_runs_everywhere(platform: Platform) -> None:
    timed = platform.name != "cuda"
    machine = platform.backend.machine if platform.name == "sim" else None
    result = pipeline.run(Bench(platform, platform.name, OPTIONS, quick=True, timed=timed, machine=machine))
    rows = result.tables[0].rows
    assert [(row["stages"], row["microbatches"]) for row in rows] == [(2, 2), (2, 1), (2, 2)]
    for row in rows:
        assert (row["seconds"] is not None) == (row["sync"] is not None) == (row["bubble"] is not None) == timed
    assert not config.sync


@pytest.mark.parametrize(
    ("stages", "per_stage", "size", "text"),
    [
        (5, 2, 8, "--devices 8: 5 stages of training need 10"),
        (4, 2, 7, "7 rows do not split evenly over 2 devices"),
        (1, 1, 8, None),
        (2, 3, 9, None),
    ],
)
def test_what_stages_need(stages: int, per_stage: int, size: int, text: str | None) -> None:
    options = Namespace(stages=stages, per_stage=per_stage)
    with nullcontext() if text is None else pytest.raises(WrongOption, match=text):
        pipeline.check(8, options, size)


def test_microbatches_of_the_page_have_to_split_too() -> None:
    with pytest.raises(WrongOption, match="256 rows do not split evenly over 3 devices"):
        pipeline.check(12, Namespace(stages=4, per_stage=1), 8)
