"""VirtualClock: when everything happens on a simulated machine, and what time it is for the host.

Work begins when the stream's work before it has ended, the events it waits for are complete, it has been enqueued,
and an engine is free where it copies. It takes its latency, then what its share of the machine allows. The time of
the host moves on with each piece of work that it enqueues, and when it waits. Nothing here depends on the order in
which the simulator computes values.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from cuplace import errors
from cuplace.runtime.backends.sim.fluid import Flow
from cuplace.runtime.backends.sim.links import NO_DEMAND, Demand
from cuplace.runtime.submission import Submission
from cuplace.runtime.topology import MICRO

NANO = 1e-9
BEGIN = 1e-6
"""When a platform is opened. Not 0, which in records means that a time is not known."""


class Timed:
    """A piece of work in virtual time, in seconds.

    Attributes:
        record: the submission record that is told the times, if there is one.
        blockers: what has to happen before it can begin.
        ready: the earliest moment at which it can begin, as far as is known.
        end: when it ended; None until then.
    """

    __slots__ = ("record", "demand", "blockers", "waiters", "ready", "start", "end")

    def __init__(self, record: Submission | None, demand: Demand, ready: float) -> None:
        self.record = record
        self.demand = demand
        self.blockers = 0
        self.waiters: list[Timed] = []
        self.ready = ready
        self.start = 0.0
        self.end: float | None = None


class VirtualClock:
    """The clock of one platform. Its callers hold the engine's lock, and let no garbage be collected meanwhile.

    Attributes:
        host: what time it is for the host, in seconds.
        submit: what it costs the host to enqueue a piece of work, in seconds.
    """

    def __init__(self, submit_us: float) -> None:
        self.host = BEGIN
        self.submit = submit_us * MICRO
        self._now = BEGIN  # up to here everything has been simulated; never later than the host's time, but in waits
        self._order = 0
        self._agenda: list[tuple[float, int, Callable[[Any, int], None], Any, int]] = []
        self._queue: list[Timed] = []  # ready, but an engine that it needs is busy

    @property
    def nanoseconds(self) -> int:
        """What time it is for the host, as records have it."""
        return _nanoseconds(self.host)

    # ------------------------------------------------------------------ what the host does

    def enqueue(self, record: Submission, demand: Demand, after: Iterable[Timed]) -> Timed:
        """The host enqueues work that comes after other work."""
        record.enqueue = _nanoseconds(self.host)
        self.host += self.submit
        return self._add(Timed(record, demand, self.host), after)

    def hold(self, record: Submission, after: Iterable[Timed]) -> Timed:
        """The host enqueues a latch, which ends when it is opened."""
        record.enqueue = _nanoseconds(self.host)
        self.host += self.submit
        latch = Timed(record, NO_DEMAND, self.host)
        latch.blockers = 1
        return self._add(latch, after)

    def open(self, latch: Timed) -> None:
        """The host opens a latch."""
        self._unblock(latch, self.host)

    def wait(self, work: Timed) -> None:
        """The host waits for work.

        Raises:
            DeadlockError: it can never end.
        """
        while work.end is None:
            if not self._agenda:
                raise errors.DeadlockError(f"in virtual time nothing can run, but {work.record} is not complete")
            self._now, _, happen, what, number = heapq.heappop(self._agenda)
            happen(what, number)
        self.host = max(self.host, work.end)

    def take(self, demand: Demand) -> None:
        """The host does something itself, and waits for its end."""
        self.wait(self._add(Timed(None, demand, self.host), ()))

    # ------------------------------------------------------------------ what happens

    def _add(self, work: Timed, after: Iterable[Timed]) -> Timed:
        for other in after:
            if other.end is None:
                other.waiters.append(work)
                work.blockers += 1
            else:
                work.ready = max(work.ready, other.end)
        if not work.blockers:
            self._at(work.ready, self._become_ready, work)
        return work

    def _at(self, time: float, happen: Callable[[Any, int], None], what: Any, number: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (max(time, self._now), self._order, happen, what, number))

    def _unblock(self, work: Timed, time: float) -> None:
        work.ready = max(work.ready, time)
        work.blockers -= 1
        if not work.blockers:
            self._at(work.ready, self._become_ready, work)

    def _become_ready(self, work: Timed, _: int) -> None:
        self._queue.append(work)
        self._begin_what_can()

    def _begin_what_can(self) -> None:
        waiting, self._queue = self._queue, []
        for work in waiting:
            engines = work.demand.engines
            if all(engine.free for engine in engines):
                for engine in engines:
                    engine.free -= 1
                work.start = self._now
                self._at(self._now + work.demand.latency, self._progress, work)
            else:
                self._queue.append(work)

    def _progress(self, work: Timed, _: int) -> None:
        demand = work.demand
        if demand.units:
            flow = Flow(demand.units, demand.uses, demand.weight, demand.most, work)
            self._foresee(flow.start(self._now))
        else:
            self._end(work)

    def _foresee(self, changed: list[Flow]) -> None:
        for flow in changed:
            self._at(flow.end_time(), self._run_out, flow, flow.version)

    def _run_out(self, flow: Flow, version: int) -> None:
        if version == flow.version:  # else its rate has changed since this was foreseen
            self._foresee(flow.end(self._now))
            assert isinstance(flow.owner, Timed)
            self._end(flow.owner)

    def _end(self, work: Timed) -> None:
        work.end = self._now
        if work.record is not None:
            work.record.start, work.record.end = _nanoseconds(work.start), _nanoseconds(work.end)
        for engine in work.demand.engines:
            engine.free += 1
        for waiter in work.waiters:
            self._unblock(waiter, work.end)
        work.waiters = []
        if self._queue:
            self._begin_what_can()


def _nanoseconds(seconds: float) -> int:
    return round(seconds / NANO)
