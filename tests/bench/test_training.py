"""Training is real: gradients agree with finite differences, the loss goes down; and its schedule is 1F1B."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

import cuplace
from bench import pipeline, training
from bench.training import Step, Trainer, one_forward_one_backward
from cuplace.runtime.platform import Platform

STAGES, MICROBATCHES, ROWS, WIDTH = 3, 4, 4, 5
SHAPES = [(stages, microbatches) for stages in range(1, 7) for microbatches in range(1, 10)]


def trainer(platform: Platform, weights: Sequence[np.ndarray], per_stage: int) -> Trainer:
    devices = platform.devices
    starts = [i * per_stage for i in range(len(weights))]
    meshes = [cuplace.make_mesh((per_stage,), ("x",), devices=devices[start:]) for start in starts]
    return Trainer(meshes, weights)


def slope(weights: list[np.ndarray], inputs: list[np.ndarray], targets: list[np.ndarray], stage: int) -> np.ndarray:
    """The gradient of the loss by the weights of a stage, from differences of float64."""
    found, step = np.empty(weights[stage].shape), 1e-6
    for at in np.ndindex(found.shape):
        sides = []
        for sign in (1, -1):
            moved = [w.astype(np.float64) for w in weights]
            moved[stage][at] += sign * step
            sides.append(pipeline.loss_by_numpy(moved, inputs, targets))
        found[at] = (sides[0] - sides[1]) / (2 * step)
    return found


@pytest.mark.parametrize("per_stage", [1, 2])
def test_gradients_are_those_of_finite_differences(platform: Platform, per_stage: int) -> None:
    weights, inputs, targets = training.problem(STAGES, MICROBATCHES, ROWS, WIDTH)
    trained = trainer(platform, weights, per_stage)
    losses = trained.accumulate(inputs, targets)
    assert sum(map(float, losses)) == pytest.approx(pipeline.loss_by_numpy(weights, inputs, targets), rel=1e-5)
    for number, stage in enumerate(trained.stages):
        found = np.asarray(stage.gradient)
        assert np.abs(found).max() > 1e-3
        np.testing.assert_allclose(found, slope(weights, inputs, targets, number), rtol=1e-3, atol=1e-5)
        assert not stage.kept


def test_the_loss_goes_down(platform: Platform) -> None:
    weights, inputs, targets = training.problem(STAGES, MICROBATCHES, ROWS, WIDTH)
    trained = trainer(platform, weights, per_stage=2)
    losses = [sum(map(float, trained.train(inputs, targets))) for _ in range(4)]
    assert all(later < earlier for earlier, later in pairwise(losses)), losses
    ended = [np.asarray(stage.weights) for stage in trained.stages]
    assert pipeline.loss_by_numpy(ended, inputs, targets) < losses[-1]


@pytest.mark.parametrize(("stages", "microbatches"), SHAPES)
def test_the_schedule_takes_as_long_as_1f1b_takes(stages: int, microbatches: int) -> None:
    """Where forward and backward passes take a tick each: 2 (M + S - 1) ticks, and no more is kept than need be."""
    ticks = list(one_forward_one_backward(stages, microbatches))
    assert len(ticks) == 2 * (microbatches + stages - 1)
    order = [step for tick in ticks for step in tick]
    assert len(order) == len(set(order)) == 2 * stages * microbatches
    for stage in range(stages):
        held = most = 0
        for step in order:
            if step.stage == stage:
                held += 1 if step.is_forward else -1
                most = max(most, held)
        assert (held, most) == (0, min(microbatches, stages - stage))


@pytest.mark.parametrize(("stages", "microbatches"), SHAPES)
def test_a_step_finds_what_it_needs(stages: int, microbatches: int) -> None:
    done: set[Step] = set()
    for tick in one_forward_one_backward(stages, microbatches):
        assert len({step.stage for step in tick}) == len(tick)
        for stage, i, is_forward in tick:
            if is_forward:
                assert stage == 0 or Step(stage - 1, i, True) in done
            else:
                assert Step(stage, i, True) in done
                assert stage == stages - 1 or Step(stage + 1, i, False) in done
        done.update(tick)
