"""Strand: the cpu platform's stream, and the pool of workers that runs strands.

A strand is a FIFO of items. An item starts when it is at the head of its strand and the events it waits for are
complete; waits are continuations, so they never hold a worker. Whoever waits works: a thread in ``synchronize``
runs ready items itself. Small work whose inputs are ready runs at once in the calling thread, because handing it
to another thread would take longer than the work; somewhat larger work does so where no worker is idle, because a
worker gets the interpreter's lock only when the caller lets it go, and the caller lets it go inside such work.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from cuplace import errors
from cuplace.runtime.backends.base import Event, Work
from cuplace.runtime.backends.condition import Condition
from cuplace.runtime.backends.cpu.blas import SingleThreadedBlas
from cuplace.runtime.backends.interrupts import Uninterrupted, is_interrupt
from cuplace.runtime.backends.uncollected import Uncollected
from cuplace.runtime.device import Device
from cuplace.runtime.staging import NO_STAGING, Staging
from cuplace.runtime.submission import Submission
from cuplace.runtime.task import ComputeTask, Task

INLINE_SECONDS = 100e-6
"""Work and copies estimated to be shorter than this run in the calling thread if they can start at once: another thread
would need as long to get the interpreter's lock from the one that enqueues."""

SHARED_SECONDS = 150e-6
"""Work estimated to be shorter than this runs in the calling thread if it can start at once and no worker is idle."""

COPY_BYTES_PER_SECOND = 8e9

_now = time.perf_counter_ns


class Item:
    """One piece of queued work; it is also the event that marks its end."""

    __slots__ = (
        "stream", "submission", "record", "call", "needs", "blockers", "waiters", "offered", "done", "error", "watched",
    )  # fmt: skip

    def __init__(self, stream: Strand, record: Submission, call: Callable[[], None] | None, needs: Sequence[Event]):
        self.stream = stream
        self.submission = record.id
        self.record = record
        self.call = call
        self.needs = needs
        self.blockers = 0
        self.waiters: list[Item] = []
        self.offered = False  # its strand was told to be ready because of it
        self.done = False
        self.error: BaseException | None = None
        self.watched = False  # a thread sleeps until this item is done


class Gate:
    """A latch in a strand: an item that ends when the host releases it. Holds no worker."""

    def __init__(self, item: Item, pool: Pool) -> None:
        self._item = item
        self._pool = pool
        self._signal = Item(item.stream, item.record, None, ())
        with pool.lock:
            self._signal.waiters.append(item)
            item.blockers += 1

    @property
    def held(self) -> bool:
        return not self._signal.done

    def release(self) -> None:
        """Let the strand go on. Releasing twice does nothing."""
        with Uninterrupted(), self._pool.lock:
            if not self._signal.done:
                self._pool.wake(self._pool.complete(self._signal, None), self._signal)


