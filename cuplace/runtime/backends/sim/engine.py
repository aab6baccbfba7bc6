"""Engine: runs the items of all streams of a simulated platform in an order that the seed chooses.

What is enqueued runs later, in a random linear extension of the order that the program really asked for: stream
order, executed waits and host waits, and nothing else. So a missing wait gives, for some seed, a wrong value.
When things happen on the machine is the clock's matter, which knows nothing of that order.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable

from cuplace import errors
from cuplace.runtime.backends.condition import Condition
from cuplace.runtime.backends.interrupts import Uninterrupted
from cuplace.runtime.backends.sim.clock import VirtualClock
from cuplace.runtime.backends.sim.links import Demand
from cuplace.runtime.backends.sim.stream import Item, SimLatch, SimStream
from cuplace.runtime.backends.uncollected import Uncollected

EAGERNESS = (0.0, 0.0, 0.1, 0.5, 0.9, 1.0)
"""Chance that an item runs at an enqueue, one of which a seed chooses: from fully lazy to fully eager."""


class Engine:
    """Runs the heads of streams in an order that the seed chooses. One lock, that of ``changed``, guards all."""

    def __init__(self, seed: int, eagerness: float | None, clock: VirtualClock) -> None:
        self.changed = Condition(threading.RLock())
        self.clock = clock
        self._busy: dict[SimStream, None] = {}  # streams with items, in a deterministic order
        self._random = random.Random(seed)
        self._eagerness = self._random.choice(EAGERNESS) if eagerness is None else eagerness

    def append(self, stream: SimStream, item: Item, demand: Demand, latch: SimLatch | None = None) -> None:
        """Queue an item, then run some, as many as this seed's eagerness and chance want."""
        with self.changed, Uncollected():
            last = stream.last
            after = [event.timed for event in item.waits] if last is None else [
                last.timed, *[event.timed for event in item.waits]
            ]  # fmt: skip
            if latch is None:
                item.timed = self.clock.enqueue(item.record, demand, after)
            else:
                item.timed = self.clock.hold(item.record, after)
                stream.latches[item] = latch
            item.before = last
            stream.last = item  # at once with the next two lines: no interrupt comes between stores and a call
            self._busy[stream] = None
            stream.items.append(item)
        self._run_some()

    def query(self, event: Item) -> bool:
        """Whether the event is complete; polling makes progress, so that polling loops end."""
        with self.changed:
            if not event.finished and self._random.random() < 0.5:
                self.step()
            return event.finished

    def synchronize(self, event: Item) -> None:
        """Run items until the event is complete, and by chance some more. The host's time moves on to its end."""
        with self.changed:
            while not event.finished:
                if self.step() or event.finished:  # a destructor that computes may have run it before the step
                    continue
                if not any(latch.held for stream in self._busy for latch in stream.latches.values()):
                    raise errors.DeadlockError(f"nothing can run, but {event.record} is not complete")
                self.changed.wait()
            with Uninterrupted(), Uncollected():
                self.clock.wait(event.timed)
                _tell_host(event)
            self._run_some()

    def release(self, latch: SimLatch, item: Item) -> None:
        """Open a latch."""
        with self.changed, Uninterrupted(), Uncollected():
            if latch.held:
                latch.held = False
                self.clock.open(item.timed)
                self.changed.notify_all()

    def finish(self, streams: Iterable[SimStream]) -> None:
        """Open all latches, run what is left and wait for it."""
        with self.changed, Uncollected():
            for stream in streams:
                for item, latch in list(stream.latches.items()):
                    self.release(latch, item)
            while self.step():
                pass
            for stream in streams:
                if stream.last is not None and stream.last.finished:
                    self.clock.wait(stream.last.timed)
                    _tell_host(stream.last)

    def take(self, demand: Demand) -> None:
        """The host does something that takes its time."""
        with self.changed, Uninterrupted(), Uncollected():
            self.clock.take(demand)

    def step(self) -> bool:
        """Run one item, chosen by the seed among the heads that may run; False if there is none."""
        with Uncollected():  # a destructor might wait for the very item that runs
            ready = [stream for stream in list(self._busy) if _may_run(stream)]
            if not ready:
                return False
            with Uninterrupted():
                self._run_head(self._random.choice(ready))
            return True

    def _run_some(self) -> None:
        with self.changed:
            while self._random.random() < self._eagerness and self.step():
                pass

    def _run_head(self, stream: SimStream) -> None:
        if not _may_run(stream):
            return  # a destructor that computes has run it meanwhile
        item = stream.items.popleft()
        if not stream.items:
            self._busy.pop(stream, None)  # a destructor that computes may have done so
        stream.latches.pop(item, None)
        item.error = _call(item)
        item.finished = True  # before what it held is dropped: a destructor may wait for it
        item.call = None
        item.needs = ()
        self.changed.notify_all()


def _may_run(stream: SimStream) -> bool:
    if not stream.items:
        return False
    item = stream.items[0]
    unseen = item.unseen
    while unseen:
        if not unseen[-1].finished:
            return False
        unseen.pop()
    if not stream.items or stream.items[0] is not item:
        return False  # a destructor that computes has been here
    return not stream.latches or item not in stream.latches or not stream.latches[item].held


def _tell_host(event: Item) -> None:
    """The host knows that an event is complete, and so is all that it comes after."""
    known = [event]
    while known:
        item = known.pop()
        if not item.done:
            item.done = True
            known += item.waits if item.before is None else [*item.waits, item.before]
            item.waits, item.before = [], None


def _call(item: Item) -> BaseException | None:
    for event in item.needs:
        if event.error is not None:
            return event.error
    try:
        if item.call is not None:
            item.call()
        return None
    except BaseException as error:
        return errors.with_user_line(error, item.record.name, item.record.line)
