"""At once: small work and copies that the calling thread does itself, on backends that can, while nothing they touch is
unfinished. Nothing waits then, and no events are left: all is complete before and afterwards.

Where that cannot be, nothing counts as done, and the rules enqueue it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from cuplace.runtime.scheduler.rules import Rules
from cuplace.runtime.submission import Together, next_ids
from cuplace.runtime.task import upload_task

if TYPE_CHECKING:
    import numpy as np

    from cuplace.runtime.backends.base import Stream
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line
    from cuplace.runtime.task import Task

Launch: TypeAlias = "tuple[Task, Stream, Buffer | None, Buffer]"
"""A move: task, stream, source and target. Without a source it brings values of the host's; such moves are of plans in
which others pass on what they bring."""

Columns: TypeAlias = "Sequence[Sequence[Buffer]]"
"""The shards of several operands or results, on the same devices in the same order."""

_array, _id, _nbytes = attrgetter("array"), attrgetter("id"), attrgetter("nbytes")


def per_shard(
    operands: Sequence[Iterable[Any]], results: Sequence[Iterable[Any]], count: int
) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
    """What each of ``count`` shards reads and writes, of columns that hold something for each of them."""
    read: Iterable[Any] = zip(*operands, strict=True) if operands else [()] * count
    written: Iterable[Any] = zip(*results, strict=True) if results else [()] * count
    return zip(read, written, strict=True)


class AtOnce(Rules):
    """What can be done at once. Each function tells whether it was."""

    def _ran_at_once(
        self, task: Task, streams: Sequence[Stream], operands: Columns, results: Columns, scalars: tuple[Any, ...],
        line: Line | None, now: int,
    ) -> bool:  # fmt: skip
        """Short work into new buffers, once on each stream. Without results there would be nothing to see it by."""
        run = self.backend.run_at_once
        if run is None or not results or not self._nothing_unfinished(operands, results):
            return False
        read = [map(_array, column) for column in operands]
        written = [map(_array, column) for column in results]
        marks = run(task, streams, per_shard(read, written, len(streams)), scalars)
        if marks:
            self._note_together((task,) * len(streams), streams, operands, results, line, now, marks)
        return bool(marks)

    def _moved_at_once(self, launches: Sequence[Launch], line: Line | None, now: int) -> bool:
        """Small moves into new buffers, each from another buffer."""
        copy = self.backend.copy_at_once
        if copy is None:
            return False
        # Copies from one buffer to another: others come with `after`.
        tasks: Sequence[Any]
        sources: Sequence[Any]
        tasks, streams, sources, targets = zip(*launches, strict=True)
        if not self._nothing_unfinished((sources,), (targets,)):
            return False
        boxes = (task.boxes(source, target) for task, source, target in zip(tasks, sources, targets, strict=True))
        marks = copy(streams, boxes, max(map(_nbytes, tasks)))
        if marks:
            self._note_together(tasks, streams, (sources,), (targets,), line, now, marks)
        return bool(marks)

    def _uploaded_at_once(
        self, pairs: Sequence[tuple[Buffer, np.ndarray[Any, Any]]], line: Line | None, now: int
    ) -> bool:
        """Values of the host into new buffers."""
        copy = self.backend.copy_at_once
        if copy is None or not pairs:
            return False
        targets = [buffer for buffer, _ in pairs]
        if not self._nothing_unfinished((), (targets,)):
            return False
        streams = [buffer.block.arena.memory.upload for buffer in targets]
        marks = copy(streams, [(source, buffer.array) for buffer, source in pairs], 0)
        if marks:
            tasks = [upload_task(buffer.nbytes) for buffer in targets]
            self._note_together(tasks, streams, (), (targets,), line, now, marks)
        return bool(marks)

    def _nothing_unfinished(self, operands: Columns, results: Columns) -> bool:
        """Whether operands have been written without error, and nobody has used the results; and nothing is to fail."""
        if self.faults.fail_op is not None:
            return False
        for column in operands:
            for buffer in column:
                writes = buffer.uses.writes
                if writes and any(not event.done or event.error is not None for event in writes):
                    return False
        for column in results:
            for buffer in column:
                if buffer.uses.writes or buffer.uses.reads:
                    return False
        return True

    def _note_together(
        self, tasks: Sequence[Task], streams: Sequence[Stream], operands: Columns, results: Columns,
        line: Line | None, now: int, marks: Sequence[int],
    ) -> None:  # fmt: skip
        ids = next_ids(len(tasks))
        buffers = tuple(map(_id, chain(*operands, *results)))
        entry = (ids, tasks, streams, len(operands), buffers, line, now, tuple(marks))
        self.log.append_together(Together._make(entry))  # in less than half the time of its constructor