class Strand:
    """A FIFO of items of one device."""

    __slots__ = ("device", "role", "name", "pool", "items", "last", "_pending")

    path = None  # copies travel as plans say

    def __init__(self, device: Device, role: str, name: str, pool: Pool) -> None:
        self.device = device
        self.role = role
        self.name = name
        self.pool = pool
        self.items: deque[Item] = deque()
        self.last: Item | None = None
        self._pending: list[Item] = []

    def wait(self, event: Event) -> None:
        if not event.done and event.stream is not self:
            assert isinstance(event, Item)
            self._pending.append(event)

    def run(
        self, work: Work, reads: list[Any], writes: list[Any], scalars: tuple[Any, ...],
        needs: Sequence[Event], seconds: float, submission: Submission,
    ) -> None:  # fmt: skip
        if self.items or self._pending or needs or (seconds > INLINE_SECONDS and self.pool.takes(seconds)):
            self._queue(lambda: work(reads, writes, scalars), needs, submission)
            return
        self._begin(submission)
        try:
            work(reads, writes, scalars)
        except Exception as error:
            if is_interrupt(error):
                raise
            self._fail(error, submission)
        submission.end = _now()

    def copy(
        self, source: Any, target: Any, path: str, needs: Sequence[Event], submission: Submission,
        staging: Staging = NO_STAGING,
    ) -> None:  # fmt: skip
        small = target.nbytes <= INLINE_SECONDS * COPY_BYTES_PER_SECOND
        if self.items or self._pending or needs or not small:
            self._queue(lambda: _copy(source, target), needs, submission)
            return
        self._begin(submission)
        _copy(source, target)
        submission.end = _now()

    def upload(self, source: np.ndarray[Any, Any], target: Any, submission: Submission) -> None:
        if self.items or self._pending:
            source = np.array(source, dtype=target.dtype)
            self._queue(lambda: _copy(source, target), (), submission)
            return
        self._begin(submission)
        _copy(source, target)
        submission.end = _now()

    def upload_packed(
        self, sources: Sequence[np.ndarray[Any, Any]], targets: Sequence[Any], submission: Submission
    ) -> None:
        if self.items or self._pending:
            copies = [np.array(source, dtype=target.dtype) for source, target in zip(sources, targets, strict=True)]
            self._queue(lambda: _copy_all(copies, targets), (), submission)
            return
        self._begin(submission)
        _copy_all(sources, targets)
        submission.end = _now()

    def hold(self, submission: Submission) -> Gate:
        item = self._item(None, (), submission)
        gate = Gate(item, self.pool)
        self._append(item)
        return gate

    def record(self, submission: int) -> Item | None:
        last = self.last
        if last is None or (last.done and last.error is None):
            return None
        return None if last.submission > submission else last  # a destructor queued it in the middle of this work

    def _begin(self, submission: Submission) -> None:
        """Work in the calling thread begins. All before it is complete; what a destructor queues in the middle of it is
        the latest of the strand afterwards."""
        self.last = None
        submission.start = _now()

    def _fail(self, error: Exception, submission: Submission) -> None:
        """Work in the calling thread has failed."""
        if self.last is not None:
            self._queue(lambda: _raise(error), (), submission)
            return
        item = Item(self, submission, None, ())
        item.done = True
        item.error = errors.with_user_line(error, submission.name, submission.line)
        self.last = item

    def _queue(self, call: Callable[[], None], needs: Sequence[Event], submission: Submission) -> None:
        self._append(self._item(call, needs, submission))

    def _item(self, call: Callable[[], None] | None, needs: Sequence[Event], submission: Submission) -> Item:
        item = Item(self, submission, call, needs)
        if self._pending:
            with self.pool.lock:
                for event in self._pending:
                    if not event.done:
                        event.waiters.append(item)
                        item.blockers += 1
            self._pending = []
        return item

    def _append(self, item: Item) -> None:
        self.pool.append(self, item)


def run_at_once(
    task: Task, strands: Sequence[Strand], shards: Iterable[tuple[Any, Any]], scalars: tuple[Any, ...]
) -> Sequence[int]:
    """See `base.RunAtOnce`. Work that calls libraries may be the user's function, which nobody calls twice."""
    if not isinstance(task, ComputeTask) or task.library or task.seconds > INLINE_SECONDS or not _all_idle(strands):
        return ()
    try:
        if task.within is None:
            return _run_all(task.run, shards, scalars)
        marks: list[int] = task.within(_run_all, task.run, shards, scalars)
        return marks
    except Exception as error:
        if is_interrupt(error):
            raise
        return ()


def _run_all(work: Callable[..., None], shards: Iterable[tuple[Any, Any]], scalars: tuple[Any, ...]) -> list[int]:
    """When the first began, and when each ended."""
    marks = [_now()]
    for reads, writes in shards:
        work(reads, writes, scalars)
        marks.append(_now())
    return marks


def copy_at_once(strands: Sequence[Strand], pairs: Iterable[tuple[Any, Any]], nbytes: int) -> Sequence[int]:
    """See `base.CopyAtOnce`."""
    if nbytes > INLINE_SECONDS * COPY_BYTES_PER_SECOND or not _all_idle(strands):
        return ()
    marks = [_now()]
    for source, target in pairs:
        target[...] = source
        marks.append(_now())
    return marks


def _all_idle(strands: Sequence[Strand]) -> bool:
    """Whether work could start on all of them. They count as complete then, before the work: a destructor may queue
    some in the middle of it."""
    for strand in strands:
        if strand.items or strand._pending:
            return False
        strand.last = None  # at once with the check: what fell may have held objects whose destructors queue work
    return True


def _raise(error: Exception) -> None:
    raise error


def _copy(source: Any, target: Any) -> None:
    """Cast as needed. For small arrays this takes a third of what np.copyto does."""
    target[...] = source


def _copy_all(sources: Sequence[np.ndarray[Any, Any]], targets: Sequence[Any]) -> None:
    for source, target in zip(sources, targets, strict=True):
        _copy(source, target)


