"""Doing what plans say: moves between devices, uploads from the host, gathers to the host. Only gathers wait."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cuplace.placement.memory_space import DEVICE
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.task import CopyTask

if TYPE_CHECKING:
    from cuplace.placement.sharding import Sharding
    from cuplace.runtime.backends.base import Stream
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line
    from cuplace.runtime.device import Device
    from cuplace.runtime.host_memory import HostMemory
    from cuplace.runtime.scheduler import Scheduler
    from cuplace.transfer.plan import TransferPlan

Host: TypeAlias = npt.NDArray[Any]

CACHED_PROGRAMS = 2048


class _MoveProgram(NamedTuple):
    """A plan with everything looked up that its execution needs."""

    scheduler: Scheduler
    shard_shape: tuple[int, ...]
    written: tuple[int, ...]  # target shards that are written
    devices: tuple[Device | HostMemory, ...]  # and where
    aliases: tuple[tuple[int, int], ...]
    launches: tuple[tuple[CopyTask, Stream, int, int], ...]  # task, stream, source shard, target shard


class _UploadProgram(NamedTuple):
    scheduler: Scheduler
    shard_shape: tuple[int, ...]
    devices: tuple[Device | HostMemory, ...]
    pieces: tuple[tuple[slice, ...] | None, ...]  # for each shard; None: the whole array


def move(buffers: Sequence[Buffer], plan: TransferPlan, line: Line | None) -> list[Buffer]:
    """The target shards of `plan`, in mesh order; their copies are enqueued, and nothing is waited for.

    Args:
        buffers: the source shards, in mesh order.
        plan: from `plan_move`.
        line: the user's line, for the submission records.
    """
    program = _move_program(plan)
    scheduler = program.scheduler
    targets: list[Any] = scheduler.allocate_batch(program.devices, program.shard_shape, plan.dtype, TRANSFER)
    if program.aliases:
        new, targets = targets, [None] * (len(program.written) + len(program.aliases))
        for source, target in program.aliases:
            targets[target] = buffers[source]
        for target, buffer in zip(program.written, new, strict=True):
            targets[target] = buffer
    if program.launches:
        scheduler.submit_moves([(t, stream, buffers[i], targets[j]) for t, stream, i, j in program.launches], line)
    return targets


def upload(host: Host, sharding: Sharding, line: Line | None) -> list[Buffer]:
    """The shards of `host`, uploaded to the devices of `sharding`. `host` is read entirely during the call.

    Raises:
        RankError, IndivisibleError: ValueErrors, where the sharding does not fit the shape.
    """
    scheduler, shard_shape, devices, pieces = _upload_program(sharding, host.shape)
    buffers = scheduler.allocate_batch(devices, shard_shape, host.dtype, TRANSFER)
    sources = [host if slices is None else host[slices] for slices in pieces]
    scheduler.upload_batch(list(zip(buffers, sources, strict=True)), line)
    return buffers


def gather_to_host(buffers: Sequence[Buffer], sharding: Sharding, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Host:
    """The whole array as a read-only NumPy array; waits for its shards.

    An array that some device holds whole is a view of that device's memory where the host can read it in place.
    """
    holders = sharding.layout(shape).holders
    scheduler = buffers[0].device.scheduler
    if len(holders) == 1:
        return scheduler.download(buffers[0])
    scheduler.host_wait([buffers[shards[0]] for shards in holders.values()])
    host = np.empty(shape, dtype)
    for box, shards in holders.items():
        host[box.slices()] = scheduler.download(buffers[shards[0]])
    host.flags.writeable = False
    return host


def forget_paths() -> None:
    """Find out anew how copies travel, the next time that a plan is executed."""
    _move_program.cache_clear()


@lru_cache(maxsize=CACHED_PROGRAMS)
def _move_program(plan: TransferPlan) -> _MoveProgram:
    froms, tos = plan.source.flat_devices, plan.target.flat_devices
    kinds = _kind(plan.source), _kind(plan.target)
    aliased = {target for _, target in plan.aliases}
    launches = tuple(
        (
            CopyTask(move.source_slices, move.target_slices, stream.path or move.path, move.nbytes),
            stream,
            move.source,
            move.target,
        )
        for move in plan.moves
        for stream in (_stream(froms[move.source], tos[move.target], kinds),)
    )
    written = tuple(shard for shard in range(len(tos)) if shard not in aliased)
    return _MoveProgram(
        tos[0].scheduler, plan.target.layout(plan.shape).shard_shape, written,
        tuple(tos[shard].place(kinds[1]) for shard in written), plan.aliases, launches,
    )  # fmt: skip


def _stream(source: Device, target: Device, kinds: tuple[str, str]) -> Stream:
    """The stream that carries a copy between memories of these kinds: what is on a device decides."""
    if kinds == (DEVICE, DEVICE):
        return source.transfer_to(target)
    if kinds[0] == DEVICE:
        return source.download
    return target.upload if kinds[1] == DEVICE else target.host


def _kind(sharding: Sharding) -> str:
    return sharding.memory_kind or DEVICE


@lru_cache(maxsize=CACHED_PROGRAMS)
def _upload_program(sharding: Sharding, shape: tuple[int, ...]) -> _UploadProgram:
    layout = sharding.layout(shape)
    devices = tuple(device.place(_kind(sharding)) for device in sharding.flat_devices)
    pieces = tuple(None if layout.shard_shape == shape else box.slices() for box in layout.boxes)
    return _UploadProgram(devices[0].scheduler, layout.shard_shape, devices, pieces)
