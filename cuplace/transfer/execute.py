"""Doing what plans say: moves between devices, and gathers to the host. Only gathers wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cuplace.placement.memory_space import DEVICE
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.staging import Staging
from cuplace.runtime.task import CopyTask, PartUpload
from cuplace.runtime.topology import CALLER
from cuplace.transfer.plan import TransferPlan, plan_move
from cuplace.transfer.rounds import End, Rounds

if TYPE_CHECKING:
    from cuplace.placement.sharding import Sharding
    from cuplace.runtime.backends.base import Stream
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line
    from cuplace.runtime.device import Device
    from cuplace.runtime.host_memory import HostMemory
    from cuplace.runtime.scheduler import Scheduler
    from cuplace.runtime.scheduler.at_once import Launch
    from cuplace.transfer.plan import Slices

Host: TypeAlias = npt.NDArray[Any]

CACHED_PROGRAMS = 2048
BYTE = np.dtype(np.uint8)


class MoveProgram(NamedTuple):
    """A plan with everything looked up that its execution needs."""

    scheduler: Scheduler
    shard_shape: tuple[int, ...]
    written: tuple[int, ...]  # target shards that are written
    devices: tuple[Device | HostMemory, ...]  # and where
    aliases: tuple[tuple[int, int], ...]
    launches: tuple[tuple[CopyTask | Part, Stream, int, int], ...]  # task, stream, shard that is read, target shard
    after: tuple[int | None, ...] | None  # for each launch the one whose target it reads; None where all read sources
    staging: Staged | None  # None where nothing is packed

    def targets(self, held: Sequence[Buffer] | Host, dtype: np.dtype[Any]) -> list[Buffer]:
        """The target shards, in mesh order: new memory, and the source shards that serve as they are."""
        new = self.scheduler.allocate_batch(self.devices, self.shard_shape, dtype, TRANSFER)
        if not self.aliases:
            return new
        targets: list[Any] = [None] * (len(self.written) + len(self.aliases))
        for source, target in self.aliases:
            targets[target] = held[source]
        for target, buffer in zip(self.written, new, strict=True):
            targets[target] = buffer
        return targets

    def copies(self, held: Sequence[Buffer] | Host, targets: Sequence[Buffer]) -> list[Launch]:
        """What is to be enqueued between these source shards, or these values of the host's, and target shards."""
        launches: Any = self.launches
        if self.after is None:
            return [(task, stream, held[i], targets[j]) for task, stream, i, j in launches]
        return [
            (task.of(held), stream, None, targets[j])
            if type(task) is Part
            else (task, stream, (held if fed is None else targets)[i], targets[j])
            for (task, stream, i, j), fed in zip(launches, self.after, strict=True)
        ]


class Part(NamedTuple):
    """What one upload takes of the values of the host's, and where in the target shard it goes."""

    taken: Any
    target_slices: Slices | None
    nbytes: int

    def of(self, host: Any) -> PartUpload:
        """The task that brings it."""
        return PartUpload(host[self.taken], self.target_slices, self.nbytes)


class Staged(NamedTuple):
    """Staging memory of moves: the slots, by device and size, and for each move the numbers of its slots."""

    slots: tuple[tuple[Device, int], ...]
    of_launches: tuple[tuple[int, ...], ...]

    def allocate(self) -> list[tuple[Buffer, ...]]:
        """New memory; for each launch what it packs into."""
        memory = [device.scheduler.allocate(device, (nbytes,), BYTE, TRANSFER) for device, nbytes in self.slots]
        return [tuple([memory[slot] for slot in slots]) for slots in self.of_launches]


def move(held: Sequence[Buffer] | Host, plan: TransferPlan, line: Line | None) -> list[Buffer]:
    """The target shards of `plan`, in mesh order; their copies are enqueued, and nothing is waited for.

    Args:
        held: the source shards, in mesh order; for a plan of `plan_upload` the values, which are read entirely during
            the call.
        plan: from `plan_move` or `plan_upload`.
        line: the user's line, for the submission records.
    """
    program = move_program(plan)
    targets = program.targets(held, plan.dtype)
    if program.launches:
        staging = None if program.staging is None else program.staging.allocate()
        program.scheduler.submit_moves(program.copies(held, targets), line, program.after, staging)
    return targets