def _workers() -> int:
    """One worker less than the cores that this process may use: the thread that waits is one more."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


class Pool:
    """Workers over the strands of one platform; started when the first item is queued."""

    def __init__(self, jitter: Callable[[], None] | None = None, workers: int | None = None) -> None:
        self.lock = threading.RLock()  # re-entrant: a garbage collection under it may run a destructor that computes
        self._jitter = jitter
        self._count = workers if workers is not None else _workers()
        self._idle = self._count
        self._changed = Condition(self.lock)
        self._ready: deque[Strand] = deque()
        self._appending: set[Strand] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._blas: SingleThreadedBlas | None = None

    def takes(self, seconds: float) -> bool:
        """Whether work that could start at once is better queued than run by the caller."""
        return seconds > SHARED_SECONDS or self._idle > len(self._ready)

    def append(self, strand: Strand, item: Item) -> None:
        with self.lock:
            if self._blas is None:
                self._start()
            self._appending.add(strand)
            try:
                strand.last = item  # at once with the next line: no interrupt comes between a store and a call
                strand.items.append(item)
                self._changed.notify(self._offer(strand))
            except BaseException:  # an interrupt: what is queued must run
                self._offer(strand)
                raise
            self._appending.discard(strand)

    def _offer(self, strand: Strand) -> int:
        """Let the head of a strand run, if it may and was not let before; how many strands became ready."""
        if strand.items:
            head = strand.items[0]
            if not head.blockers and not head.offered:
                head.offered = True  # at once with the next line
                self._ready.append(strand)
                return 1
        return 0

    def synchronize(self, event: Item) -> None:
        """Run ready items in the calling thread until ``event`` is complete."""
        try:
            while not event.done:
                if self._ready:
                    with Uninterrupted(), Uncollected():  # a destructor might wait for the work that it interrupts
                        self._run_one()
                else:
                    self._wait_for_change(event)
        finally:
            if self._ready:
                with self.lock:
                    self._changed.notify()  # what this thread does not take any more is for another one

    def _run_one(self) -> None:
        with self.lock:
            strand = self._ready.popleft() if self._ready else None
        if strand is not None:
            self._run_head(strand)

    def _wait_for_change(self, event: Item) -> None:
        with self.lock:
            for strand in list(self._appending):  # a destructor that computes waits in the middle of an append
                self._offer(strand)
            while not self._ready and not event.done:
                event.watched = True
                self._changed.wait()

    def complete(self, item: Item, error: BaseException | None) -> int:
        """Mark an item as done and let go on what waited for it; how many strands became ready.

        The caller holds the lock, and wakes other threads afterwards.
        """
        item.error = error
        item.done = True
        ready = 0
        for waiter in item.waiters:
            waiter.blockers -= 1
            ready += self._offer(waiter.stream)
        item.waiters = []
        return ready

    def wake(self, count: int, item: Item) -> None:
        """Wake threads for ``count`` ready strands, and those that sleep until ``item`` is done."""
        if item.watched:
            self._changed.notify_all()
        elif count > 0:
            self._changed.notify(count)

    def close(self) -> None:
        with self.lock:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=5)

    def _start(self) -> None:
        with Uninterrupted():
            self._blas = SingleThreadedBlas()
            for i in range(self._count):
                thread = threading.Thread(target=self._work, name=f"cuplace-cpu-{i}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _work(self) -> None:
        finished = 0
        while True:
            with self.lock:
                self._idle += finished
                while not self._ready and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                self._idle -= 1
                strand = self._ready.popleft()
            if self._jitter is not None:
                self._jitter()
            self._run_head(strand)
            finished = 1

    def _run_head(self, strand: Strand) -> None:
        item = strand.items[0]
        error = self._call(item)
        # The arrays that the call holds are released here, outside the lock: the next owner may run finalizers.
        item.call = None
        item.needs = ()
        with self.lock:
            strand.items.popleft()
            ready = self.complete(item, error)
            ready += self._offer(strand)
            self.wake(ready - 1, item)  # this thread takes one of them

    def _call(self, item: Item) -> BaseException | None:
        for event in item.needs:
            if event.error is not None:
                return event.error
        if item.call is None:
            return None
        item.record.start = _now()
        try:
            if item.record.task.library:
                assert self._blas is not None
                with self._blas:
                    item.call()
            else:
                item.call()
            return None
        except BaseException as error:
            return errors.with_user_line(error, item.record.name, item.record.line)
        finally:
            item.record.end = _now()
