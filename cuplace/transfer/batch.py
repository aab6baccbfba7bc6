"""Batch: moves and uploads of many arrays, done in one turn of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cuplace.transfer.execute import move_program, staged_together
from cuplace.transfer.upload import upload_program

if TYPE_CHECKING:
    from cuplace.placement.sharding import Sharding
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line
    from cuplace.runtime.scheduler import Scheduler
    from cuplace.runtime.scheduler.at_once import Launch
    from cuplace.transfer.execute import Host, MoveProgram, Staged
    from cuplace.transfer.plan import TransferPlan
    from cuplace.transfer.upload import UploadProgram


class Batch:
    """What is to be done for many arrays. Nothing happens before `run`.

    All memory is there before anything is enqueued, all uploads are enqueued together, and so are all moves, those
    that pass uploads on included. Work of other threads comes before or after the batch, not in between.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        """``max_bytes`` bounds the new memory of each device: target shards, and staging memory that moves share."""
        self._max_bytes = max_bytes
        self._moves: list[tuple[int, MoveProgram, Sequence[Buffer] | Host, TransferPlan]] = []
        self._uploads: list[tuple[int, UploadProgram, Host]] = []
        self._count = 0

    def move(self, held: Sequence[Buffer] | Host, plan: TransferPlan) -> int:
        """Move the source shards, or the host's values, as `plan` says; the number of the result."""
        self._moves.append((self._next(), move_program(plan), held, plan))
        return self._count - 1

    def upload(self, host: Host, sharding: Sharding) -> int:
        """Upload the shards of `host`, which is read entirely in `run`; the number of the result.

        Raises:
            RankError, IndivisibleError: ValueErrors, where the sharding does not fit the shape.
        """
        program = upload_program(sharding, host.shape)
        plan = program.spread(host.shape, host.dtype, sharding)
        if plan is not None:
            return self.move(host, plan)
        self._uploads.append((self._next(), program, host))
        return self._count - 1

    def run(self, line: Line | None) -> list[list[Buffer]]:
        """Do it; the target shards of each result, in mesh order. Nothing is waited for.

        Args:
            line: the user's line, for the submission records.

        Raises:
            MaxBytesError: a ValueError, where the bound is too little. Nothing has been enqueued then.
            OutOfMemoryError: a device has no memory for its part. Nothing has been enqueued then.
        """
        staged = self._staged()
        schedulers = {move.scheduler for _, move, _, _ in self._moves} | {cut.scheduler for _, cut, _ in self._uploads}
        results: list[list[Buffer]] = [[]] * self._count
        with ExitStack() as locks:
            for scheduler in sorted(schedulers, key=id):  # in the same order in all threads
                locks.enter_context(scheduler.lock)
            for number, cut, host in self._uploads:
                results[number] = cut.targets(host.dtype)
            for number, program, held, plan in self._moves:
                results[number] = program.targets(held, plan.dtype)
            staging = None if staged is None else staged.allocate()
            for scheduler in schedulers:
                self._enqueue(scheduler, results, staging, line)
        return results

    def _staged(self) -> Staged | None:
        new = tuple(
            (tuple(device for device in cut.devices if device is device.memory.device), cut.shard_bytes(host.dtype))
            for _, cut, host in self._uploads
        )
        return staged_together(tuple([plan for _, _, _, plan in self._moves]), new, self._max_bytes)

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _enqueue(
        self, scheduler: Scheduler, results: Sequence[Sequence[Buffer]], staging: Sequence[tuple[Buffer, ...]] | None,
        line: Line | None,
    ) -> None:  # fmt: skip
        pairs = [
            pair
            for number, program, host in self._uploads
            if program.scheduler is scheduler
            for pair in program.pairs(host, results[number])
        ]
        launches: list[Launch] = []
        after: list[int | None] = []
        memory: list[tuple[Buffer, ...]] = []
        seen = 0
        for number, program, held, _ in self._moves:
            count = len(program.launches)
            if program.scheduler is scheduler:
                first = len(launches)
                launches += program.copies(held, results[number])
                fed = program.after or (None,) * count
                after += [None if feeding is None else first + feeding for feeding in fed]
                memory += () if staging is None else staging[seen : seen + count]
            seen += count
        if pairs:
            scheduler.upload_batch(pairs, line)
        if launches:
            passes_on = any(feeding is not None for feeding in after)
            packs = staging is not None
            scheduler.submit_moves(launches, line, after if passes_on else None, memory if packs else None)
