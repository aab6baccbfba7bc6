"""The error of arrays that are committed to different devices: who is where, since when, and what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cuplace import errors

if TYPE_CHECKING:
    from cuplace.array.type import ArrayType
    from cuplace.placement.sharding import Sharding
    from cuplace.runtime.caller import Line


class Claim(NamedTuple):
    """Something that says on which devices a computation runs.

    Attributes:
        sharding: where; only its devices and their order count.
        who: what errors call it, computed when one is raised: ``argument x of f with shape float32[8] and``.
        label: what help texts call it: ``x``; empty where it is no array.
        origin: the line on which the array was committed, if known.
        line: the traced line, for claims inside a traced function.
    """

    sharding: Sharding
    who: Callable[[], str]
    label: Callable[[], str]
    origin: Line | None = None
    line: Line | None = None

    def text(self) -> str:
        """The claim as JAX words it."""
        ids, platform = list(self.sharding.flat_ids), self.sharding.flat_devices[0].platform.upper()
        at = f" at {self.line.with_column()}" if self.line is not None else ""
        return f"{self.who()} with device ids {ids} on platform {platform}{at}"


def argument_claim(
    name: Callable[[], str], function: str, type: ArrayType, sharding: Sharding, origin: Line | None
) -> Claim:
    """The claim of a committed argument."""
    return Claim(sharding, lambda: f"argument {name()} of {function} with shape {type} and", name, origin)


def incompatible_devices(first: Claim, second: Claim) -> errors.IncompatibleDevicesError:
    """The error for two claims: JAX's text as the first line, then help."""
    lines = [f"Received incompatible devices for jitted computation. Got {first.text()} and {second.text()}"]
    lines += [
        f"{claim.label()} was committed to its devices at {claim.origin}."
        for claim in (first, second)
        if claim.origin is not None and claim.label()
    ]
    ours, theirs = first.sharding.flat_devices, second.sharding.flat_devices
    if set(ours) == set(theirs):
        lines.append("The devices are the same, in another order; the order is part of a placement.")
    lines.append(_advice(first, second))
    return errors.IncompatibleDevicesError("\n".join(lines))


def _advice(first: Claim, second: Claim) -> str:
    if second.line is not None:
        return (
            "Inside jit a new layout on the same devices is possible, a move to others is not: return the value, "
            f"and write device_put(result, {second.sharding!r}) after the call."
        )
    here, there = _written(first), _written(second)
    if there:
        sharding = f"{here}.sharding" if here else repr(first.sharding)
        return f"Move one of them first: {there} = device_put({there}, {sharding})"
    if here:
        return f"Move it first: {here} = device_put({here}, {second.sharding!r})"
    return "Use one mesh for all of them."


def _written(claim: Claim) -> str:
    """How to write the array that makes a claim, where it has a name."""
    label = claim.label()
    return "" if " " in label else label
