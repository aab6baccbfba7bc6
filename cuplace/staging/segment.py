"""Segment: operations that run on the shards of a device one after the other, as one submission."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cuplace.staging.fusion import Chain
from cuplace.staging.local import Constant, LocalOp, Register, Slot, Source
from cuplace.staging.quiet import quieted
from cuplace.staging.script import OUT_BY_KEYWORD, Script, operand_of

Work = Callable[[list[Any], list[Any], tuple[Any, ...]], None]
"""``work(reads, writes, numbers)``: computes from arrays into arrays, with the numbers passed at the call."""

LARGE_BYTES = 1 << 17
"""From this size on, fresh memory costs more than computing: results go into memory that was used before."""

LOOKAHEAD = 32
"""How far operations are moved up to join others."""


class Temporary(NamedTuple):
    """Memory that a segment needs while it runs, besides that of its results."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Segment:
    """A straight line of local operations.

    Registers are numbered: first those of the inputs, in order, then the results of operations.

    Attributes:
        groups: the operations in the order in which they are done; those of a chain are one group.
        chains: the chains, by the number of their group.
        loud: does the work, with NumPy's warnings as the calling thread has them.
        temporaries: arrays that the work expects after those for the results.
    """

    def __init__(
        self, num_inputs: int, ops: Sequence[LocalOp], outputs: Sequence[int], xp: Any = np, borrows: bool = True
    ) -> None:
        """``borrows``: see `Chain`."""
        self.num_inputs = num_inputs
        self.ops = tuple(ops)
        self.outputs = tuple(outputs)
        self._xp = xp
        self._borrows = borrows
        self.groups = group(self.ops) if xp is np else [[op] for op in self.ops]
        self.chains: dict[int, Chain] = {}
        memory = _Memory(self.outputs, self.groups)
        self.loud = self._alone(memory) or self._script(memory)
        self.temporaries = tuple(memory.temporaries)

    @functools.cached_property
    def run(self) -> Work:
        """What computes all results from the inputs ``reads`` into ``writes``, without warnings."""
        return quieted(self.loud)

    def writing_once(self) -> Segment:
        """The same work with nothing but the results themselves in the memory of results."""
        return Segment(self.num_inputs, self.ops, self.outputs, self._xp, borrows=False) if self.chains else self

    def work(self) -> Work:
        """The quickest function that does what ``run`` does."""
        direct = _direct(self.ops[0], self._xp) if len(self.ops) == 1 and not is_chain(self.ops) else None
        return self.run if direct is None else direct

    # ------------------------------------------------------------------ compilation

    def _alone(self, memory: _Memory) -> Work | None:
        """The work of a segment of one operation, which needs no script."""
        if len(self.ops) > 1 or is_chain(self.groups[0]) or self.ops[0].is_loop:
            return None
        (op,) = self.ops
        if op.ufunc is not None:
            ufunc = op.function(self._xp)
            return lambda reads, writes, numbers: ufunc(*_fetch(op.args, reads, numbers), out=writes[0])
        if op.into is not None:
            into = functools.partial(op.into, self._xp)
            return lambda reads, writes, numbers: into(writes[0], *_fetch(op.args, reads, numbers), **op.params)
        compute = functools.partial(op.compute, self._xp, **op.params)

        def work(reads: list[Any], writes: list[Any], numbers: tuple[Any, ...]) -> None:
            writes[0][...] = compute(*_fetch(op.args, reads, numbers))

        return work

    def _script(self, memory: _Memory) -> Work:
        script = Script(self.num_inputs, self._xp)
        for position, ops in enumerate(self.groups):
            if is_chain(ops):
                chain = self.chains[position] = Chain(ops, memory.needed_after(ops, position), self._borrows)
                script.chain(
                    chain,
                    [memory.place(r, chain.shape, _dtype(ops, r), position) for r in chain.outputs],
                )
            else:
                (op,) = ops
                script.operation(op, [
                    memory.place(r, shape, dtype, position) if _wants_memory(op, memory, r, shape, dtype) else None
                    for r, shape, dtype in zip(op.outs, op.shapes, op.dtypes, strict=True)
                ])  # fmt: skip
            script.forget(memory.dead_after(position))
        return script.compiled()


