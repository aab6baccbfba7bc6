"""Executable: a program bound to devices, ready to be run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cuplace.array.array import Array
from cuplace.array.dtypes import narrow
from cuplace.runtime.caller import caller
from cuplace.staging.steps import SegmentStep, Step, run_steps
from cuplace.transfer.execute import move
from cuplace.transfer.plan import TransferPlan
from cuplace.transfer.upload import upload

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


class Plain(NamedTuple):
    """The arguments of the functions of `quick`."""

    step: SegmentStep
    reads: Sequence[int]
    numbers: Sequence[tuple[int, Callable[[Any], Any]]]
    keys: Sequence[OperandKey]
    governor: int | None


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

    def __call__(self, operands: Sequence[Any], run: Callable[..., None] = run_steps) -> list[Array]:
        """Run on these operands; the results. ``run`` does what `run_steps` does.

        Raises:
            DeletedArrayError: a RuntimeError, for an operand or captured array that has been deleted.
            IntegerRangeError: an OverflowError, for a number that the 32-bit types cannot hold.
        """
        scalars = tuple([convert(operands[i]) for i, convert in self.numbers])
        environment = self._environment(operands)
        line = caller()
        self._bring_in(operands, environment, line)
        run(self.steps, environment, scalars, line)
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

    def plain(self, num_operands: int) -> Plain | None:
        """What a quick run needs, where all that is done is one submission a device on arrays that are in place.

        The captured arrays count as further operands.
        """
        step = self.steps[0] if len(self.steps) == 1 else None
        if type(step) is not SegmentStep or len(step.tasks) > 1 or step.temporaries or self.baked:
            return None
        if any(entry.plan is not None or entry.sharding is not None for entry in self.entries):
            return None
        if [place for place, _ in self.results] != [made.place for made in step.made]:
            return None
        position = {entry.place: entry.position for entry in self.entries}
        position.update({place: num_operands + k for k, (place, _) in enumerate(self.constants)})
        governor = self.governor
        if isinstance(governor, Array):
            governor = num_operands + next(k for k, (_, array) in enumerate(self.constants) if array is governor)
        reads = [position[place] for place in step.reads]
        return Plain(step, reads, self.numbers, [key for _, key in self.results], governor)
