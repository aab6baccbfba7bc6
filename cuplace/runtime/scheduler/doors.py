"""The scheduler's doors for work: each enqueues under the lock, bounds the queues, and returns. Small work may be done
before the call returns instead (see ``at_once``)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.runtime.backends.interrupts import Uninterrupted
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.caller import caller
from cuplace.runtime.config import config
from cuplace.runtime.memory import COMPUTE
from cuplace.runtime.packing import WORTHWHILE, Pair, packed
from cuplace.runtime.scheduler.at_once import per_shard
from cuplace.runtime.scheduler.forked import Forked
from cuplace.runtime.scheduler.lending import Lending
from cuplace.runtime.scheduler.rules import note_read, now_ns
from cuplace.runtime.submission import Submission, next_id
from cuplace.runtime.task import LATCH, PackedUpload, Task, upload_task

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Event, Latch, Stream
    from cuplace.runtime.caller import Line
    from cuplace.runtime.scheduler.at_once import Launch
    from cuplace.runtime.scheduler.memory import Place

Made = tuple[tuple[int, ...], "np.dtype[Any]", int]
"""What a task makes on each device: shape, dtype and bytes."""


class Scheduler(Lending):
    """Order for the devices of one platform. All doors take one re-entrant lock, ``lock``."""

    def submit(
        self, task: Task, stream: Stream, reads: Sequence[Buffer], writes: Sequence[Buffer],
        scalars: tuple[Any, ...] = (), line: Line | None = None,
    ) -> None:  # fmt: skip
        """Enqueue ``task`` on ``stream`` after everything that its reads and writes depend on."""
        self.submit_batch(task, ((stream, reads, writes),), scalars, line)

    def submit_batch(
        self, task: Task, launches: Sequence[tuple[Stream, Sequence[Buffer], Sequence[Buffer]]],
        scalars: tuple[Any, ...] = (), line: Line | None = None,
    ) -> None:  # fmt: skip
        """Enqueue the same task once per shard: ``launches`` gives stream, reads and writes of each."""
        if line is None:
            line = caller()
        with self.lock:
            if self.graveyard:
                self._park()
            launch = self._launch
            now = now_ns()
            for stream, reads, writes in launches:
                launch(task, stream, reads, writes, scalars, line, now)
            if self._run_ahead:
                self._bound_run_ahead()
        if config.sync:
            self.host_wait([buffer for _, _, writes in launches for buffer in writes])

    def submit_new(
        self, task: Task, made: Sequence[Made], places: Sequence[Place], operands: Sequence[Sequence[Buffer]],
        scalars: tuple[Any, ...] = (), line: Line | None = None,
    ) -> list[list[Buffer]]:  # fmt: skip
        """Enqueue the same task once per shard on the compute streams, into new buffers.

        ``operands`` are what it reads, the shards of each in the order of ``places``; ``made`` is what each shard
        makes. All memory is there before anything is enqueued.

        Returns:
            The new buffers: for each thing made, its shards.

        Raises:
            OutOfMemoryError: a place has no memory for what it makes.
        """
        if line is None:
            line = caller()
        with self.lock:
            if self.graveyard:
                self._park()
            now = now_ns()
            results = [self._new_buffers(places, COMPUTE, *of) for of in made]
            streams = [place.compute for place in places]
            if not self._ran_at_once(task, streams, operands, results, scalars, line, now):
                shards = per_shard(operands, results, len(streams))
                for stream, (reads, writes) in zip(streams, shards, strict=True):
                    self._launch(task, stream, reads, writes, scalars, line, now)
            if self._run_ahead:
                self._bound_run_ahead()
        if config.sync:
            self.host_wait([buffer for shards in results for buffer in shards])
        return results

    def submit_one(
        self, task: Task, made: Made, device: Place, reads: Sequence[Buffer], scalars: tuple[Any, ...] = ()
    ) -> Buffer:
        """``submit_new`` for one shard with one result: the road of eager operations on one device."""
        line = caller()
        with self.lock:
            if self.graveyard:
                self._park()
            shape, dtype, nbytes = made
            (result,) = self._new_buffers((device,), COMPUTE, shape, dtype, nbytes)
            self._launch(task, device.compute, reads, (result,), scalars, line, now_ns())
            if self._run_ahead:
                self._bound_run_ahead()
        if config.sync:
            self.host_wait((result,))
        return result

    def submit_moves(
        self, launches: Sequence[Launch], line: Line | None = None,
        after: Sequence[int | None] | None = None, staging: Sequence[tuple[Buffer, ...]] | None = None,
    ) -> None:  # fmt: skip
        """Enqueue the moves of one plan.

        The plan promises that they write disjoint boxes: each waits for what was there before the plan, and none for
        another, unless ``after`` gives the number of an earlier one that writes all that it reads: it waits for that.
        ``staging`` gives the memory that each packs into: of those that share it, each waits for the one before.
        """
        if line is None:
            line = caller()
        with self.lock:
            if self.graveyard:
                self._park()
            now, plain = now_ns(), after is None and staging is None
            if not (plain and launches and self._moved_at_once(launches, line, now)):
                self._enqueue_moves(launches, after, staging, line, now)
            if self._run_ahead:
                self._bound_run_ahead()
        if config.sync:
            self.host_wait([target for _, _, _, target in launches])

    def _enqueue_moves(
        self, launches: Sequence[Launch], after: Sequence[int | None] | None,
        staging: Sequence[tuple[Buffer, ...]] | None, line: Line | None, now: int,
    ) -> None:  # fmt: skip
        """Each after what its source and what is written over wait for; what fails on the way leaves that in order."""
        written: dict[Buffer, list[Event]] = {}
        passed_on: dict[Buffer, dict[Stream, Event]] = {}
        try:
            if after is None and staging is None:
                for task, stream, source, target in launches:
                    assert source is not None
                    event = self._enqueue(task, stream, (source,), (target,), (), line, now)
                    events = written.setdefault(target, [])
                    if event is not None:
                        note_read(source, stream, event)
                        events.append(event)
            else:
                self._enqueue_relays(launches, after, staging, line, written, passed_on)
            for target, events in written.items():
                uses = target.uses
                uses.writes = tuple(events)
                uses.reads = passed_on.get(target)
        except BaseException:
            for target, events in written.items():  # the latest of a stream may end elsewhere than these
                target.writes = (*target.writes, *events)
            for (_, stream, source, target), memory in zip(launches, staging or repeat(()), strict=False):
                self._note_latest(stream, () if source is None else (source,), (target, *memory))
            raise

    def _enqueue_relays(
        self, launches: Sequence[Launch], after: Sequence[int | None] | None,
        staging: Sequence[tuple[Buffer, ...]] | None, line: Line | None, written: dict[Buffer, list[Event]],
        passed_on: dict[Buffer, dict[Stream, Event]],
    ) -> None:  # fmt: skip
        """Enqueue moves of which some pass on what others have written, or pack into memory that others packed into
        before. Fills in for each target the events that write it, and those that read it for others."""
        now, none = now_ns(), [None] * len(launches)
        ends: list[Event | None] = []
        for (task, stream, source, target), feeding, memory in zip(
            launches, after or none, staging or repeat(()), strict=False
        ):
            fed = None if feeding is None else ends[feeding]
            reads = () if source is None else (source,)
            event = self._enqueue(task, stream, reads, (target, *memory), (), line, now, fed)
            ends.append(event)
            for buffer in memory:
                buffer.uses.writes = () if event is None else (event,)
                buffer.uses.reads = None
            events = written.setdefault(target, [])
            if event is None:
                continue
            events.append(event)
            for buffer in reads:
                if feeding is None:
                    note_read(buffer, stream, event)
                else:
                    passed_on.setdefault(buffer, {})[stream] = event

    def upload(self, buffer: Buffer, source: np.ndarray[Any, Any], line: Line | None = None) -> None:
        """Enqueue a copy of ``source`` (cast to the buffer's dtype); it is read entirely before this returns."""
        self.upload_batch(((buffer, source),), line)

    def upload_batch(
        self, pairs: Sequence[tuple[Buffer, np.ndarray[Any, Any]]], line: Line | None = None
    ) -> None:
        """Enqueue uploads of (buffer, host array), as ``upload`` does. Many small ones are packed."""
        if line is None:
            line = caller()
        with self.lock:
            if self.graveyard:
                self._park()
            now = now_ns()
            if not self._uploaded_at_once(pairs, line, now):
                self._enqueue_uploads(pairs, line, now)
            if self._run_ahead:
                self._bound_run_ahead()
        if config.sync:
            self.host_wait([buffer for buffer, _ in pairs])

    def _enqueue_uploads(
        self, pairs: Sequence[tuple[Buffer, np.ndarray[Any, Any]]], line: Line | None, now: int
    ) -> None:
        groups = [(pair,) for pair in pairs] if len(pairs) < WORTHWHILE else packed(pairs)
        for group in groups:
            if len(group) == 1:
                self._upload(*group[0], line, now)
            else:
                self._upload_packed(group, line, now)

    def _upload(self, buffer: Buffer, source: np.ndarray[Any, Any], line: Line | None, now: int) -> None:
        stream = buffer.block.arena.memory.upload
        try:
            waits = self._wait_before_write(stream, buffer)
            task = upload_task(buffer.nbytes)
            submission = Submission(next_id(), task, stream, (), (buffer.id,), waits, line, now)
            failing = task if self.faults.fail_op is None else self.faults.task(task)
            if failing is task:
                stream.upload(source, buffer.array, submission)
            else:
                failing.enqueue(stream, (), (buffer,), (), (), submission)
            event = self._record(stream, submission)
            uses = buffer.uses
            uses.writes = () if event is None else (event,)
            uses.reads = None
        except BaseException:
            self._note_latest(stream, (), (buffer,))
            raise

    def _upload_packed(self, pairs: Sequence[Pair], line: Line | None, now: int) -> None:
        """Uploads on one stream as one submission."""
        buffers = [buffer for buffer, _ in pairs]
        stream = buffers[0].block.arena.memory.upload
        try:
            waits = tuple([wait for buffer in buffers for wait in self._wait_before_write(stream, buffer)])
            task = self.faults.task(PackedUpload([source for _, source in pairs], sum(b.nbytes for b in buffers)))
            written = tuple([buffer.id for buffer in buffers])
            submission = Submission(next_id(), task, stream, (), written, waits, line, now)
            task.enqueue(stream, (), buffers, (), (), submission)
            event = self._record(stream, submission)
            for buffer in buffers:
                buffer.writes = () if event is None else (event,)
                buffer.reads = None
        except BaseException:
            self._note_latest(stream, (), buffers)
            raise

    def hold(self, stream: Stream) -> Latch:
        """Enqueue a latch: work enqueued later on ``stream`` starts only after ``release()``."""
        with self.lock, Uninterrupted():  # else nobody might have the latch
            submission = Submission(next_id(), LATCH, stream, (), (), (), caller(), now_ns())
            latch = stream.hold(submission)
            self._record(stream, submission)
            self._latches = [*(other for other in self._latches if other.held), latch]
            return latch

    def release_latches(self) -> int:
        """Open every latch that is still held; how many there were."""
        held = [latch for latch in self._latches if latch.held]
        for latch in held:
            latch.release()
        return len(held)

    def forget_past(self) -> None:
        """Let go of all that was recorded of work, of which none is unfinished."""
        with self.lock:
            self.log.clear()
            self._run_ahead.clear()
            self._marks.clear()
            self._latches.clear()

    def forget(self) -> None:
        """Make every door raise ForkedProcessError: this process was forked from the one that used the devices."""
        forked: Any = Forked()
        self.lock = self.backend = forked
