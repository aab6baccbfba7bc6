"""Uploads: the caller's values, cut for the devices of a sharding. They are read entirely during the call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cuplace.placement.memory_space import DEVICE
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.topology import topology_of
from cuplace.transfer.execute import CACHED_PROGRAMS, kind_of, move
from cuplace.transfer.path import HOST_PLATFORM
from cuplace.transfer.plan import plan_upload
from cuplace.transfer.spread import least_bytes

if TYPE_CHECKING:
    from cuplace.placement.sharding import Sharding
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line
    from cuplace.runtime.device import Device
    from cuplace.runtime.host_memory import HostMemory
    from cuplace.runtime.scheduler import Scheduler
    from cuplace.transfer.execute import Host
    from cuplace.transfer.plan import TransferPlan


class UploadProgram(NamedTuple):
    """How a host array is cut for the devices of a sharding."""

    scheduler: Scheduler
    shard_shape: tuple[int, ...]
    devices: tuple[Device | HostMemory, ...]
    pieces: tuple[tuple[slice, ...] | None, ...]  # for each shard; None: the whole array
    shares_from: float  # bytes of a shard from which on devices that need the same may pass it on to one another

    def targets(self, dtype: np.dtype[Any]) -> list[Buffer]:
        """New memory for the shards, in mesh order."""
        return self.scheduler.allocate_batch(self.devices, self.shard_shape, dtype, TRANSFER)

    def shard_bytes(self, dtype: np.dtype[Any]) -> int:
        """Bytes of each shard."""
        return math.prod(self.shard_shape) * dtype.itemsize

    def spread(self, shape: tuple[int, ...], dtype: np.dtype[Any], sharding: Sharding) -> TransferPlan | None:
        """The plan by which devices pass parts of the values on, where that is better than each on its own."""
        if self.shares_from == math.inf or self.shard_bytes(dtype) < self.shares_from:
            return None
        plan = plan_upload(shape, dtype, sharding)
        return plan if plan.passes_on else None

    def pairs(self, host: Host, targets: Sequence[Buffer]) -> list[tuple[Buffer, Host]]:
        """Each target shard with its part of `host`."""
        sources = [host if slices is None else host[slices] for slices in self.pieces]
        return list(zip(targets, sources, strict=True))


def upload(
    host: Host, sharding: Sharding, line: Line | None, dtype: np.dtype[Any] | None = None
) -> list[Buffer]:  # fmt: skip
    """The shards of `host`, uploaded to the devices of `sharding`, and cast to ``dtype`` (default: as they are) by the
    copies, or before, where devices pass parts on. `host` is read entirely during the call.

    Raises:
        RankError, IndivisibleError: ValueErrors, where the sharding does not fit the shape.
    """
    program = upload_program(sharding, host.shape)
    dtype = host.dtype if dtype is None else dtype
    plan = program.spread(host.shape, dtype, sharding)
    if plan is not None:
        return move(host.astype(dtype, copy=False), plan, line)
    buffers = program.targets(dtype)
    program.scheduler.upload_batch(program.pairs(host, buffers), line)
    return buffers


@lru_cache(maxsize=CACHED_PROGRAMS)
def upload_program(sharding: Sharding, shape: tuple[int, ...]) -> UploadProgram:
    """How an array of this shape is cut for a sharding.

    Raises:
        RankError, IndivisibleError: ValueErrors, where the sharding does not fit the shape.
    """
    layout, kind = sharding.layout(shape), kind_of(sharding)
    first = sharding.flat_devices[0]
    devices = tuple(device.place(kind) for device in sharding.flat_devices)
    pieces = tuple(None if layout.shard_shape == shape else box.slices() for box in layout.boxes)
    may_share = len(layout.holders) < len(layout.boxes) and kind == DEVICE and first.platform != HOST_PLATFORM
    least = least_bytes(topology_of(first)) if may_share else math.inf
    return UploadProgram(devices[0].scheduler, layout.shard_shape, devices, pieces, least)
