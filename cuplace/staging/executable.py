"""Executable: a program bound to devices, ready to be run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cuplace.array.array import Array
from cuplace.array.deletion import deleted_error
from cuplace.array.dtypes import narrow
from cuplace.runtime.caller import caller
from cuplace.runtime.memory import COMPUTE
from cuplace.staging.steps import SegmentStep, Step, run_steps
from cuplace.transfer.execute import move, upload
from cuplace.transfer.plan import TransferPlan

if TYPE_CHECKING:
    from cuplace.array.key import OperandKey
    from cuplace.placement.sharding import Sharding
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line

Run = Callable[[Sequence[Any]], list[Any]]


class Entry(NamedTuple):
    """How an operand enters the environment.

    Attributes:
        position: of the operand.
        place: in the environment.
        plan: how an array is moved there first, or None.
        sharding: where a host array is uploaded to; None for arrays.
    """

    position: int
    place: int
    plan: TransferPlan | None
    sharding: Sharding | None


class Executable:
    """Steps, with how operands come in and results go out.

    Attributes:
        entries: how arrays come in.
        numbers: how numbers come in: the operand's position and its converter, one for each slot.
        constants: captured arrays with their place; checked to be alive at each call.
        baked: buffers of captured values that were placed once, with their places.
        steps: what is done.
        results: the place and the key of each result.
        num_places: size of the environment.
        governor: the operand or constant whose line of commitment the results inherit.
    """

    def __init__(
        self, entries: Sequence[Entry], numbers: Sequence[tuple[int, Callable[[Any], Any]]],
        constants: Sequence[tuple[int, Array]], baked: Sequence[tuple[int, list[Buffer]]], steps: Sequence[Step],
        results: Sequence[tuple[int, OperandKey]], num_places: int, governor: int | Array | None,
    ) -> None:  # fmt: skip
        self.entries = tuple(entries)
        self.numbers = tuple(numbers)
        self.constants = tuple(constants)
        self.baked = tuple(baked)
        self.steps = tuple(steps)
        self.results = tuple(results)
        self.num_places = num_places
        self.governor = governor

    def __call__(self, operands: Sequence[Any]) -> list[Array]:
        """Run on these operands; the results.

        Raises:
            DeletedArrayError: a RuntimeError, for an operand or captured array that has been deleted.
            IntegerRangeError: an OverflowError, for a number that the 32-bit types cannot hold.
        """
        scalars = tuple([convert(operands[i]) for i, convert in self.numbers])
        environment = self._environment(operands)
        line = caller()
        self._bring_in(operands, environment, line)
        run_steps(self.steps, environment, scalars, line)
        origin = self._origin(operands, line)
        return [Array._make(list(environment[place]), key, origin) for place, key in self.results]

    def _environment(self, operands: Sequence[Any]) -> list[Any]:
        """The environment at the start, after everything that can fail has been checked."""
        environment: list[Any] = [None] * self.num_places
        for position, place, _, sharding in self.entries:
            if sharding is None:
                environment[place] = operands[position]._live()
            else:
                environment[place] = narrow(np.asarray(operands[position]))
        for place, array in self.constants:
            buffers = array._live()
            if place >= 0:
                environment[place] = buffers
        for place, buffers in self.baked:
            environment[place] = buffers
        return environment

    def _bring_in(self, operands: Sequence[Any], environment: list[Any], line: Line | None) -> None:
        for _, place, plan, sharding in self.entries:
            if plan is not None:
                environment[place] = move(environment[place], plan, line)
            elif sharding is not None:
                environment[place] = upload(environment[place], sharding, line)

    def _origin(self, operands: Sequence[Any], line: Line | None) -> Line | None:
        governor = self.governor
        if governor is None:
            return line
        array: Array = operands[governor] if type(governor) is int else governor
        return array._origin

    def quickest(self) -> Run:
        """The quickest function that does the same."""
        step = self.steps[0] if len(self.steps) == 1 else None
        plain = (
            type(step) is SegmentStep
            and len(step.tasks) == 1
            and not step.temporaries
            and not self.constants
            and not self.baked
            and all(entry.plan is None and entry.sharding is None for entry in self.entries)
            and [place for place, _ in self.results] == [made.place for made in step.made]
        )
        if not plain or type(step) is not SegmentStep:
            return self
        position = {entry.place: entry.position for entry in self.entries}
        reads = [position[place] for place in step.reads]
        governor = self.governor if type(self.governor) is int else None
        if len(step.devices) == 1 and len(self.results) == 1:
            return _single(step, reads, self.numbers, self.results[0][1], governor)
        return _batch(step, reads, self.numbers, [key for _, key in self.results], governor)


def _single(
    step: SegmentStep, reads: Sequence[int], numbers: Sequence[tuple[int, Callable[[Any], Any]]], key: OperandKey,
    governor: int | None,
) -> Run:  # fmt: skip
    """One submission on one device, with one result."""
    (device,), (task,) = step.devices, step.tasks
    allocate, submit = device.scheduler.allocate, device.scheduler.submit_batch
    stream, (_, shape, dtype) = device.compute, step.made[0]
    make = Array._make

    def run(operands: Sequence[Any]) -> list[Array]:
        try:
            buffers = [operands[i]._buffers[0] for i in reads]
        except IndexError:
            raise _deleted(operands, reads) from None
        scalars = tuple([convert(operands[i]) for i, convert in numbers]) if numbers else ()
        out = allocate(device, shape, dtype, COMPUTE)
        submit(task, ((stream, buffers, (out,)),), scalars)
        return [make([out], key, None if governor is None else operands[governor]._origin)]

    return run


def _batch(
    step: SegmentStep, reads: Sequence[int], numbers: Sequence[tuple[int, Callable[[Any], Any]]],
    keys: Sequence[OperandKey], governor: int | None,
) -> Run:  # fmt: skip
    """The same submission on each device."""
    (task,) = step.tasks
    scheduler = step.devices[0].scheduler
    allocate, submit = scheduler.allocate, scheduler.submit_batch
    devices, made, make = [(device, device.compute) for device in step.devices], step.made, Array._make

    def run(operands: Sequence[Any]) -> list[Array]:
        given = [operands[i]._buffers for i in reads]
        if not all(given):
            raise _deleted(operands, reads)
        scalars = tuple([convert(operands[i]) for i, convert in numbers]) if numbers else ()
        launches = []
        for i, (device, stream) in enumerate(devices):
            writes = [allocate(device, shape, dtype, COMPUTE) for _, shape, dtype in made]
            launches.append((stream, [buffers[i] for buffers in given], writes))
        submit(task, launches, scalars)
        origin = None if governor is None else operands[governor]._origin
        return [
            make([writes[k] for _, _, writes in launches], key, origin) for k, key in enumerate(keys)
        ]

    return run


def _deleted(operands: Sequence[Any], reads: Sequence[int]) -> Exception:
    return deleted_error(next(operands[i] for i in reads if not operands[i]._buffers))
