"""The scheduler: the one place that orders work. Everything that waits or records an event is in this file.

It has five doors: ``submit`` (with its batch forms), ``host_wait``, ``adopt``, ``lend`` and ``park`` (the drain of
dead buffers). The rules it keeps:

- a reader waits for the latest write of what it reads; a writer waits for the latest write and for all reads since;
- dependencies within one stream cost nothing, the stream is already in order;
- the moves of one plan write disjoint boxes, so they never wait for one another;
- work is enqueued, and its event recorded, before the call returns;
- a dead block is reused in stream order or when its events are complete, never earlier.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cuplace import errors
from cuplace.runtime.backends.interrupts import Uninterrupted
from cuplace.runtime.buffer import Buffer, Loan, Returned, export
from cuplace.runtime.caller import caller
from cuplace.runtime.config import config
from cuplace.runtime.faults import NO_FAULTS
from cuplace.runtime.memory import COMPUTE, TRANSFER, ForeignArena, Graveyard, Uses
from cuplace.runtime.packing import WORTHWHILE, Pair, packed
from cuplace.runtime.submission import (
    RUN_AHEAD_WAIT,
    VALUE_WAIT,
    HostWait,
    Submission,
    SubmissionLog,
)
from cuplace.runtime.task import LATCH, ComputeTask, PackedUpload, Task

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Backend, Event, Latch, Stream
    from cuplace.runtime.caller import Line
    from cuplace.runtime.device import Device
    from cuplace.runtime.host_memory import HostMemory
    from cuplace.runtime.memory import DeviceMemory

    Place: TypeAlias = Device | HostMemory

RUN_AHEAD = 4096
"""Unfinished submissions after which a call waits for the oldest, so that queues stay bounded."""

Made = tuple[tuple[int, ...], "np.dtype[Any]", int]
"""What a task makes on each device: shape, dtype and bytes."""

_now = time.perf_counter_ns
_next_id = itertools.count().__next__
_id = attrgetter("id")


def _fill_pattern(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
    writes[0].reshape(-1).view(np.uint8)[...] = 0xA5


_POISON = ComputeTask("poison", _fill_pattern, 0.0)


class Scheduler:
    """Order for the devices of one platform. All doors take one re-entrant lock, ``lock``."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._view = backend.view
        self.lock: Any = threading.RLock()
        self.log = SubmissionLog()
        self.devices: tuple[Device, ...] = ()  # the platform sets them
        self.faults = NO_FAULTS
        self.graveyard: Graveyard = deque()
        self.parking: set[DeviceMemory] = set()
        self._run_ahead: deque[Event] = deque()
        self._latches: list[Latch] = []

    # ------------------------------------------------------------------ memory

    def allocate(
        self, device: Place, shape: tuple[int, ...], dtype: np.dtype[Any], arena: str = TRANSFER
    ) -> Buffer:
        """A new buffer of ``device``. One of the compute arena must be written first by ``device.compute``.

        Raises:
            OutOfMemoryError: the device has no memory for it.
        """
        return self.allocate_batch((device,), shape, dtype, arena)[0]

    def allocate_batch(
        self, devices: Iterable[Place], shape: tuple[int, ...], dtype: np.dtype[Any], arena: str = TRANSFER
    ) -> list[Buffer]:
        """A new buffer of the same shape and dtype for each of the devices, as ``allocate`` makes it."""
        nbytes = math.prod(shape) * dtype.itemsize
        with self.lock:
            if self.graveyard:
                self._park()
            return [self._new_buffer(device, arena, shape, dtype, nbytes) for device in devices]

    def _new_buffer(
        self, device: Place, arena: str, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int
    ) -> Buffer:
        memory = device.memory
        block, hazards = memory.allocate(arena, nbytes, shape, dtype)
        buffer = Buffer(memory.device, block, self._view(block.storage, shape, dtype), nbytes)
        if hazards:
            buffer.reads = _latest_of_each_stream(hazards)
        if config.poison and nbytes:
            stream = device.compute if arena == COMPUTE else device.upload
            self._launch(_POISON, stream, (), (buffer,), (), None, _now())
        return buffer

    def may_overwrite(self, buffers: Iterable[Buffer]) -> bool:
        """Whether the next work on their devices' compute streams may write over ``buffers``: their memory is ours,
        nobody views it, and no other stream is still to read it, so that nothing waits because of that."""
        with self.lock:
            return not any(
                buffer.exports or isinstance(buffer.block.arena, ForeignArena) or _has_readers(buffer)
                for buffer in buffers
            )

    def park(self) -> None:
        """Take in the blocks of buffers that died since the last call of a door."""
        with self.lock:
            self._park()

    def _park(self) -> None:
        run_ahead, graveyard = self._run_ahead, self.graveyard
        while run_ahead and (first := run_ahead[0]).done:  # their errors may hold frames that hold buffers
            if run_ahead and run_ahead[0] is first:  # else a destructor that computes has been here
                run_ahead.popleft()
        uses: Uses | None = None
        try:
            while graveyard:
                uses = graveyard[0]
                graveyard.popleft()
                block = uses.block
                if uses.reads:
                    block.arena.release(block, (*uses.writes, *uses.reads.values()))
                elif uses.writes:
                    block.arena.release(block, uses.writes)
                elif type(uses) is Returned:
                    self._take_back(uses)
                else:
                    block.arena.free(block)
                uses = None
        except BaseException:  # an interrupt
            if uses is not None and uses.block.arena.holds(uses.block):
                graveyard.append(uses)
            raise

    def _take_back(self, returned: Returned) -> None:
        """The end of a loan: the buffer is free for others after what is on the borrower's stream by now."""
        with Uninterrupted():
            buffer, stream = returned.buffer, returned.stream
            if stream is not None:
                event = stream.record(_next_id())
                if event is not None:
                    _note_read(buffer, stream, event)
                assert isinstance(buffer.exports, list)
                buffer.exports.pop()
                returned.stream = None

    # ------------------------------------------------------------------ submit

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
            now = _now()
            for stream, reads, writes in launches:
                launch(task, stream, reads, writes, scalars, line, now)
            if self._run_ahead:
                self._bound_run_ahead()
        if config.sync:
            self.host_wait([buffer for _, _, writes in launches for buffer in writes])

    def submit_new(
        self, task: Task, made: Sequence[Made], launches: Sequence[tuple[Place, Sequence[Buffer]]],
        scalars: tuple[Any, ...] = (), line: Line | None = None,
    ) -> list[list[Buffer]]:  # fmt: skip
        """Enqueue the same task once per shard on the compute streams, into new buffers.

        ``launches`` gives device and reads of each shard, ``made`` what each shard makes. All memory is there
        before anything is enqueued.

        Returns:
            The new buffers: a list for each shard.

        Raises:
            OutOfMemoryError: a device has no memory for what it makes.
        """
        if line is None:
            line = caller()
        with self.lock:
            if self.graveyard:
                self._park()
            new, launch, now = self._new_buffer, self._launch, _now()
            results = [
                [new(device, COMPUTE, shape, dtype, nbytes) for shape, dtype, nbytes in made] for device, _ in launches
            ]
            for (device, reads), writes in zip(launches, results, strict=True):
                launch(task, device.compute, reads, writes, scalars, line, now)
            if self._run_ahead:
                self._bound_run_ahead()
        if config.sync:
            self.host_wait([buffer for writes in results for buffer in writes])
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
            result = self._new_buffer(device, COMPUTE, shape, dtype, nbytes)
            self._launch(task, device.compute, reads, (result,), scalars, line, _now())
            if self._run_ahead:
                self._bound_run_ahead()
        if config.sync:
            self.host_wait((result,))
        return result

    def submit_moves(
        self, launches: Sequence[tuple[Task, Stream, Buffer, Buffer]], line: Line | None = None,
        after: Sequence[int | None] | None = None,
    ) -> None:  # fmt: skip
        """Enqueue the moves of one plan: task, stream, source and target of each.

        The plan promises that they write disjoint boxes: each waits for what was there before the plan, and none for
        another, unless ``after`` gives the number of an earlier one that writes all that it reads: it waits for that.
        """
        if line is None:
            line = caller()
        with self.lock:
            if self.graveyard:
                self._park()
            written: dict[Buffer, list[Event]] = {}
            passed_on: dict[Buffer, dict[Stream, Event]] = {}
            enqueue, now = self._enqueue, _now()
            try:
                if after is None:
                    for task, stream, source, target in launches:
                        event = enqueue(task, stream, (source,), (target,), (), line, now)
                        events = written.setdefault(target, [])
                        if event is not None:
                            _note_read(source, stream, event)
                            events.append(event)
                else:
                    self._enqueue_relays(launches, after, line, written, passed_on)
                for target, events in written.items():
                    uses = target.uses
                    uses.writes = tuple(events)
                    uses.reads = passed_on.get(target)
            except BaseException:
                for _, stream, source, target in launches:
                    _note_latest(stream, (source,), (target,))
                raise
            if self._run_ahead:
                self._bound_run_ahead()
        if config.sync:
            self.host_wait([target for _, _, _, target in launches])

    def _enqueue_relays(
        self, launches: Sequence[tuple[Task, Stream, Buffer, Buffer]], after: Sequence[int | None], line: Line | None,
        written: dict[Buffer, list[Event]], passed_on: dict[Buffer, dict[Stream, Event]],
    ) -> None:  # fmt: skip
        """Enqueue moves of which some pass on what others have written. Fills in for each target the events that
        write it, and those that read it for others."""
        now = _now()
        ends: list[Event | None] = []
        for (task, stream, source, target), feeding in zip(launches, after, strict=True):
            fed = None if feeding is None else ends[feeding]
            event = self._enqueue(task, stream, (source,), (target,), (), line, now, fed)
            ends.append(event)
            events = written.setdefault(target, [])
            if event is None:
                continue
            events.append(event)
            if feeding is None:
                _note_read(source, stream, event)
            else:
                passed_on.setdefault(source, {})[stream] = event

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
            now = _now()
            if len(pairs) < WORTHWHILE:
                for buffer, source in pairs:
                    self._upload(buffer, source, line, now)
            else:
                for group in packed(pairs):
                    if len(group) == 1:
                        self._upload(*group[0], line, now)
                    else:
                        self._upload_packed(group, line, now)
            if self._run_ahead:
                self._bound_run_ahead()
        if config.sync:
            self.host_wait([buffer for buffer, _ in pairs])

    def _upload(self, buffer: Buffer, source: np.ndarray[Any, Any], line: Line | None, now: int) -> None:
        stream = buffer.block.arena.memory.upload
        try:
            waits = self._wait_before_write(stream, buffer)
            task = Task("upload", "upload", buffer.nbytes, "host")
            submission = Submission(_next_id(), task, stream, (), (buffer.id,), waits, line, now)
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
            _note_latest(stream, (), (buffer,))
            raise

    def _upload_packed(self, pairs: Sequence[Pair], line: Line | None, now: int) -> None:
        """Uploads on one stream as one submission."""
        buffers = [buffer for buffer, _ in pairs]
        stream = buffers[0].block.arena.memory.upload
        try:
            waits = tuple([wait for buffer in buffers for wait in self._wait_before_write(stream, buffer)])
            task = self.faults.task(PackedUpload([source for _, source in pairs], sum(b.nbytes for b in buffers)))
            submission = Submission(_next_id(), task, stream, (), tuple(map(_id, buffers)), waits, line, now)
            task.enqueue(stream, (), buffers, (), (), submission)
            event = self._record(stream, submission)
            for buffer in buffers:
                buffer.writes = () if event is None else (event,)
                buffer.reads = None
        except BaseException:
            _note_latest(stream, (), buffers)
            raise

    def hold(self, stream: Stream) -> Latch:
        """Enqueue a latch: work enqueued later on ``stream`` starts only after ``release()``."""
        with self.lock, Uninterrupted():  # else nobody might have the latch
            submission = Submission(_next_id(), LATCH, stream, (), (), (), caller(), _now())
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

    # ------------------------------------------------------------------ host

    def host_wait(self, buffers: Iterable[Buffer]) -> None:
        """Block until everything that writes ``buffers`` is complete.

        Raises:
            The original error of the work that failed, for the first buffer that it poisoned.
        """
        synchronize = self.backend.synchronize if not self.log.waits else self.wait
        for buffer in buffers:
            writes = buffer.uses.writes
            for event in writes:
                if not event.done:
                    synchronize(event)
            for event in writes:
                if event.error is not None:
                    raise event.error
        if self.graveyard or self.parking:
            self.tidy()

    def tidy(self) -> None:
        """Free dead blocks that are complete, unless another thread is in a door: it may be waiting for memory."""
        if self.lock.acquire(blocking=False):
            try:
                self._park()
                for memory in tuple(self.parking):
                    memory.collect()
            finally:
                self.lock.release()

    def is_ready(self, buffers: Iterable[Buffer]) -> bool:
        """Whether everything that writes ``buffers`` is complete. Never blocks."""
        query = self.backend.query
        return all(event.done or query(event) for buffer in buffers for event in buffer.writes)

    def failure(self, buffers: Iterable[Buffer]) -> BaseException | None:
        """The error of work that should write ``buffers``, where it is known already. Never waits."""
        events = [event for buffer in buffers for event in buffer.writes]
        return next((event.error for event in events if event.error is not None), None)

    def download(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        """The values of ``buffer`` as a read-only NumPy array; waits for them.

        Where the host can read the memory in place it is a view, which keeps the memory alive.
        """
        self.host_wait((buffer,))
        on_host = buffer.block.arena.memory.on_host
        host = self.backend.host_array(buffer.array) if on_host else self.backend.host_view(buffer.array)
        if host is not None:
            return export(buffer, host)
        start, writes = self.backend.now(), buffer.writes
        host = self.backend.to_host(buffer.array, buffer.device)
        if self.log.waits:
            self._note_wait(VALUE_WAIT, max((event.submission for event in writes), default=0), start)
        host.flags.writeable = False
        return host

    def wait(self, event: Event, kind: str = VALUE_WAIT) -> None:
        """Block until ``event`` is complete. Does not raise the work's error."""
        start = self.backend.now()
        try:
            self.backend.synchronize(event)
        finally:
            if self.log.waits:
                self._note_wait(kind, event.submission, start)

    def _note_wait(self, kind: str, submission: int, start: int) -> None:
        wait = HostWait(kind, submission, caller(), start, self.backend.now())
        for recording in self.log.waits:
            recording.append(wait)

    def drain(self, streams: Iterable[Stream]) -> None:
        """Block until all that has been enqueued on ``streams`` is complete. Failures stay with the buffers."""
        with self.lock:
            events = [stream.record(_next_id()) for stream in streams]
        for event in events:
            if event is not None and not event.done:
                self.backend.synchronize(event)

    # ------------------------------------------------------------------ foreign memory and streams

    def adopt(self, array: Any, device: Device, stream: Stream | None = None) -> Buffer:
        """A buffer over memory that somebody else allocated, as of what ``stream`` has enqueued so far.

        Without a stream the memory is taken to be complete. The owner is kept alive as long as work needs it. Memory
        that was made on the device's own compute stream is ours from now on, and is given back in its order.
        """
        with self.lock:
            memory = device.memory
            arena = memory.returned if stream is device.compute else memory.foreign
            buffer = Buffer(device, arena.adopt(array), array, int(array.nbytes))
            if stream is not None:
                event = stream.record(_next_id())
                buffer.writes = () if event is None else (event,)
            return buffer

    @contextmanager
    def lend(self, buffer: Buffer, stream: Stream | None = None) -> Iterator[Any]:
        """Lend ``buffer``'s memory to work that the caller enqueues on ``stream`` inside the ``with`` block.

        The stream waits for the writes; the caller's use counts as a read that ends with what is on the stream
        when the block ends. Without a stream the host itself is the reader: it waits.

        Raises:
            The original error of the work that should have written the buffer, where it is known to have failed.
        """
        if stream is None:
            self.host_wait((buffer,))
            yield buffer.array
            return
        with self.lock:
            self._wait_for_writes(buffer, stream)
        try:
            yield buffer.array
        finally:
            with self.lock:
                last = stream.record(_next_id())
                if last is not None:
                    _note_read(buffer, stream, last)

    def lend_out(self, buffer: Buffer, waits: Stream | None, ends: Stream) -> Loan:
        """Lend ``buffer``'s memory until the loan that is returned dies, at any moment and in any thread.

        The stream ``waits`` waits for the writes (None: the borrower sees to it); the use counts as a read that ends
        with what is on the stream ``ends`` by the time that a door learns of the loan's death.

        Raises:
            The original error of the work that should have written the buffer, where it is known to have failed.
        """
        with self.lock:
            if waits is not None:
                self._wait_for_writes(buffer, waits)
            return Loan(buffer, ends)

    def _wait_for_writes(self, buffer: Buffer, stream: Stream) -> None:
        for event in buffer.writes:
            if event.done and event.error is not None:
                raise event.error
            if event.stream is not stream:
                stream.wait(event)

    def forget(self) -> None:
        """Make every door raise ForkedProcessError: this process was forked from the one that used the devices."""
        forked: Any = _Forked()
        self.lock = self.backend = forked

    # ------------------------------------------------------------------ the rules

    def _launch(
        self, task: Task, stream: Stream, reads: Sequence[Buffer], writes: Sequence[Buffer],
        scalars: tuple[Any, ...], line: Line | None, now: int,
    ) -> None:  # fmt: skip
        try:
            event = self._enqueue(task, stream, reads, writes, scalars, line, now)
            if event is None:
                for buffer in writes:
                    uses = buffer.uses
                    uses.writes = ()
                    uses.reads = None
                return
            for buffer in reads:
                _note_read(buffer, stream, event)
            written = (event,)
            for buffer in writes:
                uses = buffer.uses
                uses.writes = written
                uses.reads = None
        except BaseException:
            _note_latest(stream, reads, writes)
            raise

    def _enqueue(
        self, task: Task, stream: Stream, reads: Sequence[Buffer], writes: Sequence[Buffer],
        scalars: tuple[Any, ...], line: Line | None, now: int, fed: Event | None = None,
    ) -> Event | None:  # fmt: skip
        """``fed`` is the event of the work that writes what this one reads, where that is not on the buffer yet."""
        needs: tuple[Event, ...] = ()
        waits: tuple[int, ...] = ()
        for buffer in reads:
            written = buffer.uses.writes if fed is None else (fed,)
            if written:
                for event in written:
                    if event.done and event.error is None:
                        continue
                    needs += (event,)
                    if event.stream is not stream:
                        stream.wait(event)
                        waits += (event.submission,)
        for buffer in writes:
            uses = buffer.uses
            if uses.writes or uses.reads:
                waits += self._wait_before_write(stream, buffer)
        submission = Submission(
            _next_id(), task, stream, tuple(map(_id, reads)), tuple(map(_id, writes)), waits, line, now
        )
        if self.faults.fail_op is not None:
            task = self.faults.task(task)
        task.enqueue(stream, reads, writes, scalars, needs, submission)
        return self._record(stream, submission)

    def _wait_before_write(self, stream: Stream, buffer: Buffer) -> tuple[int, ...]:
        waits: tuple[int, ...] = ()
        uses = buffer.uses
        for event in (*uses.writes, *uses.reads.values()) if uses.reads else uses.writes:
            if event.stream is not stream and not event.done:
                stream.wait(event)
                waits += (event.submission,)
        return waits

    def _record(self, stream: Stream, submission: Submission) -> Event | None:
        event = stream.record(submission.id)
        self.log.append(submission)
        if event is not None:
            self._run_ahead.append(event)
        return event

    def _bound_run_ahead(self) -> None:
        run_ahead = self._run_ahead
        while run_ahead and (first := run_ahead[0]).done:
            if run_ahead and run_ahead[0] is first:
                run_ahead.popleft()
        while len(run_ahead) > RUN_AHEAD:
            self.wait(run_ahead.popleft(), RUN_AHEAD_WAIT)


class _Forked:
    """What a forked child finds in the place of the lock and the backend: its parent's devices are not usable there.

    The parent's threads do not exist in the child, and any lock may have been held by one of them.
    """

    def __getattr__(self, name: str) -> Any:
        raise errors.ForkedProcessError()

    def __enter__(self) -> None:
        raise errors.ForkedProcessError()

    def __exit__(self, *exception: object) -> None:
        pass


def _note_read(buffer: Buffer, stream: Stream, event: Event) -> None:
    uses = buffer.uses
    if uses.reads is None:
        uses.reads = {stream: event}
    else:
        uses.reads[stream] = event


def _has_readers(buffer: Buffer) -> bool:
    own = buffer.block.arena.memory.compute
    return any(not event.done and stream is not own for stream, event in (buffer.reads or {}).items())


def _note_latest(stream: Stream, reads: Iterable[Buffer], writes: Iterable[Buffer]) -> None:
    """After an interrupt or a failure inside a door: what was enqueued by then runs all the same, so the buffers
    wait for the latest work of the stream."""
    event = stream.record(_next_id())
    if event is None:
        return
    for buffer in reads:
        _note_read(buffer, stream, event)
    for buffer in writes:
        buffer.writes = (*buffer.writes, event)


def _latest_of_each_stream(events: Iterable[Event]) -> dict[Stream, Event]:
    latest: dict[Stream, Event] = {}
    for event in sorted(events, key=lambda event: event.submission):
        latest[event.stream] = event
    return latest
