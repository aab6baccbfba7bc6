"""The rules: what work waits for when it is enqueued, and what it leaves on its buffers for later work."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cuplace.runtime.faults import NO_FAULTS
from cuplace.runtime.submission import Submission, SubmissionLog, next_id

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Backend, Event, Latch, Stream
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line
    from cuplace.runtime.device import Device
    from cuplace.runtime.memory import DeviceMemory, Graveyard
    from cuplace.runtime.task import Task

now_ns = time.perf_counter_ns


class Rules:
    """What a scheduler knows, and how it enqueues one submission, under the lock that the doors take."""

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
        self._marks: deque[Event] = deque()  # ends of what the scheduler did not enqueue as a submission
        self._latches: list[Latch] = []

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
                note_read(buffer, stream, event)
            written = (event,)
            for buffer in writes:
                uses = buffer.uses
                uses.writes = written
                uses.reads = None
        except BaseException:
            self._note_latest(stream, reads, writes)
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
        read = tuple([buffer.id for buffer in reads])
        write = (writes[0].id,) if len(writes) == 1 else tuple([buffer.id for buffer in writes])
        submission = Submission(next_id(), task, stream, read, write, waits, line, now)
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

    def _mark(self, stream: Stream) -> Event | None:
        """The end of all that is on the stream by now, whoever enqueued it."""
        event = stream.record(next_id())
        if event is not None:
            marks = self._marks
            while marks:
                first = marks[0]
                if not self.backend.query(first):
                    break
                if marks and marks[0] is first:  # else a destructor that computes has been here
                    marks.popleft()
            marks.append(event)
        return event

    def _note_latest(self, stream: Stream, reads: Iterable[Buffer], writes: Iterable[Buffer]) -> None:
        """After an interrupt or a failure inside a door: what was enqueued by then runs all the same, so the buffers
        wait for the latest work of the stream."""
        event = self._mark(stream)
        if event is None:
            return
        for buffer in reads:
            note_read(buffer, stream, event)
        for buffer in writes:
            buffer.writes = (*buffer.writes, event)


def forget_done(events: deque[Event]) -> None:
    """Let go of those that are done, from the first on: their errors may hold frames that hold buffers."""
    while events and (first := events[0]).done:
        if events and events[0] is first:  # else a destructor that computes has been here
            events.popleft()


def note_read(buffer: Buffer, stream: Stream, event: Event) -> None:
    """The latest work of ``stream`` that reads the buffer is that of ``event``."""
    uses = buffer.uses
    if uses.reads is None:
        uses.reads = {stream: event}
    else:
        uses.reads[stream] = event
