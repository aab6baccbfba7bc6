"""Submission: the record of one piece of enqueued work, and the log of them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Stream
    from cuplace.runtime.caller import Line
    from cuplace.runtime.device import Device
    from cuplace.runtime.task import Task

LOG_LENGTH = 1024
"""Entries that the log of a scheduler keeps: few enough that they leave most of a second-level cache to the work."""

VALUE_WAIT, MEMORY_WAIT, RUN_AHEAD_WAIT, STAGING_WAIT = "value", "memory", "run-ahead", "staging"

_ids = itertools.count()
next_id = _ids.__next__


def next_ids(count: int) -> tuple[int, ...]:
    """As many as ``next_id`` would give in as many calls."""
    return tuple(itertools.islice(_ids, count))


class Submission:
    """What was enqueued where, by which line, and when it ran.

    Attributes:
        id: number in order of enqueueing, unique in the process.
        task: what was enqueued; its ``kind`` (``compute``, ``move``, ``upload`` or ``latch``), ``name`` (the op, the
            jitted function), ``nbytes`` (bytes that a copy moves, 0 for compute) and ``path`` (how a copy travels:
            ``local``, ``peer``, ``host``; empty for compute) are attributes of the record too.
        stream: the stream it was enqueued on; ``device`` is that stream's device.
        reads, writes: ids of the buffers that it reads and writes.
        waits: ids of the submissions whose events the stream was made to wait for.
        line: the user's line, or None.
        enqueue, start, end: nanoseconds of ``time.perf_counter_ns``, or of virtual time on the simulator; enqueue
            is when the call that enqueued it began, start and end are 0 until known.
    """

    __slots__ = ("id", "task", "stream", "reads", "writes", "waits", "line", "enqueue", "start", "end")

    def __init__(
        self, id: int, task: Task, stream: Stream, reads: tuple[int, ...], writes: tuple[int, ...],
        waits: tuple[int, ...], line: Line | None, enqueue: int,
    ) -> None:  # fmt: skip
        self.id = id
        self.task = task
        self.stream = stream
        self.reads = reads
        self.writes = writes
        self.waits = waits
        self.line = line
        self.enqueue = enqueue
        self.start = 0
        self.end = 0

    @property
    def kind(self) -> str:
        return self.task.kind

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def nbytes(self) -> int:
        return self.task.nbytes

    @property
    def path(self) -> str:
        return self.task.path

    @property
    def device(self) -> Device:
        return self.stream.device

    def __repr__(self) -> str:
        where = f" from {self.line}" if self.line is not None else ""
        return f"Submission({self.id}, {self.kind} {self.name!r} on {self.stream.name}{where})"


class Together(NamedTuple):
    """What one call did at once on several streams, kept as one entry of the log until somebody asks.

    Attributes:
        ids: of the submissions.
        tasks, streams: what ran, and on which stream, for each of them.
        num_operands: how many buffers each reads.
        buffers: the ids of the buffers: of the first operand those of each submission, then of the second, and so on;
            then of the results.
        line: the user's line, or None.
        enqueue: nanoseconds: when the call began.
        marks: nanoseconds: when the first of them started, and when each ended.
    """

    ids: tuple[int, ...]
    tasks: Sequence[Task]
    streams: Sequence[Stream]
    num_operands: int
    buffers: tuple[int, ...]
    line: Line | None
    enqueue: int
    marks: tuple[int, ...]

    def submissions(self) -> Iterator[Submission]:
        """The records."""
        count = len(self.ids)
        for i, id in enumerate(self.ids):
            buffers = self.buffers[i::count]
            reads, writes = buffers[: self.num_operands], buffers[self.num_operands :]
            one = Submission(id, self.tasks[i], self.streams[i], reads, writes, (), self.line, self.enqueue)
            one.start, one.end = self.marks[i : i + 2]
            yield one


class HostWait(NamedTuple):
    """A time in which a thread of the host waited for work.

    Attributes:
        kind: why it waited: for a `value` that it wants, for `memory` that dead blocks still occupy, for pinned memory
            that copies still pass through (`staging`), or since too much work is unfinished (`run-ahead`).
        submission: the id of what it waited for.
        line: the user's line, or None.
        start, end: nanoseconds, as in submissions.
    """

    kind: str
    submission: int
    line: Line | None
    start: int
    end: int


class SubmissionLog:
    """The last submissions, always on, and complete recordings on request.

    Attributes:
        waits: the recordings of what the host waits for, that are going on.
        append: takes a submission.
    """

    def __init__(self) -> None:
        self._recent: deque[Submission | Together] = deque(maxlen=LOG_LENGTH)
        self.waits: tuple[list[HostWait], ...] = ()
        self._recordings: list[list[Submission]] = []
        self.append: Callable[[Submission], None] = self._recent.append

    @property
    def recent(self) -> list[Submission]:
        """The last submissions, at most `LOG_LENGTH`."""
        found: list[Submission] = []
        for entry in tuple(self._recent):
            if isinstance(entry, Together):
                found += entry.submissions()
            else:
                found.append(entry)
        return found[-LOG_LENGTH:]

    def clear(self) -> None:
        """Forget the last submissions."""
        self._recent.clear()

    def append_together(self, together: Together) -> None:
        """Take those that ran at once."""
        self._recent.append(together)
        for recording in self._recordings:
            recording.extend(together.submissions())

    def _append_everywhere(self, submission: Submission) -> None:
        self._recent.append(submission)
        for recording in self._recordings:
            recording.append(submission)

    @contextmanager
    def record_waits(self) -> Iterator[list[HostWait]]:
        """Collect every wait of the host while the ``with`` block runs."""
        recording: list[HostWait] = []
        self.waits = (*self.waits, recording)
        try:
            yield recording
        finally:
            self.waits = tuple([other for other in self.waits if other is not recording])

    @contextmanager
    def record(self) -> Iterator[list[Submission]]:
        """Collect every submission made while the ``with`` block runs."""
        recording: list[Submission] = []
        self._recordings.append(recording)
        self.append = self._append_everywhere
        try:
            yield recording
        finally:
            self._recordings = [other for other in self._recordings if other is not recording]
            if not self._recordings:
                self.append = self._recent.append
