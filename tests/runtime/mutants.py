"""What tests take away from the scheduler, to see that its absence shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from cuplace.runtime.buffer import Buffer
from cuplace.runtime.scheduler import Scheduler

Unseen = Callable[[Any, Sequence[Buffer], Sequence[Buffer]], Iterable[Buffer]]
"""``unseen(task, reads, writes)``: the reads whose writers a task does not wait for."""


def hide_writers(patch: pytest.MonkeyPatch, unseen: Unseen) -> None:
    """Let tasks start without waiting for what wrote some of their reads."""
    enqueue = Scheduler._enqueue

    def mutant(self: Scheduler, task: Any, stream: Any, reads: Any, writes: Any, *rest: Any) -> Any:
        hidden = [(buffer, buffer.writes) for buffer in unseen(task, reads, writes)]
        for buffer, _ in hidden:
            buffer.writes = ()
        try:
            return enqueue(self, task, stream, reads, writes, *rest)
        finally:
            for buffer, events in hidden:
                buffer.writes = events

    patch.setattr(Scheduler, "_enqueue", mutant)
