"""Donation: which arguments of a call give up their memory, and the checks before they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cuplace import errors
from cuplace.array.array import Array
from cuplace.runtime.caller import caller, warn_caller
from cuplace.staging.overwrite import Overwriting
from cuplace.staging.staged import Bound

if TYPE_CHECKING:
    from cuplace.staging.program import Program


def usable(program: Program, donated: Sequence[int], arrays: Sequence[bool]) -> list[int]:
    """The donated inputs whose memory some result can use: of the same shape and dtype, each result once.

    Args:
        program: what is called.
        donated: the inputs that the user donates.
        arrays: which inputs are arrays; others have no memory to give.

    Warns:
        UserWarning: JAX's, about those that no result can use; these stay alive.
    """
    free = Counter((atom.type.shape, atom.type.dtype) for atom in program.outputs)
    found, unusable = [], []
    for i in donated:
        if not arrays[i] or not program.used[i]:
            continue
        type = program.inputs[i].type
        if free[type.shape, type.dtype] > 0:
            free[type.shape, type.dtype] -= 1
            found.append(i)
        else:
            unusable.append(str(type))
    if unusable:
        warn_caller(
            f"Some donated buffers were not usable: {', '.join(unusable)}.\nThey stay alive and can be used further.",
            UserWarning,
        )
    return found


class DonatingBound(Bound):
    """An executable that consumes some of its operands, and writes results over them where that can be."""

    __slots__ = ("_donated", "_over")

    def __init__(self, bound: Bound, donated: Sequence[int]) -> None:
        super().__init__(bound.executable, bound.structure, (), bound.program)
        self._donated = tuple(donated)
        self._over: Overwriting | None = None
        self.direct = lambda *operands: self(operands)

    def __call__(self, operands: Sequence[Any]) -> Any:
        """Run and consume.

        Raises:
            DonationError: a RuntimeError; a donated array is used twice. Nothing has been launched or consumed then.
        """
        self._check(operands)
        if self._over is None:  # what it depends on is the same at all calls
            self._over = Overwriting(self.executable, {i: operands[i]._live() for i in self._donated})
            if self._over.possible:
                self.run = self._over
        results = super().__call__(operands)
        line = caller()
        for i in self._donated:
            operands[i]._consume("donated", line)
        return results

    def _check(self, operands: Sequence[Any]) -> None:
        memory = [operand._buffers if type(operand) is Array else None for operand in operands]
        captured = [constant._buffers for constant in self.program.constants if type(constant) is Array]
        for i in self._donated:
            others = [
                k for k, one in enumerate(memory) if k != i and self.program.used[k] and one and one is memory[i]
            ]
            if others or any(one is memory[i] for one in captured):
                place = f"flattened argument {others[0]}" if others else "captured by the function"
                raise errors.DonationError(
                    "INVALID_ARGUMENT: Attempt to use a buffer that was previously donated in the same call to "
                    f"Execute() ({place}, first use: {i}). Toy example for this bug: `f(donate(a), a)`."
                )
