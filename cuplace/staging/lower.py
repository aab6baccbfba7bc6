"""Lowering: a program placed on the devices of a home becomes steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.array.type import ArrayType
from cuplace.ops.convert import CONVERT
from cuplace.ops.op import OutType, size_of
from cuplace.runtime.task import NOTHING, ComputeTask, Cost
from cuplace.staging.local import Constant, LocalOp, Register, Slot, Source
from cuplace.staging.loop import SCAN, lower_loop
from cuplace.staging.operand import scalar_converter
from cuplace.staging.program import Equation, Literal, Program, Var
from cuplace.staging.put import PUT
from cuplace.staging.quiet import quietly
from cuplace.staging.segment import Segment
from cuplace.staging.steps import BYTES_PER_SECOND, Made, MoveStep, SegmentStep, Step, note_dead
from cuplace.staging.value import INPUT_LEVEL, Value
from cuplace.transfer.plan import plan_move

if TYPE_CHECKING:
    from cuplace.ops.op import Op
    from cuplace.placement.sharding import Sharding
    from cuplace.staging.home import Home
    from cuplace.staging.program import Atom

FLOPS_PER_SECOND = 8e9
CALL_SECONDS = 1e-6
"""What one operation costs at least."""

Variants = Sequence[LocalOp]
"""One operation on all devices: one element where they all do the same, else one for each."""


_Where = tuple[int, str]
"""What goes into one submission: the work of a level, on memory of a kind."""


class Lowering:
    """The base of both kinds of lowering: what is common to one device and to many."""

    def __init__(self, home: Home, name: str) -> None:
        self.home = home
        self.name = name
        self.num_places = 0
        self.values: dict[Var, Value] = {}
        self.slots: dict[tuple[int, np.dtype], tuple[int, Callable[[Any], Any]]] = {}
        self.number_kinds: dict[int, type] = {}
        self._ops: dict[_Where, list[Variants]] = {}
        self._between: dict[int, list[Step]] = {}
        self._seconds: dict[_Where, float] = {}
        self._costs: dict[_Where, Cost] = {}
        self._with_library: set[_Where] = set()
        self._level_of: dict[int, int] = {}
        self._made: dict[int, Value] = {}

    # ------------------------------------------------------------------ values

    def new_place(self) -> int:
        """A new place in the environment."""
        self.num_places += 1
        return self.num_places - 1

    def input(self, type: ArrayType, sharding: Sharding) -> Value:
        """An array that is in the environment from the start."""
        return Value(type.shape, type.dtype, type.weak_type, sharding, self.new_place(), INPUT_LEVEL)

    def number(self, type: ArrayType, position: int, kind: type) -> Value:
        """A number that is passed at the call, as input ``position``."""
        self.number_kinds[position] = kind
        sharding = self.home.replicated(0)
        return Value((), type.dtype, type.weak_type, sharding, -1, INPUT_LEVEL, position)

    def of(self, atom: Atom) -> Value:
        """The value of a variable or literal."""
        if type(atom) is Literal:
            sharding = self.home.replicated(0)
            constant = Constant(atom.value)
            return Value((), atom.type.dtype, atom.type.weak_type, sharding, -1, INPUT_LEVEL, constant)
        assert isinstance(atom, Var)
        return self.values[atom]

    def slot(self, position: int, dtype: np.dtype) -> Slot:
        """The slot of a number that is converted to ``dtype`` at the call."""
        found = self.slots.get((position, dtype))
        if found is None:
            converter = scalar_converter(self.number_kinds[position], dtype)
            found = self.slots[position, dtype] = (len(self.slots), converter)
        return Slot(found[0])

    def _source(self, value: Value) -> Source:
        if value.number is None:
            return Register(value.place)
        return self.slot(value.number, value.dtype) if isinstance(value.number, int) else value.number

    def array(self, value: Value) -> Value:
        """The value as an array: numbers are written into memory."""
        if value.number is None:
            return value
        return self.emit_op(CONVERT, [value], value, {"dtype": value.dtype, "weak_type": value.weak_type})

    # ------------------------------------------------------------------ emission

    def emit_op(
        self, op: Op, args: Sequence[Value], out: Value, params: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> Value:
        """One operation on all devices; ``params`` are local ones, a list of them where devices differ.

        ``out`` gives type and sharding of the result.
        """
        shape = out.sharding.layout(out.shape).shard_shape
        place = self.new_place()
        sources = [self._source(arg) for arg in args]
        shapes = [arg.local_shape for arg in args]
        each = [params] if isinstance(params, Mapping) else params
        whole = size_of(out.shape)
        variants = [LocalOp.of(op, sources, shapes, place, shape, out.dtype, one, whole) for one in each]
        level = self.level(args)
        types = tuple([ArrayType(s, a.dtype) for a, s in zip(args, shapes, strict=True)])
        cost = op.cost(types, OutType(shape, out.dtype), each[0])
        seconds = max(cost.bytes / BYTES_PER_SECOND, cost.flops / FLOPS_PER_SECOND)
        self.emit(variants, (level, out.kind), seconds + CALL_SECONDS, cost, op.library)
        made = out.update(place=place, level=level, number=None)
        self._made[place] = made
        return made

    def emit(self, variants: Variants, where: _Where, seconds: float, cost: Cost, library: bool = False) -> None:
        """Add an operation to a level, on memory of a kind; ``library``: it may call a library that runs threads of its
        own."""
        self._ops.setdefault(where, []).append(variants)
        self._seconds[where] = self._seconds.get(where, 0.0) + seconds
        self._costs[where] = self._costs.get(where, NOTHING) + cost
        if library:
            self._with_library.add(where)

    def note_made(self, value: Value) -> None:
        """Remember a value that an emitted operation makes."""
        self._made[value.place] = value

    def level(self, args: Sequence[Value]) -> int:
        """The level of an operation on these values."""
        return max([0, *[arg.level for arg in args if arg.number is None]])

    def between(self, step: Step, level: int) -> None:
        """Add a step that runs when the work of ``level`` has been enqueued."""
        self._between.setdefault(level, []).append(step)

    def move(self, value: Value, sharding: Sharding) -> Value:
        """The value moved to another sharding, by a plan."""
        place = self.new_place()
        plan = plan_move(value.shape, value.dtype, value.sharding, sharding)
        self.between(MoveStep(value.place, place, plan), value.level)
        # What waits for a moved input is no part of the first segment, which need not wait.
        return value.update(sharding=sharding, place=place, level=max(value.level, 0) + 1)

    # ------------------------------------------------------------------ programs

    def run(self, program: Program) -> list[Value]:
        """Lower all equations; the outputs' values, where the program leaves them."""
        for equation in program.equations:
            outs = self._equation(equation)
            for var, value in zip(equation.outs, outs, strict=True):
                self.values[var] = value
        return [self.of(atom) for atom in program.outputs]

    def _equation(self, equation: Equation) -> list[Value]:
        args = [self.of(atom) for atom in equation.ins]
        if equation.op is PUT:
            return [self._put(args[0], equation.params["sharding"], equation.params["kind"])]
        if equation.op is SCAN:
            return lower_loop(self, equation, args)
        if equation.op is CONVERT and args[0].number is None and args[0].dtype == equation.params["dtype"]:
            return [args[0].update(weak_type=equation.outs[0].type.weak_type)]
        if equation.op is CONVERT and isinstance(args[0].number, int):
            of = equation.outs[0].type
            return [args[0].update(dtype=of.dtype, weak_type=of.weak_type)]
        return [self.operation(equation, args)]

    def _put(self, value: Value, sharding: Sharding | None, kind: str) -> Value:
        if sharding is None:
            value = self.settle(self.array(value))
            sharding = value.sharding.with_memory_kind(kind)
        return self.laid_out(value, sharding)

    def operation(self, equation: Equation, args: list[Value]) -> Value:
        """Lower an equation of an op record."""
        raise NotImplementedError

    def laid_out(self, value: Value, sharding: Sharding) -> Value:
        """The value under a sharding of the home's devices."""
        raise NotImplementedError

    def settle(self, value: Value) -> Value:
        """The value, with a layout that is settled."""
        return value

    def input_anywhere(self, type: ArrayType, settle: Callable[[int, Sharding], None]) -> Value:
        """An array that comes in under the sharding that ``settle`` is told, with the array's place."""
        value = self.input(type, self.home.replicated(len(type.shape), type.memory_kind))
        settle(value.place, value.sharding)
        return value

    def final_sharding(self, type: ArrayType, value: Value) -> Sharding:
        """The sharding of an output for which the user asked for none."""
        raise NotImplementedError

    # ------------------------------------------------------------------ steps

    def steps(self, outputs: Sequence[Value]) -> list[Step]:
        """Everything emitted, in order; ``outputs`` are needed after it."""
        kept = {value.place for value in outputs}
        levels = sorted({INPUT_LEVEL, *[level for level, _ in self._ops], *self._between})
        needed_later = set(kept)
        reversed_steps: list[Step] = []
        for level in reversed(levels):
            between = self._between.get(level, [])
            reversed_steps += reversed(between)
            needed_later.update(place for step in between for place in step.reads)
            for where in [where for where in self._ops if where[0] == level]:  # work on different kinds is independent
                segment = self._segment(where, needed_later)
                reversed_steps.append(segment)
                needed_later.update(segment.reads)
        steps = reversed_steps[::-1]
        note_dead(steps, kept)
        return steps

    def _segment(self, where: _Where, needed_later: set[int]) -> SegmentStep:
        emitted, places = self._ops[where], self.home.places(where[1])
        made_here = [out for variants in emitted for out in variants[0].outs]
        here = set(made_here)
        reads = list(dict.fromkeys(r for variants in emitted for r in variants[0].reads if r not in here))
        outputs = [place for place in made_here if place in needed_later]
        register_of = {place: i for i, place in enumerate([*reads, *made_here])}
        count = max(map(len, emitted))
        segments = []
        for device in range(count):
            ops = [variants[device if len(variants) > 1 else 0].renumbered(register_of) for variants in emitted]
            xp = places[device].xp
            segments.append(Segment(len(reads), ops, [register_of[place] for place in outputs], xp))
        made = [Made.of(self._made[place]) for place in outputs]
        works = [segment.work() for segment in segments]
        seconds, cost, library = self._seconds[where], self._costs[where], where in self._with_library
        tasks = [ComputeTask(self.name, work, seconds, library, cost, quietly) for work in works]
        return SegmentStep(segments, tasks, reads, made, places)

