"""Chain: elementwise operations of one shape, evaluated together block by block.

A chain like ``sin(x) * y + 1`` evaluated operation by operation writes and reads each intermediate array through
the whole memory system. Here all of it is computed for one cache-sized block after the other: inputs are read
once, outputs are written once into the memory given for them, and intermediates live in a few blocks of scratch
that each thread keeps, or in the block of the output before its turn.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cuplace.staging.local import LocalOp, Register, Slot, Source
from cuplace.staging.script import function_of, out_keyword

BLOCK_BYTES = 1 << 18
"""Bytes of one operand of one block, which stays in a core's second-level cache until the next operation reads it.

Blocks that all fit there together would be quicker on one core; but each call of a block takes the interpreter's lock
again, for which threads that compute at the same time wait.
"""

KEPT_SCRATCH_BYTES = 1 << 20
"""Scratch blocks up to this size are kept by their thread; larger ones (of arrays with huge rows) are not."""


class Block(NamedTuple):
    """A place for one result: the part of an output array, or scratch."""

    kind: str  # "out" or "scratch"
    index: int  # the output's register, or the number of the scratch block
    dtype: np.dtype


class Step(NamedTuple):
    """One operation of a chain, on places of the frame."""

    ufunc: Callable[..., Any] | None
    compute: Callable[..., Any]
    params: Mapping[str, Any]
    args: tuple[int, ...]
    target: int
    keyword: str  # "out=" where the function takes its result by name only, else empty


class Chain:
    """Operations of one result shape that are evaluated together.

    The *frame* of a block is the arrays of its places: the external arrays' parts, the numbers, the outputs' parts,
    scratch. Steps name places in it.

    Attributes:
        externals: registers that are read and were made outside.
        numbers: the slots and constants that are read, each once.
        outputs: registers whose values are needed outside; memory for them is given to ``run``.
        steps: what is done, on places of the frame.
        shape: the shape of all results.
        is_one_block: whether all of it is one block: then ``written_out`` is used, else ``run``.
    """

    def __init__(self, ops: Sequence[LocalOp], outputs: Sequence[int], borrows: bool = True) -> None:
        """``borrows``: whether blocks of outputs hold other results before their turn, which saves scratch."""
        self.shape = ops[0].shapes[0]
        self.outputs = tuple(outputs)
        made = {op.outs[0] for op in ops}
        shapes = {
            arg.index: shape
            for op in ops
            for arg, shape in zip(op.args, op.arg_shapes, strict=True)
            if type(arg) is Register and arg.index not in made
        }
        self.externals = tuple(shapes)
        self._cuts = tuple(_Cut(shape, self.shape) for shape in shapes.values())
        self._itemsize = max(op.dtypes[0].itemsize for op in ops)
        self.is_one_block = math.prod(self.shape) * self._itemsize <= BLOCK_BYTES
        blocks = assign_blocks(ops, self.outputs, borrows)
        self._scratch = sorted({b for b in blocks.values() if b.kind == "scratch"}, key=lambda block: block.index)
        self.numbers = _numbers(ops)
        self.steps = self._make_steps(ops, blocks)

    @functools.cached_property
    def _evaluate(self) -> Callable[..., None]:
        """Does the steps on the frame of a block."""
        return _evaluation(self.steps, len(self.externals) + len(self.numbers) + len(self.outputs) + len(self._scratch))

    def written_out(
        self, externals: Sequence[str], numbers: Sequence[str], outputs: Sequence[str], name: Callable[[Any], str]
    ) -> list[str]:
        """The lines that do the steps on whole arrays, as part of a function. ``externals``, ``numbers`` and
        ``outputs`` are what that function calls them; ``name`` gives a name to a value."""
        scratch = [f"s{block.index}" for block in self._scratch]
        memory = [functools.partial(_scratch, block, self.shape) for block in self._scratch]
        lines = [f"{variable} = {name(get)}()" for variable, get in zip(scratch, memory, strict=True)]
        lines += _lines_of(self.steps, [*externals, *numbers, *outputs, *scratch], name)
        return [*lines, f"{name(_give_back)}({', '.join(scratch)})"] if scratch else lines

    def _make_steps(self, ops: Sequence[LocalOp], blocks: Mapping[int, Block]) -> list[Step]:
        place: dict[Any, int] = {register: i for i, register in enumerate(self.externals)}
        for number in self.numbers:
            place[_identity(number)] = len(place)
        for output in self.outputs:
            place["out", output] = len(place)
        for block in self._scratch:
            place["scratch", block.index] = len(place)
        for register, block in blocks.items():
            place[register] = place[block.kind, block.index]
        return [
            Step(
                op.function(np) if op.ufunc else None, op.compute, op.params,
                tuple([place[arg.index if type(arg) is Register else _identity(arg)] for arg in op.args]),
                place[op.outs[0]],
                out_keyword(op.ufunc),
            )
            for op in ops
        ]  # fmt: skip

    def run(self, externals: Sequence[Any], outputs: Sequence[Any], scalars: Sequence[Any]) -> None:
        """Fill ``outputs``, block by block, from the external arrays and the numbers passed at the call."""
        numbers = [scalars[n.index] if type(n) is Slot else n.value for n in self.numbers]
        if all(cut.flat(array) for cut, array in zip(self._cuts, externals, strict=True)):
            outputs = [output.reshape(-1) for output in outputs]
            parts = [cut.flattened(array) for cut, array in zip(self._cuts, externals, strict=True)]
        else:
            parts = [(array, cut.leading) for cut, array in zip(self._cuts, externals, strict=True)]
        length, row = outputs[0].shape[0], outputs[0].shape[1:]
        size = max(BLOCK_BYTES // (self._itemsize * math.prod(row) or 1), 1)
        scratch = [_scratch(block, (size, *row)) for block in self._scratch]
        for start in range(0, length, size):
            stop = min(start + size, length)
            self._evaluate(
                *[array[start:stop] if cut else array for array, cut in parts],
                *numbers,
                *[output[start:stop] for output in outputs],
                *(scratch if stop - start == size else [block[: stop - start] for block in scratch]),
            )
        _give_back(*scratch)

    def reads_before_writing(self, source: int, output: int) -> bool:
        """Whether the memory of the output may be that of the external register ``source``: of each block all is read
        before anything is written."""
        if not self._cuts[self.externals.index(source)].whole:
            return False
        written = len(self.externals) + len(self.numbers) + self.outputs.index(output)
        read = self.externals.index(source)
        first_write = next(i for i, step in enumerate(self.steps) if step.target == written)
        return not any(read in step.args for step in self.steps[first_write + 1 :])


class _Cut:
    """How an external array is cut into the parts of blocks."""

    __slots__ = ("leading", "number", "whole")

    def __init__(self, shape: tuple[int, ...], full: tuple[int, ...]) -> None:
        self.number = math.prod(shape) == 1  # broadcasts like a number
        self.whole = shape == full
        self.leading = bool(shape) and len(shape) == len(full) and shape[0] == full[0]

    def flat(self, array: Any) -> bool:
        """Whether blocks may be cut from the array as if it had one dimension."""
        return self.number or (self.whole and array.flags.c_contiguous)

    def flattened(self, array: Any) -> tuple[Any, bool]:
        return (array.reshape(-1), True) if self.whole else (array.reshape(()), False)


def _evaluation(steps: Sequence[Step], places: int) -> Callable[..., None]:
    """The function of all places of a frame that does the steps one after the other. A loop over them would cost a
    microsecond for each."""
    names: dict[str, Any] = {}

    def name(function: Any) -> str:
        names[f"f{len(names)}"] = function
        return f"f{len(names) - 1}"

    frame = [f"v{place}" for place in range(places)]
    return function_of(", ".join(frame), _lines_of(steps, frame, name), names, "chain")


def _lines_of(steps: Sequence[Step], frame: Sequence[str], name: Callable[[Any], str]) -> list[str]:
    """The lines that do steps. ``frame`` are the variables of the places; ``name`` gives a name to a function."""
    lines = []
    for ufunc, compute, params, args, target, keyword in steps:
        operands = ", ".join([frame[place] for place in args])
        if ufunc is not None:
            lines.append(f"{name(ufunc)}({operands}, {keyword}{frame[target]})")
        else:
            computed = f"{name(functools.partial(compute, np, **params))}({operands})"
            lines.append(f"{name(np.copyto)}({frame[target]}, {computed})")
    return lines


def _numbers(ops: Sequence[LocalOp]) -> list[Source]:
    """The slots and constants that the operations read, each once."""
    found = {_identity(arg): arg for op in ops for arg in op.args if type(arg) is not Register}
    return list(found.values())


def _identity(number: Source) -> tuple[str, int]:
    return ("slot", number.index) if type(number) is Slot else ("constant", id(number.value))


def assign_blocks(ops: Sequence[LocalOp], outputs: Sequence[int], borrows: bool = True) -> dict[int, Block]:
    """The block that each result is written to.

    Going backwards, a block is busy from the last use of its value back to the operation that makes it, and free
    before. Elementwise operations may write over what they read for the last time, so an operand may take over the
    block of the result, also that of an output where ``borrows``.
    """
    dtype_of = {op.outs[0]: op.dtypes[0] for op in ops}
    blocks = {register: Block("out", register, dtype_of[register]) for register in outputs}
    free: list[Block] = []
    count = 0
    for op in reversed(ops):
        if borrows or blocks[op.outs[0]].kind == "scratch":
            free.append(blocks[op.outs[0]])
        for register in op.reads:
            if register not in dtype_of or register in blocks:
                continue
            fits = [block for block in free if block.dtype == dtype_of[register]]
            if fits:
                blocks[register] = fits[-1]
                free.remove(fits[-1])
            else:
                blocks[register] = Block("scratch", count, dtype_of[register])
                count += 1
    return blocks


class _Pool(threading.local):
    """Memory for scratch blocks that nothing uses now, of each thread."""

    def __init__(self) -> None:
        self.unused: list[np.ndarray] = []


_pool = _Pool()


def _scratch(block: Block, shape: tuple[int, ...]) -> np.ndarray:
    """Memory for a block, in this shape. It is nobody else's until it is given back: a destructor or the handler of a
    signal may compute in the middle of a chain, in the same thread."""
    nbytes = math.prod(shape) * block.dtype.itemsize
    if nbytes > KEPT_SCRATCH_BYTES:
        return np.empty(shape, block.dtype)
    unused = _pool.unused
    memory = unused.pop() if unused else None
    if memory is None or memory.nbytes < nbytes:
        memory = np.empty(max(nbytes, BLOCK_BYTES), np.uint8)
    return memory[:nbytes].view(block.dtype).reshape(shape)


def _give_back(*scratch: np.ndarray) -> None:
    """The end of the use of scratch blocks."""
    _pool.unused += [array.base for array in scratch if array.base is not None]
