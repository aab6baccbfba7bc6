"""The host's side: where it waits, asks whether work is complete, and reads values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.runtime.buffer import Buffer, export
from cuplace.runtime.caller import caller
from cuplace.runtime.scheduler.memory import Memory
from cuplace.runtime.scheduler.rules import forget_done
from cuplace.runtime.submission import RUN_AHEAD_WAIT, VALUE_WAIT, HostWait, next_id

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Event, Stream

RUN_AHEAD = 4096
"""Unfinished submissions after which a call waits for the oldest, so that queues stay bounded."""


class Host(Memory):
    """The doors at which the host waits: ``host_wait``, ``download`` and ``drain``; and those that never do."""

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
        self.note_wait(VALUE_WAIT, max((event.submission for event in writes), default=0), start)
        host.flags.writeable = False
        return host

    def wait(self, event: Event, kind: str = VALUE_WAIT) -> None:
        """Block until ``event`` is complete. Does not raise the work's error."""
        start = self.backend.now()
        try:
            self.backend.synchronize(event)
        finally:
            self.note_wait(kind, event.submission, start)

    def note_wait(self, kind: str, submission: int, start: int) -> None:
        """The host has waited for ``submission`` from ``start`` until now: a record of it, if somebody wants one."""
        if self.log.waits:
            wait = HostWait(kind, submission, caller(), start, self.backend.now())
            for recording in self.log.waits:
                recording.append(wait)

    def drain(self, streams: Iterable[Stream]) -> None:
        """Block until all that has been enqueued on ``streams`` is complete. Failures stay with the buffers."""
        with self.lock:
            events = [stream.record(next_id()) for stream in streams]
        for event in events:
            if event is not None and not event.done:
                self.backend.synchronize(event)

    def _bound_run_ahead(self) -> None:
        run_ahead = self._run_ahead
        if run_ahead and run_ahead[0].done:
            forget_done(run_ahead)
        while len(run_ahead) > RUN_AHEAD:
            oldest = run_ahead[0]
            self.wait(oldest, RUN_AHEAD_WAIT)  # an interrupt may end it: what is unfinished stays known
            if run_ahead and run_ahead[0] is oldest:
                run_ahead.popleft()
