"""What transfer guards are asked before a call of an eager or jitted function: which operands have to be moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cuplace.array.type import typeof
from cuplace.staging.steps import moves_of
from cuplace.transfer.guarded import judge_bounces, judge_move, judge_upload

if TYPE_CHECKING:
    from cuplace.staging.executable import Executable
    from cuplace.transfer.plan import TransferPlan


def judge_call(executable: Executable, operands: Sequence[Any]) -> None:
    """Ask whether a call on these operands may do what it is about to do.

    Raises:
        TransferGuardError: a RuntimeError. Nothing has been done then.
    """
    where = executable.results[0][1].sharding if executable.results else None
    for position, _ in executable.numbers:
        judge_upload(typeof(operands[position]), where, False)
    for position, _, plan, sharding in executable.entries:
        if plan is not None:
            judge_move(operands[position].aval, plan, False)
        elif sharding is not None:
            judge_upload(typeof(operands[position]), sharding, False)
    for plan in moves_of(executable.steps):
        judge_bounces(plan)


def moves_nothing(executable: Executable) -> bool:
    """Whether everything that calls need is where it is needed, so that guards have nothing to say to any call."""
    uploads = any(entry.sharding is not None for entry in executable.entries)
    return not (executable.numbers or uploads or any(_plans(executable)))


def _plans(executable: Executable) -> Iterator[TransferPlan]:
    yield from (entry.plan for entry in executable.entries if entry.plan is not None)
    yield from moves_of(executable.steps)
