"""Overlap in virtual time: the page's pipeline is as quick as its dependencies allow, and lost overlap shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

import cuplace
from bench.critical_path import critical_path, makespan
from cuplace.demo import pipeline as demo
from cuplace.runtime.backends.sim import open_backend
from cuplace.runtime.machine import Machine, PeerLink
from cuplace.runtime.platform import Platform, activated
from cuplace.runtime.presets import find_machine
from cuplace.runtime.submission import Submission
from tests.order import pipeline

H200 = find_machine("hgx-h200")
UNITS = replace(
    H200, submit_us=0.0, gpu=replace(H200.gpu, launch_us=10.0), host=replace(H200.host, latency_us=10.0),
    peer=PeerLink(396, latency_us=10.0),
)  # fmt: skip
"""Any piece of work on little data takes 10 us."""

TOLERANCE = 1.03
ROUNDING = 1e-3  # records have whole nanoseconds


def run_page(machine: Machine, size: int, seed: int) -> tuple[float, float]:
    """Makespan and critical path of the page's pipeline: 4 stages of 2 devices, 8 microbatches."""
    platform = Platform(open_backend(seed, machine=machine), 8)
    with activated(platform):
        meshes = demo.stage_meshes(platform, 4)
        *_, run = demo.execute(meshes, demo.inputs(8, size))
    assert len(run.submissions) == 8 * 4 * 2 * 2
    return makespan(run.submissions), critical_path(platform, run.submissions)


@pytest.mark.parametrize("submit_us", [10.0, 1.0, 0.0])
@pytest.mark.parametrize("size", [256, 1024])
def test_the_pages_pipeline_reaches_its_critical_path(size: int, submit_us: float) -> None:
    """With the host's cost as it is, and with quicker hosts, where the devices decide."""
    taken, bound = run_page(replace(H200, submit_us=submit_us), size, seed=1)
    assert bound * (1 - ROUNDING) <= taken <= TOLERANCE * bound


@pytest.mark.parametrize("name", ["one-gpu", "pcie-8x", "dgx-a100", "dgx-h100", "hgx-h200", "two-nodes"])
def test_the_pages_pipeline_runs_on_every_machine(name: str) -> None:
    taken, bound = run_page(find_machine(name), 256, seed=2)
    assert taken >= bound * (1 - ROUNDING)


def test_makespans_do_not_depend_on_the_seed() -> None:
    assert len({run_page(replace(H200, submit_us=1.0), 64, seed) for seed in range(4)}) == 1


def recorded(seed: int) -> tuple[float, list[Submission]]:
    """The time that the pipeline takes once it has all been enqueued, and its records."""
    platform = Platform(open_backend(seed, machine=UNITS), 8)
    with activated(platform):
        records = pipeline.recorded(platform, cuplace.jit(pipeline.stage))
    return makespan(records), records


@pytest.mark.parametrize("seed", range(3))
def test_lost_overlap_shows_in_times_and_names_its_reason(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the next writer of a dead block waits for its readers, stages wait for moves that bring them nothing."""
    good, _ = recorded(seed)
    pipeline.make_writers_wait(monkeypatch)
    bad, records = recorded(seed)
    assert (good, bad) == (pytest.approx(150e-6, rel=0.01), pytest.approx(220e-6, rel=0.01))
    by_id = {record.id: record for record in records}
    needless = [
        (record, by_id[id])
        for record in records
        if record.kind == "compute"
        for id in record.waits
        if not set(by_id[id].writes) & set(record.reads)
    ]
    assert needless
    assert all(waited.kind == "move" and waited.end <= record.start for record, waited in needless)
    assert any(waited.end == record.start for record, waited in needless)
