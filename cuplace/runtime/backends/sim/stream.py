"""Streams of the simulator, and the engine that runs them in a seeded random order.

What is enqueued runs later, in a random linear extension of the order that the program really asked for: stream
order, executed waits and host waits, and nothing else. So a missing wait gives, for some seed, a wrong value.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cuplace import errors
from cuplace.runtime.backends.base import Event, Work
from cuplace.runtime.backends.interrupts import Uninterrupted
from cuplace.runtime.device import Device
from cuplace.runtime.submission import Submission

_now = time.perf_counter_ns

EAGERNESS = (0.0, 0.0, 0.1, 0.5, 0.9, 1.0)
"""Chance that an item runs at an enqueue, one of which a seed chooses: from fully lazy to fully eager."""


class Item:
    """One piece of queued work; it is also the event that marks its end.

    Attributes:
        before: what the stream runs before it; None once the host knows that it is complete.
        finished: whether it has run.
        done: whether the host knows that it is complete: it has waited for it, or for something that comes after
            it. What has run by chance is not done, so that what waits for what is the same for every seed.
    """

    __slots__ = ("stream", "submission", "record", "call", "needs", "waits", "before", "finished", "done", "error")

    def __init__(
        self, stream: SimStream, record: Submission, call: Callable[[], None] | None, needs: Sequence[Event],
        waits: list[Item],
    ) -> None:  # fmt: skip
        self.stream = stream
        self.submission = record.id
        self.record = record
        self.call = call
        self.needs = needs
        self.waits = waits
        self.before: Item | None = None
        self.finished = False
        self.done = False
        self.error: BaseException | None = None


class SimLatch:
    """A latch in a simulated stream: an item that cannot run until the host releases it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.held = True

    def release(self) -> None:
        """Let the stream go on. Releasing twice does nothing."""
        with self._engine.changed:
            self.held = False
            self._engine.changed.notify_all()


class SimStream:
    """A FIFO of items of one device."""

    path = None  # copies travel as plans say

    def __init__(self, device: Device, role: str, name: str, engine: Engine) -> None:
        self.device = device
        self.role = role
        self.name = name
        self.items: deque[Item] = deque()
        self.latches: dict[Item, SimLatch] = {}
        self._engine = engine
        self._last: Item | None = None
        self._waits: list[Item] = []

    def wait(self, event: Event) -> None:
        assert isinstance(event, Item)
        self._waits.append(event)

    def run(
        self, work: Work, reads: list[Any], writes: list[Any], scalars: tuple[Any, ...],
        needs: Sequence[Event], seconds: float, submission: Submission,
    ) -> None:  # fmt: skip
        views = [_read_only(array) for array in reads]
        self._queue(lambda: work(views, writes, scalars), needs, submission)

    def copy(self, source: Any, target: Any, path: str, needs: Sequence[Event], submission: Submission) -> None:
        self._queue(lambda: np.copyto(target, source), needs, submission)

    def upload(self, source: np.ndarray[Any, Any], target: Any, submission: Submission) -> None:
        snapshot = np.array(source, dtype=target.dtype)
        self._queue(lambda: np.copyto(target, snapshot), (), submission)

    def hold(self, submission: Submission) -> SimLatch:
        latch = SimLatch(self._engine)
        item = self._queue(None, (), submission, latch)
        assert item.stream is self
        return latch

    def record(self, submission: int) -> Item | None:
        return self._last

    def _queue(
        self, call: Callable[[], None] | None, needs: Sequence[Event], submission: Submission,
        latch: SimLatch | None = None,
    ) -> Item:  # fmt: skip
        item = Item(self, submission, call, needs, self._waits)
        self._waits = []
        with self._engine.changed:
            if latch is not None:
                self.latches[item] = latch
            item.before = self._last
            self._last = item  # at once with the next two lines: no interrupt comes between stores and a call
            self._engine.busy[self] = None
            self.items.append(item)
        self._engine.after_enqueue()
        return item


class Engine:
    """Runs the heads of streams in an order that the seed chooses."""

    def __init__(self, seed: int, eagerness: float | None) -> None:
        self.busy: dict[SimStream, None] = {}  # streams with items, in a deterministic order
        self.changed = threading.Condition(threading.RLock())
        self._random = random.Random(seed)
        self._eagerness = self._random.choice(EAGERNESS) if eagerness is None else eagerness

    def after_enqueue(self) -> None:
        """Run some items, as many as this seed's eagerness and chance want."""
        with self.changed:
            while self._random.random() < self._eagerness and self.step():
                pass

    def query(self, event: Item) -> bool:
        """Whether the event is complete; polling makes progress, so that polling loops end."""
        with self.changed:
            if not event.finished and self._random.random() < 0.5:
                self.step()
            return event.finished

    def synchronize(self, event: Item) -> None:
        """Run items until the event is complete, and by chance some more."""
        with self.changed:
            while not event.finished:
                if self.step():
                    continue
                if not any(latch.held for stream in self.busy for latch in stream.latches.values()):
                    raise errors.DeadlockError(f"nothing can run, but {event.record} is not complete")
                self.changed.wait()
            _tell_host(event)
            self.after_enqueue()

    def step(self) -> bool:
        """Run one item, chosen by the seed among the heads that may run; False if there is none."""
        ready = [stream for stream in self.busy if _may_run(stream)]
        if not ready:
            return False
        with Uninterrupted():
            self._run_head(self._random.choice(ready))
        return True

    def _run_head(self, stream: SimStream) -> None:
        item = stream.items.popleft()
        if not stream.items:
            del self.busy[stream]
        stream.latches.pop(item, None)
        item.error = _call(item)
        item.call = None
        item.needs = ()
        item.finished = True
        self.changed.notify_all()


def _may_run(stream: SimStream) -> bool:
    item = stream.items[0]
    latch = stream.latches.get(item)
    return all(event.finished for event in item.waits) and (latch is None or not latch.held)


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
    item.record.start = _now()
    try:
        if item.call is not None:
            item.call()
        return None
    except BaseException as error:
        return errors.with_user_line(error, item.record.name, item.record.line)
    finally:
        item.record.end = _now()


def _read_only(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view
