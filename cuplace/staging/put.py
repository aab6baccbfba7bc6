"""PUT: a move that the user wrote inside a traced function. Only the layout may change, never the devices."""

from __future__ import annotations

from typing import Any

from cuplace.array import put as array_put
from cuplace.array import reshard as array_reshard
from cuplace.array.key import type_under
from cuplace.array.route import check_fit
from cuplace.placement.memory_space import MemorySpace
from cuplace.placement.sharding import NamedSharding, Sharding, SingleDeviceSharding
from cuplace.runtime.device import Device
from cuplace.staging.program import StagedOp
from cuplace.staging.trace import current, lift
from cuplace.staging.tracer import Tracer

PUT = StagedOp("device_put")
"""Params: ``sharding`` (where to; None: where it is), ``kind`` (the kind of memory), ``who`` (what errors call it) and
``commits`` (whether results are committed, also where no argument is: `device_put` does so, `reshard` does not)."""


def staged_put(value: Any, target: Sharding | Device | MemorySpace | None, donate: Any = False) -> Any:
    """`device_put` of a traced value: the value laid out as ``target`` says.

    Whether the target's devices are those of the computation is checked when the program is placed.

    Raises:
        RankError, IndivisibleError: ValueErrors, where the target does not fit the shape.
        UnexpectedTracerError: a TypeError, for a value whose trace is over.
    """
    return constrain(value, target, "device_put inside jit")


def staged_reshard(value: Any, sharding: NamedSharding) -> Any:
    """`reshard` of a traced value; its result has a spec of full rank."""
    of = lift(value).type
    target = NamedSharding(sharding.mesh, sharding.spec.padded(of.ndim), of.memory_kind)
    return constrain(value, target, "reshard inside jit", commits=False)


def constrain(value: Any, target: Sharding | Device | MemorySpace | None, who: str, commits: bool = True) -> Any:
    """The value laid out as ``target`` says; ``who`` is what errors call the demand."""
    tracer = lift(value)
    if target is None:
        return tracer
    if isinstance(target, MemorySpace):
        sharding, out = None, tracer.type.update(memory_kind=target.kind)
    else:
        sharding = SingleDeviceSharding(target) if isinstance(target, Device) else target
        check_fit(sharding, tracer.shape)
        out = type_under(tracer.shape, tracer.dtype, tracer.weak_type, sharding)
    params = {"sharding": sharding, "kind": out.memory_kind, "who": who, "commits": commits}
    trace = current.trace
    assert trace is not None
    result: Tracer = trace.emit(PUT, (tracer.atom,), (out,), params)[0]
    return result


array_put.staged_put = staged_put
array_reshard.staged_reshard = staged_reshard
