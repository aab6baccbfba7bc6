"""Training: a stack of layers, one to a stage, trained by pipelined microbatches in the order "one forward, one
backward" (1F1B), with gradients by hand.

A layer is ``relu(x @ W)``; the loss is the mean square of what comes out beyond the targets. Each stage has a mesh of
its own, its rows of the microbatches are spread over its devices, and its weights are on all of them. The first
stage works out the gradient of its input, too, as it would with an embedding before it, so that all stages do alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import cuplace
import cuplace.numpy as jnp
from cuplace import Mesh, NamedSharding, P

RATE = 0.5


class Step(NamedTuple):
    """One piece of the schedule: the forward or the backward pass of a microbatch through a stage."""

    stage: int
    microbatch: int
    is_forward: bool


def one_forward_one_backward(stages: int, microbatches: int) -> Iterator[list[Step]]:
    """The schedule, in ticks: the steps of a tick need only what earlier ticks have made.

    A stage takes in as many microbatches as there are stages from it to the last, then goes backward with one
    before it goes forward with the next.

    >>> for tick in one_forward_one_backward(2, 2):
    ...     print(*[f"{'F' if s.is_forward else 'B'}{s.microbatch} on {s.stage}" for s in tick], sep=", ")
    F0 on 0
    F1 on 0, F0 on 1
    B0 on 1
    B0 on 0, F1 on 1
    B1 on 1
    B1 on 0
    """
    queues = [list(_order(stage, stages, microbatches))[::-1] for stage in range(stages)]
    done: set[Step] = set()
    while any(queues):
        tick = [queue[-1] for queue in queues if queue and _needs(queue[-1], stages) <= done]
        yield tick
        done.update(tick)
        for step in tick:
            queues[step.stage].pop()


def _order(stage: int, stages: int, microbatches: int) -> Iterator[Step]:
    """What one stage does."""
    ahead = min(stages - stage - 1, microbatches)
    for i in range(microbatches + ahead):
        if i < microbatches:
            yield Step(stage, i, True)
        if i >= ahead:
            yield Step(stage, i - ahead, False)


def _needs(step: Step, stages: int) -> set[Step]:
    """What makes the data of a step."""
    if step.is_forward:
        return {Step(step.stage - 1, step.microbatch, True)} if step.stage else set()
    last = step.stage == stages - 1
    return {Step(step.stage, step.microbatch, True) if last else Step(step.stage + 1, step.microbatch, False)}


class Stage:
    """A layer on a mesh of its own: its weights, its gradient so far, and what its backward passes still need."""

    def __init__(self, mesh: Mesh, weights: np.ndarray) -> None:
        self.rows = NamedSharding(mesh, P("x"))
        self.everywhere = everywhere = NamedSharding(mesh, P())
        self.weights = cuplace.device_put(weights, everywhere)
        self.gradient = cuplace.device_put(np.zeros_like(weights), everywhere)
        self.kept: dict[int, tuple[Any, Any]] = {}

        def forward(w: Any, x: Any) -> Any:
            return jnp.maximum(x @ w, 0)

        def backward(w: Any, gradient: Any, x: Any, y: Any, dy: Any) -> Any:
            dz = jnp.where(y > 0, dy, jnp.zeros_like(dy))
            return dz @ w.T, gradient + jnp.matmul(x.T, dz, out_sharding=everywhere)

        def update(w: Any, gradient: Any) -> Any:
            return w - RATE * gradient, jnp.zeros_like(gradient)

        self._forward = cuplace.jit(forward)
        self._backward = cuplace.jit(backward, donate_argnums=1)
        self._update = cuplace.jit(update, donate_argnums=(0, 1))

    def forward(self, microbatch: int, x: Any) -> Any:
        """The layer's output."""
        x = cuplace.device_put(x, self.rows)
        y = self._forward(self.weights, x)
        self.kept[microbatch] = x, y
        return y

    def backward(self, microbatch: int, dy: Any) -> Any:
        """The gradient of the layer's input; that of the weights is added up."""
        x, y = self.kept.pop(microbatch)
        dy = cuplace.device_put(dy, self.rows)
        dx, self.gradient = self._backward(self.weights, self.gradient, x, y, dy)
        return dx

    def update(self) -> None:
        """One step down the gradient, which begins anew."""
        self.weights, self.gradient = self._update(self.weights, self.gradient)


@cuplace.jit
def loss_of(y: Any, target: Any, scale: Any) -> Any:
    """The mean square of ``y - target``, and its gradient, both times ``scale``."""
    beyond = y - target
    return scale * jnp.mean(beyond * beyond), (scale * 2.0 / beyond.size) * beyond


class Trainer:
    """The stages in a row.

    Args:
        meshes: one for each stage.
        weights: a square matrix for each stage.
    """

    def __init__(self, meshes: Sequence[Mesh], weights: Sequence[np.ndarray]) -> None:
        self.stages = [Stage(mesh, w) for mesh, w in zip(meshes, weights, strict=True)]

    def accumulate(self, inputs: Sequence[Any], targets: Sequence[Any]) -> list[Any]:
        """Forward and backward with all microbatches; the parts of the loss. No call waits."""
        last = len(self.stages) - 1
        moving = dict(enumerate(inputs))  # of each microbatch what the last step with it has made
        losses = []
        for tick in one_forward_one_backward(len(self.stages), len(inputs)):
            for at, i, is_forward in tick:
                stage = self.stages[at]
                if is_forward:
                    moving[i] = stage.forward(i, moving[i])
                    continue
                if at == last:
                    target = cuplace.device_put(targets[i], stage.rows)
                    loss, moving[i] = loss_of(moving[i], target, 1.0 / len(inputs))
                    losses.append(loss)
                moving[i] = stage.backward(i, moving[i])
        return losses

    def train(self, inputs: Sequence[Any], targets: Sequence[Any]) -> list[Any]:
        """One step of training: `accumulate`, and the update of the weights."""
        losses = self.accumulate(inputs, targets)
        for stage in self.stages:
            stage.update()
        return losses


def problem(stages: int, microbatches: int, rows: int, width: int) -> tuple[list[np.ndarray], ...]:
    """Weights, inputs and targets, float32: what random layers make of random inputs, and weights that are others."""
    rng = np.random.default_rng(0)

    def layers() -> list[np.ndarray]:
        spread = np.sqrt(2.0 / width)
        return [rng.normal(0, spread, (width, width)).astype(np.float32) for _ in range(stages)]

    inputs = [rng.normal(0, 1, (rows, width)).astype(np.float32) for _ in range(microbatches)]
    targets, teacher = inputs, layers()
    for w in teacher:
        targets = [np.maximum(x @ w, 0) for x in targets]
    return layers(), inputs, targets