def _wants_memory(op: LocalOp, memory: _Memory, register: int, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether a result is written to memory that is there already, rather than to fresh memory."""
    if register in memory.outputs:
        return True
    can_write = op.is_loop or op.ufunc is not None or op.into is not None
    return can_write and math.prod(shape) * dtype.itemsize >= LARGE_BYTES


class _Memory:
    """Which of the arrays given to a segment each result is written to, and when registers die."""

    def __init__(self, outputs: Sequence[int], groups: Sequence[Sequence[LocalOp]]) -> None:
        self.outputs = {register: i for i, register in enumerate(outputs)}
        self.temporaries: list[Temporary] = []
        self._owner: dict[int, int] = {}  # temporary -> register that has it now
        self._last_use: dict[int, int] = {}
        for position, ops in enumerate(groups):
            for op in ops:
                # A result that nothing reads dies where it is made.
                self._last_use.update(dict.fromkeys((*op.outs, *op.reads), position))
        self._extend_over_views(groups)
        self._dead: dict[int, list[int]] = {}
        for register, last in self._last_use.items():
            if register not in self.outputs:
                self._dead.setdefault(last, []).append(register)

    def _extend_over_views(self, groups: Sequence[Sequence[LocalOp]]) -> None:
        """What a view may share memory with lives at least as long as the view."""
        for ops in reversed(groups):
            if not may_give_view(ops):
                continue
            latest = self._last_use[ops[0].outs[0]]
            for register in ops[0].reads:
                self._last_use[register] = max(self._last_use[register], latest)

    def dead_after(self, position: int) -> Sequence[int]:
        """The registers that nothing reads after this position."""
        return self._dead.get(position, ())

    def needed_after(self, ops: Sequence[LocalOp], position: int) -> list[int]:
        """The results of a chain that something outside of it reads."""
        made = [r for op in ops for r in op.outs]
        return [r for r in made if r in self.outputs or self._last_use[r] > position]

    def place(self, register: int, shape: tuple[int, ...], dtype: np.dtype, position: int) -> int:
        """The number of the array, among those given for results, that a result is written to."""
        if register in self.outputs:
            return self.outputs[register]
        wanted = Temporary(shape, dtype)
        for i, temporary in enumerate(self.temporaries):
            if temporary == wanted and self._last_use[self._owner[i]] < position:
                self._owner[i] = register
                return len(self.outputs) + i
        self._owner[len(self.temporaries)] = register
        self.temporaries.append(wanted)
        return len(self.outputs) + len(self.temporaries) - 1


def may_give_view(ops: Sequence[LocalOp]) -> bool:
    """Whether the result of a group may share memory with what it reads, instead of having memory of its own."""
    return not (is_chain(ops) or ops[0].is_loop or ops[0].ufunc is not None or ops[0].into is not None)


def is_chain(ops: Sequence[LocalOp]) -> bool:
    """Whether a group is worth evaluating block by block: several operations, or one that cannot write in place."""
    if not fuses(ops[0]):
        return False
    large = math.prod(ops[0].shapes[0]) * max(op.dtypes[0].itemsize for op in ops) >= LARGE_BYTES
    return large and (len(ops) > 1 or ops[0].ufunc is None)


def fuses(op: LocalOp) -> bool:
    """Whether an operation may be evaluated block by block."""
    return op.elementwise and bool(op.shapes[0])


def group(ops: Iterable[LocalOp]) -> list[list[LocalOp]]:
    """Order the operations so that elementwise ones of one shape follow one another, and group these.

    Groups of small arrays are groups of one: they stay in the cache anyhow.
    """
    waiting = list(ops)
    unmade = {register for op in waiting for register in op.outs}
    groups: list[list[LocalOp]] = []
    while waiting:
        current = groups[-1] if groups and fuses(groups[-1][0]) else None
        chosen = _next_of_group(current, waiting, unmade) if current is not None else None
        if chosen is None:
            groups.append([])
            chosen = 0  # what comes first in the program has all that it reads
        op = waiting.pop(chosen)
        groups[-1].append(op)
        unmade.difference_update(op.outs)
    return [part for ops in groups for part in ([ops] if is_chain(ops) else [[op] for op in ops])]


def _next_of_group(current: Sequence[LocalOp], waiting: Sequence[LocalOp], unmade: set[int]) -> int | None:
    """The position of the next operation that can join a group; only the nearest ones are looked at."""
    for i, op in enumerate(waiting[:LOOKAHEAD]):
        if _joins(op, current) and unmade.isdisjoint(op.reads):
            return i
    return None


def _joins(op: LocalOp, group: Sequence[LocalOp]) -> bool:
    return fuses(op) and op.shapes[0] == group[0].shapes[0]


def _dtype(ops: Sequence[LocalOp], register: int) -> np.dtype:
    return next(op.dtypes[0] for op in ops if op.outs[0] == register)


def _fetch(sources: Sequence[Source], registers: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
    """The values of operands."""
    return [
        registers[source.index]
        if type(source) is Register
        else numbers[source.index]
        if type(source) is Slot
        else source.value
        for source in sources
    ]


def _direct(op: LocalOp, xp: Any) -> Work | None:
    """A function for a segment of one ufunc, without registers."""
    if op.ufunc is None or op.ufunc in OUT_BY_KEYWORD:
        return None
    names: dict[str, Any] = {}
    operands = []
    for arg in op.args:
        if type(arg) is Constant:
            operands.append(f"v{len(names)}")
            names[operands[-1]] = operand_of(arg, xp)
        else:
            operands.append(f"{'reads' if type(arg) is Register else 'numbers'}[{arg.index}]")
    return quieted(op.function(xp), ", ".join([*operands, "writes[0]"]), names)
