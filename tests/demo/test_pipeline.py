"""The demo's pipeline on every platform: its meshes, its values, its records."""

from __future__ import annotations

import numpy as np
import pytest

from cuplace.demo import pipeline, timeline
from cuplace.runtime.platform import Platform


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8, 11])
def test_every_stage_has_a_mesh_and_all_devices_are_used_evenly(platform: Platform, stages: int) -> None:
    meshes = pipeline.stage_meshes(platform, stages)
    assert len(meshes) == stages
    assert {mesh.size for mesh in meshes} == {max(1, 8 // stages)}
    used = [device for mesh in meshes for device in mesh.flat_devices]
    counts = {used.count(device) for device in used}
    assert max(counts) - min(counts) <= 1


def test_inputs_differ_at_every_place() -> None:
    first, second = pipeline.inputs(2, 8)
    assert first.dtype == np.float32
    assert first.shape == (8, 8)
    assert len(np.unique(first)) == 64
    assert not np.array_equal(first, second)


def test_a_run_gives_numpys_values_and_numbers_its_work(platform: Platform) -> None:
    meshes, microbatches = pipeline.stage_meshes(platform, 4), pipeline.inputs(5, 16)
    runs = [(run.done, run) for run in pipeline.execute(meshes, microbatches)]
    assert [done for done, _ in runs] == [0, 1, 2, 3, 4, 5]
    run = runs[-1][1]
    for result, microbatch in zip(run.results, microbatches, strict=True):
        np.testing.assert_allclose(np.asarray(result), pipeline.expected(microbatch, 4), rtol=1e-6)
    numbers = [run.microbatch_of[submission.id] for submission in run.submissions]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(5))
    # Each stage moves and computes once a device for each microbatch.
    assert len(run.submissions) == 5 * 4 * 2 * 2


@pytest.mark.parametrize("microbatches", [1, 8])
def test_the_order_allows_a_step_a_stage_and_one_more_a_microbatch(platform: Platform, microbatches: int) -> None:
    meshes = pipeline.stage_meshes(platform, 4)
    *_, run = pipeline.execute(meshes, pipeline.inputs(microbatches, 8))
    found = timeline.overlap(timeline.replayed(run.submissions, str))
    assert found.span == 8 + microbatches - 1
    assert found.serial == microbatches * 16
