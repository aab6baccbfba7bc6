"""SCAN: a loop in a program. Its body is a program; it runs inside one submission where nothing moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cuplace.placement.memory_space import DEVICE
from cuplace.placement.sharding import NamedSharding, Sharding
from cuplace.placement.spec import PartitionSpec
from cuplace.runtime.task import NOTHING, Cost
from cuplace.staging.local import LocalOp, Register
from cuplace.staging.program import Equation, Program, StagedOp
from cuplace.staging.steps import LoopStep, Made, SegmentStep
from cuplace.staging.value import Value

if TYPE_CHECKING:
    from cuplace.staging.lower import Lowering
    from cuplace.staging.segment import Segment

SCAN = StagedOp("scan")
"""Operands: captured values, the carry, the inputs looped over (leading dimension ``length``).
Results: the carry, the stacked results.

Params: ``body`` (a Program of captured values as constants), ``num_carry``, ``length``, ``reverse``.
"""


class LoopPlan:
    """The body of a loop, placed.

    Attributes:
        steps: of one iteration.
        num_places: size of the body's environment.
        outputs: the body's results, first the carry.
        consts, carry, elements: the body's inputs.
    """

    def __init__(
        self, outer: Lowering, program: Program, consts: Sequence[Value], carry: Sequence[Value],
        elements: Sequence[tuple[Any, Sharding]],
    ) -> None:  # fmt: skip
        inner = type(outer)(outer.home, outer.name)
        captured = zip(program.captured, consts, strict=True)
        self.consts = [self._enter(inner, var, value.sharding) for var, value in captured]
        variables = program.inputs
        self.carry = [
            self._enter(inner, var, value.sharding) for var, value in zip(variables, carry, strict=False)
        ]
        self.elements = [
            self._enter(inner, var, sharding)
            for var, (_, sharding) in zip(variables[len(carry) :], elements, strict=True)
        ]
        outputs = [inner.array(value) for value in inner.run(program)]
        for i, value in enumerate(carry):
            outputs[i] = inner.laid_out(outputs[i], value.sharding)
        self.outputs = outputs
        self.steps = inner.steps(outputs)
        self.num_places = inner.num_places

    def _enter(self, inner: Lowering, var: Any, sharding: Sharding) -> Value:
        value = inner.values[var] = inner.input(var.type, sharding)
        return value

    @property
    def kinds(self) -> set[str]:
        """The kinds of memory that the body computes on, if it is local work and nothing else."""
        step = self.segment_step
        return set() if step is None else {step.devices[0].memory.kind}

    @property
    def segment_step(self) -> SegmentStep | None:
        """The only step, where the body is local work and nothing else."""
        if len(self.steps) == 1 and type(self.steps[0]) is SegmentStep:
            return self.steps[0]
        return None


def lower_loop(outer: Lowering, equation: Equation, args: list[Value]) -> list[Value]:
    """Lower a loop: to one local operation where its body moves nothing, else to a step of its own."""
    params = equation.params
    program: Program = params["body"]
    num_consts, num_carry = len(program.captured), params["num_carry"]
    args = [outer.settle(outer.array(arg)) for arg in args]
    consts, carry = args[:num_consts], args[num_consts : num_consts + num_carry]
    carry = [
        outer.laid_out(value, _typed(outer, var.type, value))
        for var, value in zip(program.inputs, carry, strict=False)
    ]
    inputs = [_whole_leading(outer, x) for x in args[num_consts + num_carry :]]
    elements = [(x, _element_sharding(x)) for x in inputs]
    plan = LoopPlan(outer, program, consts, carry, elements)
    outs = _outer_values(outer, plan, num_carry, params["length"])
    operands = [*consts, *carry, *inputs]
    if (plan.segment_step is None and plan.steps) or len(plan.kinds.union(v.kind for v in (*operands, *outs))) > 1:
        return _emit_step(outer, plan, operands, outs, num_consts, params)
    return _emit_local(outer, plan, operands, outs, num_consts, params)


def _typed(outer: Lowering, type: Any, value: Value) -> Sharding:
    """The sharding that a carry has in every iteration."""
    if outer.home.single or type.mesh is None:
        return value.sharding
    return NamedSharding(outer.home.concrete(type.mesh), type.spec, type.memory_kind)


def _whole_leading(outer: Lowering, value: Value) -> Value:
    """Inputs looped over have their leading dimension whole on each device."""
    if outer.home.single or value.spec.entries[0] is None:
        return value
    assert isinstance(value.sharding, NamedSharding)
    return outer.laid_out(value, value.sharding.update(spec=PartitionSpec(None, *value.spec.entries[1:])))


def _element_sharding(value: Value) -> Sharding:
    if not isinstance(value.sharding, NamedSharding):
        return value.sharding
    return value.sharding.update(spec=PartitionSpec(*value.spec.entries[1:]))


def _outer_values(outer: Lowering, plan: LoopPlan, num_carry: int, length: int) -> list[Value]:
    values = []
    for i, inner in enumerate(plan.outputs):
        value = inner.update(place=outer.new_place(), level=0)
        if i >= num_carry:
            sharding = inner.sharding
            if isinstance(sharding, NamedSharding):
                sharding = sharding.update(spec=PartitionSpec(None, *inner.spec.entries))
            value = value.update(shape=(length, *inner.shape), sharding=sharding)
        values.append(value)
    return values


def _emit_step(
    outer: Lowering, plan: LoopPlan, operands: list[Value], outs: list[Value], num_consts: int, params: Any
) -> list[Value]:
    num_carry = params["num_carry"]
    level = outer.level(operands)
    slices = [Made.of(v) for v in plan.elements]
    carried = [(inner.place, out.place) for inner, out in zip(plan.outputs, outs[:num_carry], strict=False)]
    stacked = [
        (inner.place, Made.of(out))
        for inner, out in zip(plan.outputs[num_carry:], outs[num_carry:], strict=True)
    ]
    step = LoopStep(
        [v.place for v in operands], plan.steps, plan.num_places, num_consts, slices, carried, stacked,
        outer.home.devices, params["length"], params["reverse"],
    )  # fmt: skip
    outer.between(step, level)
    return [out.update(level=level + 1) for out in outs]


def _emit_local(
    outer: Lowering, plan: LoopPlan, operands: list[Value], outs: list[Value], num_consts: int, params: Any
) -> list[Value]:
    level = outer.level(operands)
    step = plan.segment_step
    segments: Sequence[Segment | None] = [None] if step is None else step.segments
    variants = [
        LocalOp(
            "scan", LocalLoop(plan, segment, num_consts, params), [Register(v.place) for v in operands],
            [v.local_shape for v in operands], [v.place for v in outs], [v.local_shape for v in outs],
            [v.dtype for v in outs], {}, is_loop=True,
        )
        for segment in segments
    ]  # fmt: skip
    length = params["length"]
    seconds, cost = (step.tasks[0].seconds, step.tasks[0].cost) if step is not None else (0.0, NOTHING)
    kind = outs[0].kind if outs else DEVICE
    outer.emit(variants, (level, kind), length * seconds, Cost(length * cost.flops, length * cost.bytes), library=True)
    outs = [out.update(level=level) for out in outs]
    for out in outs:
        outer.note_made(out)
    return outs


class LocalLoop:
    """A loop on one device, as one operation: the body's segment is run once for each iteration.

    In an iteration there are the *given* arrays (constants, carry, elements) and the *made* ones.
    """

    def __init__(self, plan: LoopPlan, segment: Segment | None, num_consts: int, params: Any) -> None:
        self.segment = segment
        self.num_consts = num_consts
        self.num_carry: int = params["num_carry"]
        self.length: int = params["length"]
        self.order = range(self.length - 1, -1, -1) if params["reverse"] else range(self.length)
        self.stacked = [(v.local_shape, v.dtype) for v in plan.outputs[self.num_carry :]]
        step = plan.segment_step
        self.made = [(of.shape, of.dtype) for of in step.made] if step is not None else []
        if segment is not None:
            self.made += segment.temporaries
        self._number(plan, step)

    def _number(self, plan: LoopPlan, step: SegmentStep | None) -> None:
        """Turn places of the body's environment into positions among the given and made arrays."""
        inputs = [value.place for value in (*plan.consts, *plan.carry, *plan.elements)]
        position = {place: i for i, place in enumerate(inputs)}
        reads = step.reads if step is not None else ()
        self.reads = [position[place] for place in reads]
        for i, of in enumerate(step.made if step is not None else ()):
            position[of.place] = len(inputs) + i
        self.results = [position[value.place] for value in plan.outputs]
        # A carry that is another carry of the iteration before must outlive the memory that it lies in.
        carried = range(self.num_consts, self.num_consts + self.num_carry)
        self.copied = [
            i for i, at in enumerate(self.results[: self.num_carry]) if at in carried and at != self.num_consts + i
        ]

    def __call__(self, xp: Any, *arrays: Any, targets: Sequence[Any]) -> list[Any]:
        split = self.num_consts + self.num_carry
        consts, carry, inputs = arrays[: self.num_consts], list(arrays[self.num_consts : split]), arrays[split:]
        stacks = [
            xp.empty((self.length, *shape), dtype) if target is None else target
            for target, (shape, dtype) in zip(targets[self.num_carry :], self.stacked, strict=True)
        ]
        # Two sets of memory: one is read while the other is written.
        sets = [self._memory(xp, carry), self._memory(xp, carry)]
        for turn, i in enumerate(self.order):
            made, copies = sets[turn % 2]
            given = [*consts, *carry, *[x[i] for x in inputs]]
            if self.segment is not None:
                self.segment.loud([given[k] for k in self.reads], made, ())
            at = [*given, *made]
            carry = [at[k] for k in self.results[: self.num_carry]]
            for k, memory in copies.items():
                memory[...] = carry[k]
                carry[k] = memory
            for stack, k in zip(stacks, self.results[self.num_carry :], strict=True):
                stack[i] = at[k]
        for target, value in zip(targets, carry, strict=False):
            if target is not None:
                target[...] = value
        return [*carry, *stacks]

    def _memory(self, xp: Any, carry: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
        made = [xp.empty(shape, dtype) for shape, dtype in self.made]
        return made, {i: xp.empty(carry[i].shape, carry[i].dtype) for i in self.copied}