def gather_to_host(
    buffers: Sequence[Buffer], sharding: Sharding, shape: tuple[int, ...], dtype: np.dtype[Any],
    fetched: Sequence[Buffer | None] | None = None,
) -> Host:  # fmt: skip
    """The whole array as a read-only NumPy array; waits for its shards.

    An array that some device holds whole is a view of that device's memory where the host can read it in place.

    Args:
        fetched: what `begin_fetches` gave for the first holder of each distinct box.
    """
    holders = sharding.layout(shape).holders
    scheduler = buffers[0].device.scheduler
    sources = [buffers[shards[0]] for shards in holders.values()]
    if fetched is not None:
        sources = [there or here for here, there in zip(sources, fetched, strict=True)]
    if len(holders) == 1:
        return scheduler.download(sources[0])
    host = np.empty(shape, dtype)
    for box, source in zip(holders, sources, strict=True):
        host[box.slices()] = scheduler.download(source)
    host.flags.writeable = False
    return host


def forget_paths() -> None:
    """Find out anew how copies travel, the next time that a plan is made or executed."""
    plan_move.cache_clear()
    move_program.cache_clear()
    staged_together.cache_clear()


@lru_cache(maxsize=CACHED_PROGRAMS)
def move_program(plan: TransferPlan) -> MoveProgram:
    """The plan with everything looked up."""
    tos = plan.target.flat_devices
    kinds = kind_of(plan.source), kind_of(plan.target)
    aliased = {target for _, target in plan.aliases}
    packs = packs_of(plan)
    uploads = plan.source.flat_devices == (CALLER,)
    launches: list[tuple[CopyTask | Part, Stream, int, int]] = []
    for number, one in enumerate(plan.moves):
        stream = _stream(plan.device_of(one), tos[one.target], kinds if one.after is None else (kinds[1], kinds[1]))
        task: CopyTask | Part
        if uploads and one.after is None:
            task = Part((*one.box.slices(), ...), one.target_slices, one.nbytes)
        else:
            path = stream.path or one.path
            task = CopyTask(one.source_slices, one.target_slices, path, one.nbytes, packs.get(number))
        launches.append((task, stream, one.source, one.target))
    written = tuple(shard for shard in range(len(tos)) if shard not in aliased)
    return MoveProgram(
        tos[0].scheduler, plan.target.layout(plan.shape).shard_shape, written,
        tuple(tos[shard].place(kinds[1]) for shard in written), plan.aliases, tuple(launches),
        tuple(one.after for one in plan.moves) if uploads or plan.passes_on else None,
        staged(plan.staging, len(launches)),
    )  # fmt: skip


def packs_of(plan: TransferPlan) -> dict[int, Staging]:
    """For each move that is packed, at which ends."""
    sent, received = plan.packed
    return {row: Staging(bool(sent[row]), bool(received[row])) for row in plan.packed.rows}


def staged(rounds: Rounds, count: int) -> Staged | None:
    """The staging memory of so many moves; None where there is none."""
    if not rounds.slots:
        return None
    return Staged(tuple(rounds.slots), tuple(rounds.of_moves.get(number, ()) for number in range(count)))


@lru_cache(maxsize=CACHED_PROGRAMS)
def staged_together(
    plans: tuple[TransferPlan, ...], new: tuple[tuple[tuple[Any, ...], int], ...], max_bytes: int | None
) -> Staged | None:
    """The staging memory of plans that are executed one after the other, which share it.

    Args:
        plans: the plans.
        new: other new memory: devices, and how many bytes each of them gets.
        max_bytes: bounds all new memory of each device.

    Raises:
        MaxBytesError: a ValueError, where it is too little.
    """
    total: Counter[Any] = Counter()
    for devices, nbytes in new:
        total.update(dict.fromkeys(devices, nbytes))
    ends: list[End] = []
    count = 0
    for plan in plans:
        total.update(plan.new_bytes)
        ends += [end._replace(move=end.move + count) for end in plan.packed_ends]
        count += plan.num_moves
    return staged(Rounds(ends, total, max_bytes), count)


def _stream(source: Device, target: Device, kinds: tuple[str, str]) -> Stream:
    """The stream that carries a copy between memories of these kinds: what is on a device decides."""
    if kinds == (DEVICE, DEVICE):
        return source.transfer_to(target)
    if kinds[0] == DEVICE:
        return source.download
    return target.upload if kinds[1] == DEVICE else target.host


def kind_of(sharding: Sharding) -> str:
    """The memory kind of its shards."""
    return sharding.memory_kind or DEVICE
