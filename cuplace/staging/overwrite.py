"""Overwriting: results that are written over donated operands, instead of into new memory.

Whether a result may have the memory of an operand is a property of the program, decided once. Whether the memory is
free to be written over is asked at each call; where it is not, the result gets memory of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cuplace.runtime.memory import COMPUTE
from cuplace.runtime.task import ComputeTask
from cuplace.staging.segment import Segment, may_give_view
from cuplace.staging.steps import Environment, SegmentStep, Step

if TYPE_CHECKING:
    from cuplace.array.array import Array
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line
    from cuplace.staging.executable import Executable


class Overwriting:
    """Runs an executable so that its results take over the memory of donated operands.

    The operands are consumed before their memory is written, so that no other thread finds half a value there.

    Attributes:
        possible: whether there is any result that can do so.
    """

    def __init__(self, executable: Executable, donated: Mapping[int, Sequence[Buffer]]) -> None:
        """``donated``: the buffers of the donated operands, of which only shapes and dtypes matter, by position."""
        self._executable = executable
        self._position = {
            entry.place: entry.position
            for entry in executable.entries
            if entry.position in donated and entry.plan is None and entry.sharding is None
        }
        kinds = {place: _kind(donated[position]) for place, position in self._position.items()}
        self._variants: dict[Step, tuple[SegmentStep, dict[int, int]]] = {}
        for step in executable.steps:
            if isinstance(step, SegmentStep) and any(place in kinds for place in step.dead):
                variant = _writing_once(step)
                pairs = _pairs(variant, kinds)
                if pairs:
                    self._variants[step] = variant, pairs
        self.possible = bool(self._variants)

    def __call__(self, operands: Sequence[Any]) -> list[Array]:
        """Run on these operands; the results. Raises as the executable does."""
        return self._executable(operands, partial(self._run_steps, operands))

    def _run_steps(
        self, operands: Sequence[Any], steps: Sequence[Step], environment: Environment, scalars: tuple[Any, ...],
        line: Line | None,
    ) -> None:  # fmt: skip
        for step in steps:
            if step in self._variants:
                variant, pairs = self._variants[step]
                donors = [operands[self._position[step.reads[i]]] for i in pairs.values()]
                _write_over(variant, pairs, donors, environment, scalars, line)
            else:
                step.run(environment, scalars, line)
            for place in step.dead:
                environment[place] = None


def _write_over(
    step: SegmentStep, pairs: Mapping[int, int], donors: Sequence[Array], environment: Environment,
    scalars: tuple[Any, ...], line: Line | None,
) -> None:  # fmt: skip
    """Do the step, each result k of ``pairs`` in the memory of the read that belongs to it, where that is free."""
    scheduler = step.devices[0].scheduler

    def new(k: int) -> list[Buffer]:
        shape, dtype, _ = step.writes[k]
        return scheduler.allocate_batch(step.devices, shape, dtype, COMPUTE)

    sources = [environment[place] for place in step.reads]
    fresh = {k: new(k) for k in range(len(step.writes)) if k not in pairs}  # may fail, so before anything is consumed
    for donor in donors:
        donor._consume("donated", line)
    for k, i in pairs.items():
        free = count_holders(sources[i]) == ALONE * len(sources[i]) and scheduler.may_overwrite(sources[i])
        fresh[k] = list(sources[i]) if free else new(k)
    writes = [fresh[k] for k in range(len(step.writes))]
    launches = [
        (device.compute, [buffers[n] for buffers in sources], [buffers[n] for buffers in writes])
        for n, device in enumerate(step.devices)
    ]
    if len(step.tasks) == 1:
        scheduler.submit_batch(step.tasks[0], launches, scalars, line)
    else:
        for task, launch in zip(step.tasks, launches, strict=True):
            scheduler.submit_batch(task, (launch,), scalars, line)
    for k, of in enumerate(step.made):
        environment[of.place] = fresh[k]


def count_holders(buffers: Sequence[Any]) -> int:
    """How many references there are to some buffers; to see whether anything else holds them."""
    return sum(map(sys.getrefcount, buffers))


ALONE = count_holders([object()])
"""What `count_holders` finds for one object that nothing but the list holds."""


def _kind(buffers: Sequence[Buffer]) -> tuple[Any, ...]:
    array = buffers[0].array
    return tuple(array.shape), array.dtype


def _writing_once(step: SegmentStep) -> SegmentStep:
    """The step with segments that write each element of a result once, and only when it is its turn."""
    segments = [segment.writing_once() for segment in step.segments]
    tasks = [
        ComputeTask(task.name, segment.work(), task.seconds, task.library, task.cost, task.within)
        for task, segment in zip(step.tasks, segments, strict=True)
    ]
    variant = SegmentStep(segments, tasks, step.reads, step.made, step.devices)
    variant.dead = step.dead
    return variant


def _pairs(step: SegmentStep, kinds: Mapping[int, tuple[Any, ...]]) -> dict[int, int]:
    """For each result, by number, the read whose memory it may take: of the same shape and dtype, each once."""
    free = [i for i, place in enumerate(step.reads) if place in kinds and place in step.dead]
    found: dict[int, int] = {}
    for k, of in enumerate(step.made):
        for i in free:
            fits = kinds[step.reads[i]] == (of.shape, of.dtype)
            if fits and all(may_overwrite(segment, i, k) for segment in step.segments):
                found[k] = i
                free.remove(i)
                break
    return found


def may_overwrite(segment: Segment, source: int, output: int) -> bool:
    """Whether an output of a segment may have the memory of input ``source``, of the same shape and dtype: nothing
    reads the input, or a view of it, once the output is being written."""
    register = segment.outputs[output]
    made = [n for n, ops in enumerate(segment.groups) if any(register in op.outs for op in ops)]
    if not made or segment.outputs.count(register) > 1:
        return False
    (made_at,) = made
    shared = {source}
    for n, ops in enumerate(segment.groups):
        readers = [op for op in ops if not shared.isdisjoint(op.reads)]
        if not readers:
            continue
        if n > made_at or (n == made_at and not _reads_first(segment, n, source, shared, register)):
            return False
        if may_give_view(ops):
            shared.update(out for op in readers for out in op.outs)
    return True


def _reads_first(segment: Segment, n: int, source: int, shared: set[int], register: int) -> bool:
    """Whether group ``n``, which makes the register, reads each element of the source before it writes that one."""
    ops = segment.groups[n]
    if {read for op in ops for read in op.reads} & shared != {source}:
        return False
    if n in segment.chains:
        return segment.chains[n].reads_before_writing(source, register)
    (op,) = ops
    return op.ufunc is not None and op.elementwise
