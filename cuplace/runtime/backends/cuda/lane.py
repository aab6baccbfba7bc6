"""Lane: a CUDA stream, and events that mark points in it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import cupy
from cupy.cuda import runtime

from cuplace import errors
from cuplace.runtime.backends.cuda.failure import NOT_READY, is_sticky
from cuplace.runtime.remains import ALONE

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.foreign import ForeignStream
    from cuplace.runtime.backends.cuda.gpu import Gpu
    from cuplace.runtime.backends.cuda.stream import CudaStream
    from cuplace.runtime.submission import Submission

HIGHEST_PRIORITY = -100
"""CUDA clamps it to what the GPU has. Transfers are short and others wait for them, so they go before compute."""

_KEPT = 16  # submissions that a lane can name when its GPU is lost
_WATCHED = 16  # one event of so many is asked whether it is complete
_SPINNING = 1e-3  # seconds of polling without a pause: a sleep would be a large part of so short a wait
_PATIENCE = 0.02  # afterwards a pause is this part of the time waited so far
_LONGEST_PAUSE = 1e-3

_disable_timing = 2


class HostHome:
    """The home of work that writes memory of the host, which is not lost with a GPU."""

    lost: errors.DeviceLostError | None = None


class Outcome:
    """How work of the host ended that a lane waits for, and that nothing of CUDA's tells of."""

    __slots__ = ("error", "settled")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.settled = False

    def settle(self, error: BaseException | None) -> None:
        self.error = error
        self.settled = True


class CudaEvent:
    """A point in a lane. Complete lanes make it ``done`` without a call: later events of a lane imply earlier ones."""

    __slots__ = ("__del__", "_error", "handle", "lane", "outcomes", "seq", "stream", "submission")

    __del__: Callable[[], object]

    def __init__(
        self,
        stream: CudaStream | ForeignStream,
        submission: int,
        lane: Lane,
        seq: int,
        handle: int,
        error: BaseException | None,
    ) -> None:
        self.stream: Any = stream
        self.submission = submission
        self.lane = lane
        self.seq = seq
        self.handle = handle
        self.outcomes: tuple[Outcome, ...] = ()  # of the host work that comes before it, as far as it may fail
        self._error = error
        if handle:
            # Any thread and any moment: no call of CUDA, the handle is only put back, by functions of C alone.
            self.__del__ = partial(lane.gpu.spare_events.append, handle)

    @property
    def done(self) -> bool:
        return self.seq <= self.lane.completed or self.lane.gpu.lost is not None

    @property
    def error(self) -> BaseException | None:
        """What failed: the work itself, or the GPU that it ran on before it was complete, or the GPU whose memory
        it wrote."""
        if self._error is not None:
            return self._error
        for outcome in self.outcomes:
            if outcome.error is not None:
                return outcome.error
        lane = self.lane
        if self.seq > lane.completed and lane.gpu.lost is not None:
            return lane.gpu.lost
        home: Gpu | HostHome = self.stream.home
        return home.lost


