"""What transfer guards are asked before data moves: which kind of transfer it is, and how errors describe it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.runtime.guard import BETWEEN_DEVICES, BOUNCE, SYNC, TO_DEVICE, TO_HOST, judge, watches

if TYPE_CHECKING:
    from cuplace.placement.sharding import Sharding
    from cuplace.transfer.plan import TransferPlan

_STAGED = "staged"
_DEVICE = "device"


def judge_upload(aval: object, target: Sharding | None, explicit: bool) -> None:
    """Before a value from the host goes to devices; ``aval`` is the type that it has. ``target`` is for the error.

    Raises:
        TransferGuardError: a RuntimeError.
    """
    judge(TO_DEVICE, explicit, lambda: f"aval={aval!r}, dst_sharding={target}")


def judge_move(aval: object, plan: TransferPlan, explicit: bool) -> None:
    """Before a plan is executed that moves an array from where it is.

    Raises:
        TransferGuardError: a RuntimeError.
    """
    kind = _kind_of(plan)
    if kind is not None:
        source = f"sharding={plan.source}, " if explicit else ""  # as JAX's texts do
        judge(kind, explicit, lambda: f"aval={aval!r}, {source}dst_sharding={plan.target}")
    judge_bounces(plan)


def judge_fetch(shape: tuple[int, ...], dtype: np.dtype[Any], place: Sharding, explicit: bool) -> None:
    """Before values are read on the host, which waits for them.

    Raises:
        TransferGuardError: a RuntimeError.
    """

    def what() -> str:
        sizes = ",".join(map(str, place.shard_shape(shape)))
        return f"shape=({sizes}), dtype={_xla_name(dtype)}, device={place.flat_devices[0]}"

    judge(TO_HOST, explicit, what)
    judge(SYNC, explicit, what)


def judge_bounces(plan: TransferPlan) -> None:
    """Before a plan is executed that is part of a computation: only that copies go through the host matters.

    Raises:
        TransferGuardError: a RuntimeError.
    """
    if not watches(BOUNCE) or not all(_on_devices(plan)):
        return
    pairs = [f"{a} -> {b}" for a, b in plan.bytes_between if a is not b and a.transfer_to(b).path == _STAGED]
    if pairs:
        place = f"sharding={plan.source}, dst_sharding={plan.target}"
        judge(BOUNCE, False, lambda: f"shape={plan.shape}, {place}, between {', '.join(pairs)}")


def _xla_name(dtype: np.dtype[Any]) -> str:
    """A dtype as JAX's guards print it: ``F32``, ``S32``, ``PRED``."""
    name = dtype.name
    if name == "bool":
        return "PRED"
    letters, bits = name.rstrip("0123456789"), name[len(name.rstrip("0123456789")) :]
    known = {"float": "F", "int": "S", "uint": "U", "complex": "C", "bfloat": "BF"}
    return known[letters] + bits if letters in known else name.upper()


def _kind_of(plan: TransferPlan) -> str | None:
    """The kind of transfer that a plan makes; None where nothing leaves its device."""
    if not plan.num_moves:
        return None
    here, there = _on_devices(plan)
    if here != there:
        return TO_HOST if here else TO_DEVICE
    return BETWEEN_DEVICES if any(source is not target for source, target in plan.bytes_between) else None


def _on_devices(plan: TransferPlan) -> tuple[bool, bool]:
    """Whether source and target are the devices' own memories."""
    source, target = (sharding.memory_kind in (None, _DEVICE) for sharding in (plan.source, plan.target))
    return source, target
