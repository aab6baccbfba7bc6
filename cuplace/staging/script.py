"""Script: the straight-line Python function that a segment runs.

A segment of small operations is dominated by what is done around them. A loop over a list of instructions costs
about a microsecond for each; the same as a compiled function costs a tenth of that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.staging.local import Constant, LocalOp, Register, Slot, Source

if TYPE_CHECKING:
    from cuplace.staging.fusion import Chain


OUT_BY_KEYWORD = frozenset({"maximum", "minimum"})
"""Functions to which NumPy deprecates passing ``out`` by position, which is quicker."""


def out_keyword(ufunc: str | None) -> str:
    """What stands before the argument for the result of a ufunc."""
    return "out=" if ufunc in OUT_BY_KEYWORD else ""


class Script:
    """A function ``work(reads, writes, numbers)`` under construction. Registers are its local variables."""

    def __init__(self, num_inputs: int, xp: Any) -> None:
        self._xp = xp
        self._names: dict[str, Any] = {}
        names = "".join(f"r{i}, " for i in range(num_inputs))
        self._lines = [f"{names}= reads"] if num_inputs else []
        self._assigned = set(range(num_inputs))  # values inside a chain never become variables

    def operation(self, op: LocalOp, places: Sequence[int | None]) -> None:
        """One operation; results that have a place are written to the array of that number."""
        self._assigned.update(op.outs)
        if op.is_loop:
            self._loop(op, places)
            return
        (out,), (place,) = op.outs, places
        args = ", ".join(map(self._value if op.ufunc is None else self._operand, op.args))
        if op.ufunc is not None:
            function = self._name(op.function(self._xp))
            if place is None:
                self._lines.append(f"r{out} = {function}({args})")
            else:
                self._lines += [f"r{out} = writes[{place}]", f"{function}({args}, {out_keyword(op.ufunc)}r{out})"]
            return
        if op.into is not None and place is not None:
            function = self._name(functools.partial(op.into, self._xp, **op.params))
            self._lines += [f"r{out} = writes[{place}]", f"{function}(r{out}, {args})"]
            return
        function = self._name(functools.partial(op.compute, self._xp, **op.params))
        self._lines.append(f"r{out} = {function}({args})")
        if place is not None:
            self._lines += [f"writes[{place}][...] = r{out}", f"r{out} = writes[{place}]"]

    def _loop(self, op: LocalOp, places: Sequence[int | None]) -> None:
        args = ", ".join(map(self._value, op.args))
        function = self._name(functools.partial(op.compute, self._xp, **op.params))
        targets = ", ".join("None" if place is None else f"writes[{place}]" for place in places)
        results = "".join(f"r{out}, " for out in op.outs)
        self._lines.append(f"{results}= {function}({args}, targets=[{targets}])")

    def chain(self, chain: Chain, places: Sequence[int]) -> None:
        """A chain of elementwise operations, evaluated block by block; where it is one block, in lines of its own."""
        self._assigned.update(chain.outputs)
        results = [f"r{out} = writes[{place}]" for out, place in zip(chain.outputs, places, strict=True)]
        externals = [f"r{register}" for register in chain.externals]
        if chain.is_one_block:
            # As arrays only where ufuncs alone read them.
            number = self._operand if all(step.ufunc is not None for step in chain.steps) else self._value
            outputs = [f"r{out}" for out in chain.outputs]
            self._lines += results
            self._lines += chain.written_out(externals, list(map(number, chain.numbers)), outputs, self._name)
            return
        targets = ", ".join(f"writes[{place}]" for place in places)
        self._lines.append(f"{self._name(chain.run)}([{', '.join(externals)}], [{targets}], numbers)")
        self._lines += results

    def forget(self, registers: Sequence[int]) -> None:
        """Let go of values that nothing needs any more."""
        named = [register for register in registers if register in self._assigned]
        if named:
            self._lines.append("del " + ", ".join(f"r{register}" for register in named))

    def compiled(self) -> Callable[[list[Any], list[Any], tuple[Any, ...]], None]:
        """The function."""
        return function_of("reads, writes, numbers", self._lines, self._names, "segment")

    def _name(self, value: Any) -> str:
        name = f"v{len(self._names)}"
        self._names[name] = value
        return name

    def _value(self, source: Source) -> str:
        if type(source) is Register:
            return f"r{source.index}"
        if type(source) is Slot:
            return f"numbers[{source.index}]"
        assert type(source) is Constant
        return self._name(source.value)

    def _operand(self, source: Source) -> str:
        """The same for an operand of a ufunc."""
        return self._name(operand_of(source, self._xp)) if type(source) is Constant else self._value(source)


def operand_of(constant: Constant, xp: Any) -> Any:
    """A constant as a ufunc takes it quickest: NumPy's take an array in half the time that a number needs."""
    value = constant.value
    return np.asarray(value) if xp is np and isinstance(value, np.generic) else value


def function_of(arguments: str, lines: Sequence[str], names: dict[str, Any], title: str) -> Callable[..., None]:
    """The function of these arguments that does what the lines say, which find ``names`` besides. Tracebacks show
    ``title``."""
    body = "\n    ".join(lines or ["pass"])
    exec(_code(f"def work({arguments}):\n    {body}\n", f"<cuplace {title}>"), names)
    work: Callable[..., None] = names["work"]
    return work


@functools.lru_cache(maxsize=1024)
def _code(source: str, file: str) -> CodeType:
    """Many functions have the same lines, and differ in what names mean."""
    return compile(source, file, "exec")