class Lane:
    """A non-blocking CUDA stream of one GPU; several ``CudaStream`` may share one.

    Attributes:
        gpu: the GPU that it belongs to.
        ptr: CUDA's handle.
        device, on: CuPy's objects; ``with lane.device, lane.on:`` makes them current.
        lasting: whether it is ours: made once, and not outlived by its handle.
        completed: the number of the latest event that is known to be complete.
        recent: the latest submissions with the numbers of their events, for reports.
    """

    def __init__(self, gpu: Gpu, ptr: int) -> None:
        self.gpu = gpu
        self.device = gpu.device
        self.ptr = ptr
        self.on = cupy.cuda.Stream.from_external(self)
        self.lasting = False
        self.completed = 0
        self.recent: deque[tuple[int, Submission]] = deque(maxlen=_KEPT)
        self._issued = 0
        self._watched: CudaEvent | None = None
        self._waited: dict[Lane, int] = {}  # the latest event of each other lane that this one has waited for
        self._lock = threading.RLock()  # re-entrant: a destructor that computes may run under it

    @classmethod
    def create(cls, gpu: Gpu, priority: int) -> Lane:
        """A new stream of ``gpu``; of two priorities the lower number goes first."""
        with gpu.device:
            lane = cls(gpu, int(runtime.streamCreateWithPriority(runtime.streamNonBlocking, priority)))
        lane.lasting = True
        return lane

    def __cuda_stream__(self) -> tuple[int, int]:
        """CUDA's protocol for streams: (version, handle)."""
        return 0, self.ptr

    def record(
        self, stream: CudaStream | ForeignStream, submission: int, error: BaseException | None = None
    ) -> CudaEvent:
        """An event after all that was enqueued. ``error`` is what it reports once done."""
        gpu = self.gpu
        if gpu.lost is not None:
            return CudaEvent(stream, submission, self, 0, 0, error or gpu.lost)
        handle = _spare(gpu.spare_events)
        if not handle:
            with gpu.device:
                handle = int(runtime.eventCreateWithFlags(_disable_timing))
        with self._lock:  # the order of the numbers is the order in the stream, whichever threads record
            try:
                seq = 0
                while seq != self._issued + 1:  # again where a destructor has recorded meanwhile
                    seq = self._issued + 1
                    runtime.eventRecord(handle, self.ptr)
            except runtime.CUDARuntimeError as failure:
                gpu.spare_events.append(handle)
                return CudaEvent(stream, submission, self, 0, 0, error or gpu.failed(failure))
            self._issued = seq
        event = CudaEvent(stream, submission, self, seq, handle, error)
        if seq % _WATCHED == 0 and error is None:  # an error holds the frames of its traceback, which hold arrays
            self._watch(event)
        return event

    def wait(self, event: CudaEvent) -> None:
        """What is enqueued from now on starts only after ``event`` is complete."""
        other, waited = event.lane, self._waited
        if other is self or event.seq <= waited.get(other, 0) or event.done or self.gpu.lost is not None:
            return
        try:
            runtime.streamWaitEvent(self.ptr, event.handle)
            if other.lasting:
                waited[other] = event.seq
        except runtime.CUDARuntimeError as failure:
            if not is_sticky(failure):
                raise
            self.gpu.failed(failure)

    def _watch(self, event: CudaEvent) -> None:
        """Keep ``completed`` close to the truth also where nobody waits, so that events are forgotten in time."""
        if self._watched is None or query(self._watched):
            self._watched = event

    def complete(self, seq: int) -> None:
        """Note that the events up to this number are complete."""
        if seq > self.completed:
            self.completed = seq

    def note(self, submission: Submission) -> None:
        """Remember what is being enqueued, for the report if the GPU is lost."""
        self.recent.append((self._issued + 1, submission))

    def unfinished(self) -> list[Submission]:
        """The latest submissions that are not known to be complete."""
        return [submission for seq, submission in list(self.recent) if seq > self.completed]

    def finish(self) -> None:
        """Wait for the end of all work, letting other threads work meanwhile."""
        while self.gpu.lost is None and runtime.streamQuery(self.ptr) == NOT_READY:
            time.sleep(_LONGEST_PAUSE)

    def settle(self) -> None:
        """Wait for the end of all work, and know of it."""
        if self._done(runtime.streamSynchronize):
            self.complete(self._issued)

    def close(self) -> None:
        """Wait for the end of all work and give the stream back."""
        self.settle()
        self._done(runtime.streamDestroy)

    def _done(self, call: Callable[[int], object]) -> bool:
        """Do something with the stream; False where its GPU is lost, or is found to be."""
        if self.gpu.lost is not None:
            return False
        try:
            call(self.ptr)
        except runtime.CUDARuntimeError as failure:
            self.gpu.failed(failure)
            return False
        return True


def _spare(handles: deque[int]) -> int:
    """A handle that no event has any more; 0 if there is none."""
    try:
        handle = handles.pop()
    except IndexError:
        return 0
    if getrefcount(handle) > ALONE:
        handles.appendleft(handle)
        return 0
    return handle


def query(event: CudaEvent) -> bool:
    """Whether ``event`` is complete. Never blocks."""
    if event.done:
        return True
    lane = event.lane
    status = runtime.eventQuery(event.handle)
    if status == NOT_READY:
        return False
    if status == 0:
        lane.complete(event.seq)
        return True
    error = runtime.CUDARuntimeError(status)
    if not is_sticky(error):
        raise error
    lane.gpu.failed(error)
    return True


def synchronize(event: CudaEvent) -> None:
    """Wait until ``event`` is complete.

    By polling, since a wait inside CUDA could not be interrupted: without pauses at first, then with pauses that
    are a small part of the time waited so far.
    """
    start = time.perf_counter()
    while not query(event):
        waited = time.perf_counter() - start
        if waited > _SPINNING:
            time.sleep(min(waited * _PATIENCE, _LONGEST_PAUSE))
