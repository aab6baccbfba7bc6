"""Program: the typed list of operations that tracing a function makes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuplace.array.type import ArrayType
    from cuplace.runtime.caller import Line


class Var:
    """One value of a program: an input, a captured constant or the result of an equation."""

    __slots__ = ("type",)

    def __init__(self, type: ArrayType) -> None:
        self.type = type

    def __repr__(self) -> str:
        return f"Var({self.type})"


class Literal:
    """A number known while tracing: a Python or NumPy scalar, and its type."""

    __slots__ = ("value", "type")

    def __init__(self, value: Any, type: ArrayType) -> None:
        self.value = value
        self.type = type

    def __repr__(self) -> str:
        return f"Literal({self.value!r}, {self.type})"


Atom = Var | Literal


class StagedOp:
    """An operation that staging itself carries out, and no record of `cuplace.ops` describes."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"StagedOp({self.name})"


class Equation:
    """``outs = op(*ins, **params)``, as written on the user's ``line``.

    ``op`` is a record of `cuplace.ops`, or one of the two that only staging has: a move (`staging.put.PUT`) and a
    loop (`staging.loop.SCAN`).
    """

    __slots__ = ("ins", "line", "op", "outs", "params")

    def __init__(
        self, op: Any, ins: tuple[Atom, ...], outs: tuple[Var, ...], params: Mapping[str, Any], line: Line | None
    ) -> None:
        self.op = op
        self.ins = ins
        self.outs = outs
        self.params = params
        self.line = line

    def __repr__(self) -> str:
        return f"{', '.join(str(o.type) for o in self.outs)} = {self.op.name}({', '.join(map(repr, self.ins))})"


class Program:
    """What a traced function computes.

    Attributes:
        name: the function's name, as errors print it.
        inputs: one variable an argument leaf.
        constants: the values that the function captured (Arrays, NumPy arrays or, in the body of a loop,
            variables of the program around it), each with its variable in ``captured``.
        equations: in the order in which they were traced, without those that no output needs.
        outputs: one variable or literal an output leaf.
        used: which inputs anything depends on. Placement ignores the others.
    """

    __slots__ = ("name", "inputs", "captured", "constants", "equations", "outputs", "used")

    def __init__(
        self, name: str, inputs: tuple[Var, ...], captured: Mapping[Var, Any], equations: Iterable[Equation],
        outputs: tuple[Atom, ...],
    ) -> None:  # fmt: skip
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self.equations, needed = _live(equations, outputs)
        self.captured = tuple(var for var in captured if var in needed)
        self.constants = tuple(captured[var] for var in self.captured)
        self.used = tuple(var in needed for var in inputs)

    def walk(self) -> Iterator[Equation]:
        """All equations, those in the bodies of loops included."""
        for equation in self.equations:
            yield equation
            for value in equation.params.values():
                if isinstance(value, Program):
                    yield from value.walk()

    def __repr__(self) -> str:
        lines = [f"{self.name}({', '.join(str(v.type) for v in self.inputs)}):"]
        lines += [f"  {equation}" for equation in self.equations]
        return "\n".join(lines)


def _live(equations: Iterable[Equation], outputs: tuple[Atom, ...]) -> tuple[tuple[Equation, ...], set[Atom]]:
    """The equations that some output depends on, and every variable that is needed on the way."""
    needed: set[Atom] = set(outputs)
    kept = []
    for equation in reversed(list(equations)):
        if needed.isdisjoint(equation.outs):
            continue
        needed.update(equation.ins)
        kept.append(equation)
    return tuple(reversed(kept)), needed
