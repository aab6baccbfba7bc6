"""Steps: what an executable does one after the other, on an environment of buffers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cuplace.placement.memory_space import DEVICE
from cuplace.runtime.memory import COMPUTE
from cuplace.runtime.task import ComputeTask, Cost
from cuplace.transfer.execute import move

if TYPE_CHECKING:
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line
    from cuplace.runtime.device import Device
    from cuplace.runtime.host_memory import HostMemory
    from cuplace.staging.segment import Segment, Temporary
    from cuplace.staging.value import Value
    from cuplace.transfer.plan import TransferPlan

BYTES_PER_SECOND = 8e9
"""How much memory one device reads and writes, for estimates of run times."""

Environment = list[Any]
"""The buffers of each value, one a device in mesh order; None where it is not made yet, or no longer needed."""


class Made(NamedTuple):
    """A value that a step makes: its place in the environment, and what each device holds of it, in which memory."""

    place: int
    shape: tuple[int, ...]
    dtype: np.dtype
    kind: str = DEVICE

    @classmethod
    def of(cls, value: Value) -> Made:
        """What a step makes that makes this value."""
        return cls(value.place, value.local_shape, value.dtype, value.kind)


class Step:
    """One thing to do.

    Attributes:
        reads: places in the environment that it needs.
        dead: places that nothing needs after it.
    """

    __slots__ = ("dead", "reads")

    reads: tuple[int, ...]
    dead: tuple[int, ...]

    def run(self, environment: Environment, scalars: tuple[Any, ...], line: Line | None) -> None:
        """Enqueue it."""
        raise NotImplementedError


class SegmentStep(Step):
    """Local work on every device: one submission a device.

    ``devices`` are the devices, or their host memories. ``segments`` has one element where all devices do the same,
    else one for each device.
    """

    __slots__ = ("devices", "made", "segments", "tasks", "temporaries", "writes")

    def __init__(
        self, segments: Sequence[Segment], tasks: Sequence[ComputeTask], reads: Sequence[int], made: Sequence[Made],
        devices: Sequence[Device | HostMemory],
    ) -> None:  # fmt: skip
        self.segments = tuple(segments)
        self.tasks = tuple(tasks)
        self.temporaries: tuple[Temporary, ...] = segments[0].temporaries
        self.reads = tuple(reads)
        self.dead = ()
        self.made = tuple(made)
        self.devices = tuple(devices)
        new = [*((of.shape, of.dtype) for of in made), *self.temporaries]
        self.writes = tuple([(shape, dtype, math.prod(shape) * dtype.itemsize) for shape, dtype in new])

    def run(self, environment: Environment, scalars: tuple[Any, ...], line: Line | None) -> None:
        submit = self.devices[0].scheduler.submit_new
        operands = [environment[place] for place in self.reads]
        if len(self.tasks) == 1:
            results = submit(self.tasks[0], self.writes, self.devices, operands, scalars, line)
        else:
            parts = [
                submit(task, self.writes, (device,), [(buffers[i],) for buffers in operands], scalars, line)
                for i, (task, device) in enumerate(zip(self.tasks, self.devices, strict=True))
            ]
            results = [[part[k][0] for part in parts] for k in range(len(self.writes))]
        for of, buffers in zip(self.made, results, strict=False):  # behind the results are temporaries
            environment[of.place] = buffers


class MoveStep(Step):
    """One value laid out anew."""

    __slots__ = ("plan", "target")

    def __init__(self, source: int, target: int, plan: TransferPlan) -> None:
        self.reads = (source,)
        self.dead = ()
        self.target = target
        self.plan = plan

    def run(self, environment: Environment, scalars: tuple[Any, ...], line: Line | None) -> None:
        environment[self.target] = move(environment[self.reads[0]], self.plan, line)


def run_steps(
    steps: Sequence[Step], environment: Environment, scalars: tuple[Any, ...], line: Line | None
) -> None:
    """Enqueue all steps, letting go of buffers as soon as nothing needs them."""
    for step in steps:
        step.run(environment, scalars, line)
        for place in step.dead:
            environment[place] = None


def note_dead(steps: Sequence[Step], kept: set[int]) -> None:
    """Tell each step which values nothing needs after it; ``kept`` are needed after all of them."""
    seen = set(kept)
    for step in reversed(steps):
        step.dead = tuple([place for place in dict.fromkeys(step.reads) if place not in seen])
        seen.update(step.reads)


def moves_of(steps: Sequence[Step]) -> Iterator[TransferPlan]:
    """The plans of all moves that steps make, those in loops once."""
    for step in steps:
        if type(step) is MoveStep:
            yield step.plan
        elif type(step) is LoopStep:
            yield from moves_of(step.body)


class LoopStep(Step):
    """A loop whose body moves data between devices: its steps are enqueued once for each iteration.

    The body's environment starts with the constants, the carry and the slices of the inputs that are looped over.
    """

    __slots__ = (
        "body", "carried", "devices", "length", "num_consts", "num_places", "order", "slices", "stacked", "store",
        "take",
    )  # fmt: skip

    def __init__(
        self, reads: Sequence[int], body: Sequence[Step], num_places: int, num_consts: int,
        slices: Sequence[Made], carried: Sequence[tuple[int, int]], stacked: Sequence[tuple[int, Made]],
        devices: Sequence[Device], length: int, reverse: bool,
    ) -> None:  # fmt: skip
        """
        Args:
            reads: places of constants, initial carry and inputs.
            body: the steps of one iteration.
            num_places: size of the body's environment.
            num_consts: how many of ``reads`` are constants.
            slices: for each input looped over, its place in the body and what a device holds of one element.
            carried: for each carry, its place in the body at the end of an iteration, and the outer place of the
                last one.
            stacked: for each stacked result, its place in the body, and the outer value.
            devices: in mesh order.
            length: how many iterations.
            reverse: whether the last element comes first.
        """
        self.reads = tuple(reads)
        self.dead = ()
        self.body = tuple(body)
        self.num_places = num_places
        self.num_consts = num_consts
        self.slices = tuple(slices)
        self.carried = tuple(carried)
        self.stacked = tuple(stacked)
        self.devices = tuple(devices)
        self.length = length
        self.order = range(length - 1, -1, -1) if reverse else range(length)
        sizes = [math.prod(made.shape) * made.dtype.itemsize for made in (*slices, *[made for _, made in stacked])]
        nbytes = max(sizes, default=0)
        seconds, cost = nbytes / BYTES_PER_SECOND, Cost(0.0, 2.0 * nbytes)
        self.take = ComputeTask("scan element", _take, seconds, cost=cost)
        self.store = ComputeTask("scan result", _store, seconds, cost=cost)

    def run(self, environment: Environment, scalars: tuple[Any, ...], line: Line | None) -> None:
        given = [environment[place] for place in self.reads]
        split = self.num_consts + len(self.carried)
        consts, carry, inputs = given[: self.num_consts], given[self.num_consts : split], given[split:]
        stacks = [self._empty(made) for _, made in self.stacked]
        for i in self.order:
            elements = [self._take(x, made, i, line) for x, made in zip(inputs, self.slices, strict=True)]
            inner: Environment = [*consts, *carry, *elements]
            inner += [None] * (self.num_places - len(inner))
            run_steps(self.body, inner, (), line)
            carry = [inner[place] for place, _ in self.carried]
            for stack, (place, of) in zip(stacks, self.stacked, strict=True):
                self._store(inner[place], stack, of.kind, i, line)
        for (_, outer), buffers in zip(self.carried, carry, strict=True):
            environment[outer] = buffers
        for (_, made), buffers in zip(self.stacked, stacks, strict=True):
            environment[made.place] = buffers

    def _empty(self, made: Made) -> list[Buffer]:
        places = self._places(made.kind)
        return places[0].scheduler.allocate_batch(places, made.shape, made.dtype, COMPUTE)

    def _places(self, kind: str) -> list[Device | HostMemory]:
        return [device.place(kind) for device in self.devices]

    def _take(self, source: list[Buffer], made: Made, index: int, line: Line | None) -> list[Buffer]:
        elements = self._empty(made)
        self._submit(self.take, made.kind, (source, elements), index, line)
        return elements

    def _store(self, source: list[Buffer], stack: list[Buffer], kind: str, index: int, line: Line | None) -> None:
        self._submit(self.store, kind, (source, stack), index, line)

    def _submit(
        self, task: ComputeTask, kind: str, buffers: tuple[list[Buffer], list[Buffer]], index: int, line: Line | None
    ) -> None:
        launches = [
            (place.compute, [read], [write]) for place, read, write in zip(self._places(kind), *buffers, strict=True)
        ]
        self.devices[0].scheduler.submit_batch(task, launches, (index,), line)


def _take(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
    writes[0][...] = reads[0][scalars[0]]


def _store(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
    writes[0][scalars[0]] = reads[0]
