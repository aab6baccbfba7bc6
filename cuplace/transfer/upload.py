"""Uploads: the caller's values, cut for the devices of a sharding. They are read entirely during the call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cuplace.placement.memory_space import DEVICE
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.task import CopyTask, PartUpload
from cuplace.runtime.topology import topology_of
from cuplace.transfer.execute import CACHED_PROGRAMS, kind_of
from cuplace.transfer.path import HOST_PLATFORM
from cuplace.transfer.plan import plan_upload
from cuplace.transfer.spread import least_bytes

if TYPE_CHECKING:
    from cuplace.placement.sharding import Sharding
    from cuplace.runtime.backends.base import Stream
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line
    from cuplace.runtime.device import Device
    from cuplace.runtime.host_memory import HostMemory
    from cuplace.runtime.scheduler import Scheduler
    from cuplace.transfer.execute import Copy, Host
    from cuplace.transfer.plan import Slices, TransferPlan


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

    def pairs(self, host: Host, targets: Sequence[Buffer]) -> list[tuple[Buffer, Host]]:
        """Each target shard with its part of `host`."""
        sources = [host if slices is None else host[slices] for slices in self.pieces]
        return list(zip(targets, sources, strict=True))


class Part(NamedTuple):
    """What one upload takes of the host's array, and where in the target shard it goes."""

    taken: Any
    target_slices: Slices | None
    nbytes: int


class SpreadProgram(NamedTuple):
    """An upload of which devices pass parts on, with everything looked up that its execution needs."""

    plan: TransferPlan
    scheduler: Scheduler
    shard_shape: tuple[int, ...]
    devices: tuple[Device, ...]
    launches: tuple[tuple[Part | CopyTask, Stream, int, int], ...]  # what, stream, shard that is read, target shard
    after: tuple[int | None, ...]

    def targets(self, host: Host, dtype: np.dtype[Any]) -> list[Buffer]:
        """New memory for the shards, in mesh order."""
        return self.scheduler.allocate_batch(self.devices, self.shard_shape, dtype, TRANSFER)

    def copies(self, host: Host, targets: Sequence[Buffer]) -> list[Copy]:
        """What is to be enqueued between the host and these target shards."""
        return [
            (part, stream, targets[source], targets[target])
            if isinstance(part, CopyTask)
            else (PartUpload(host[part.taken], part.target_slices, part.nbytes), stream, None, targets[target])
            for part, stream, source, target in self.launches
        ]


def upload(host: Host, sharding: Sharding, line: Line | None) -> list[Buffer]:
    """The shards of `host`, uploaded to the devices of `sharding`. `host` is read entirely during the call.

    Raises:
        RankError, IndivisibleError: ValueErrors, where the sharding does not fit the shape.
    """
    program = find_program(host, sharding)
    if isinstance(program, SpreadProgram):
        return upload_as_planned(host, program.plan, line)
    buffers = program.targets(host.dtype)
    program.scheduler.upload_batch(program.pairs(host, buffers), line)
    return buffers


def upload_as_planned(host: Host, plan: TransferPlan, line: Line | None) -> list[Buffer]:
    """The target shards of `plan`, which is `plan_upload`'s, in mesh order."""
    program = spread_program(plan)
    buffers = program.targets(host, host.dtype)
    program.scheduler.submit_moves(program.copies(host, buffers), line, program.after)
    return buffers


def find_program(host: Host, sharding: Sharding) -> UploadProgram | SpreadProgram:
    """How `host` is uploaded.

    Raises:
        RankError, IndivisibleError: ValueErrors, where the sharding does not fit the shape.
    """
    program = upload_program(sharding, host.shape)
    if program.shares_from < math.inf and program.shard_bytes(host.dtype) >= program.shares_from:
        plan = plan_upload(host.shape, host.dtype, sharding)
        if plan.passes_on:
            return spread_program(plan)
    return program


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


@lru_cache(maxsize=CACHED_PROGRAMS)
def spread_program(plan: TransferPlan) -> SpreadProgram:
    """A plan of `plan_upload` with everything looked up."""
    tos = plan.target.flat_devices
    launches = tuple(
        (Part((*move.box.slices(), ...), move.target_slices, move.nbytes), tos[move.target].upload, 0, move.target)
        if move.after is None
        else (CopyTask(move.source_slices, move.target_slices, stream.path or move.path, move.nbytes), stream, *ends)
        for move in plan.moves
        for stream, *ends in ((tos[move.source].transfer_to(tos[move.target]), move.source, move.target),)
    )
    after = tuple(move.after for move in plan.moves)
    return SpreadProgram(plan, tos[0].scheduler, plan.target.layout(plan.shape).shard_shape, tos, launches, after)
