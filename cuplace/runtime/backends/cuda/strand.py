"""HostStream: the strand on which NumPy computes in host memory, in order with CUDA's streams.

It is a lane like others, so that CUDA itself keeps the order in both directions. A piece of work on it is two
kernels: one tells the host that all that the work waits for is complete, the next is a latch that the host opens when
the work is done. Both, and the event behind them, are enqueued at once; a thread does the work in between. So no event
is ever waited for before it is recorded, and no caller waits for host work. The thread calls nothing of CUDA, since a
call may wait for what waits for the thread: it looks at a word of pinned memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace import errors
from cuplace.runtime.backends.base import Event, Work
from cuplace.runtime.backends.cuda import hooks
from cuplace.runtime.backends.cuda.lane import CudaEvent, HostHome, Outcome, query
from cuplace.runtime.backends.cuda.pinned import address_of
from cuplace.runtime.backends.cuda.stream import CudaStream
from cuplace.runtime.backends.interrupts import Uninterrupted
from cuplace.runtime.pieces import copy_host
from cuplace.runtime.staging import NO_STAGING, Staging

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.gpu import Gpu
    from cuplace.runtime.backends.cuda.host import HostCopies
    from cuplace.runtime.backends.cuda.lane import Lane
    from cuplace.runtime.backends.cuda.latch import CudaLatch, Latches
    from cuplace.runtime.device import Device
    from cuplace.runtime.submission import Submission

INLINE_SECONDS = 40e-6
"""Work estimated to be shorter than this is done by the caller, if all that it waits for is known to be complete."""

COPY_BYTES_PER_SECOND = 8e9

_SHORTEST_PAUSE = 20e-6
_LONGEST_PAUSE = 1e-3
_PATIENCE = 0.1  # a pause is this part of the time waited so far

Call = Callable[[], None]
IsPinned = Callable[[int], bool]


class HostWork:
    """A piece of work between two kernels of a lane."""

    __slots__ = ("_call", "_gpu", "_latch", "_needs", "_submission", "outcome")

    def __init__(
        self, call: Call, needs: Sequence[Outcome], latch: CudaLatch, gpu: Gpu, submission: Submission
    ) -> None:
        self.outcome = Outcome()
        self._call: Call | None = call
        self._needs = needs
        self._latch = latch
        self._gpu = gpu
        self._submission = submission

    def run(self) -> None:
        """Do the work when its time has come, and let the lane go on."""
        error = self._wait()
        if error is None:
            error = next((need.error for need in self._needs if need.error is not None), None)
        if error is None:
            error = _done(self._call, self._submission)
        self._call, self._needs = None, ()
        self.outcome.settle(error)
        self._latch.release()

    def _wait(self) -> BaseException | None:
        """Wait until the lane has come here; the error if its GPU is lost before."""
        start = time.perf_counter()
        while not self._latch.arrived:
            if self._gpu.lost is not None:
                return self._gpu.lost
            waited = time.perf_counter() - start
            time.sleep(min(max(waited * _PATIENCE, _SHORTEST_PAUSE), _LONGEST_PAUSE))
        return None


class HostWorker:
    """The thread that does the work of one lane, in its order; started when there is some."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[HostWork | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def append(self, work: HostWork) -> None:
        self._queue.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Do what there is, then end."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            work.run()
            del work


class HostStream(CudaStream):
    """The host strand of a device; the strands of the partitions of a GPU share a lane."""

    __slots__ = ("_done", "_is_pinned", "_last", "_waits", "_worker")

    def __init__(
        self, device: Device, lane: Lane, host: HostCopies, latches: Latches, worker: HostWorker,
        is_pinned: IsPinned,
    ) -> None:  # fmt: skip
        """``is_pinned(address)``: whether copies of CUDA may use the memory there, too."""
        super().__init__(device, "host", f"{device} host", lane, HostHome(), host, latches)
        self._worker = worker
        self._is_pinned = is_pinned
        self._waits: list[CudaEvent] = []
        self._last: CudaEvent | None = None
        self._done = False  # what is being enqueued has been done by the caller

    def wait(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        if not query(event):
            self._waits.append(event)

    def run(
        self, work: Work, reads: list[Any], writes: list[Any], scalars: tuple[Any, ...],
        needs: Sequence[Event], seconds: float, submission: Submission,
    ) -> None:  # fmt: skip
        if self._begins(needs, submission):
            self._do(lambda: work(reads, writes, scalars), (reads, writes), seconds, submission)

    def copy(
        self, source: Any, target: Any, path: str, needs: Sequence[Event], submission: Submission,
        staging: Staging = NO_STAGING,
    ) -> None:  # fmt: skip
        if self._begins(needs, submission) and target.nbytes:
            seconds = target.nbytes / COPY_BYTES_PER_SECOND
            self._do(lambda: copy_host(target, source), ((source,), (target,)), seconds, submission)

    def upload(self, source: np.ndarray[Any, Any], target: Any, submission: Submission) -> None:
        if not self._begins((), submission):
            return
        if self._is_idle():
            self._do(lambda: copy_host(target, source), ((), (target,)), 0.0, submission)
            return
        values = np.array(source, target.dtype)  # as of now
        self._do(lambda: copy_host(target, values), ((), (target,)), INLINE_SECONDS, submission)

    def upload_packed(
        self, sources: Sequence[np.ndarray[Any, Any]], targets: Sequence[Any], submission: Submission
    ) -> None:
        if self._begins((), submission):
            values = [np.array(source, target.dtype) for source, target in zip(sources, targets, strict=True)]
            self._do(lambda: _copy_all(values, targets), ((), targets), INLINE_SECONDS, submission)

    def hold(self, submission: Submission) -> CudaLatch:
        self._apply_waits()
        return super().hold(submission)

    def record(self, submission: int) -> CudaEvent | None:  # type: ignore[override]
        if self._done:
            self._done = False
            self._end_timing(self.lane)
            error = self._error
            self._ends()
            return None if error is None else CudaEvent(self, submission, self.lane, 0, 0, error)
        self._apply_waits()
        self._last = super().record(submission)
        return self._last

    def last_is(self, event: CudaEvent) -> None:
        self._last = event

    def enqueue(
        self, call: Call, uses: tuple[Sequence[Any], Sequence[Any]], needs: Sequence[Outcome], submission: Submission
    ) -> Outcome:
        """Enqueue work behind what is on the lane; its outcome. ``uses`` are the arrays that it reads and writes."""
        regions = [[region for array in arrays for region in self._regions(array)] for arrays in uses]
        with Uninterrupted():
            latch = self._latches.stand_in(self, (regions[0], regions[1]))
            work = HostWork(call, needs, latch, self.lane.gpu, submission)
            self._worker.append(work)
        return work.outcome

    def _do(
        self, call: Call, uses: tuple[Sequence[Any], Sequence[Any]], seconds: float, submission: Submission
    ) -> None:
        if seconds < INLINE_SECONDS and self._is_idle() and not self._outcomes:
            self._declare(uses)
            self._error = _done(call, submission)
            self._done = True
            return
        try:
            self._apply_waits()
            self._outcomes = (self.enqueue(call, uses, self._outcomes, submission),)
        except Exception as error:
            self._fails(error, submission)

    def _is_idle(self) -> bool:
        """Whether all that was enqueued, and all that is to be waited for, is complete."""
        self._waits = [event for event in self._waits if not query(event)]
        return not self._waits and (self._last is None or query(self._last))

    def _apply_waits(self) -> None:
        waits, self._waits = self._waits, []
        for event in waits:
            self.lane.wait(event)

    def _regions(self, array: Any) -> list[hooks.Region]:
        """What a test is told of an array: that it is used, if it is in pinned memory."""
        if hooks.kernel_access is None or not array.nbytes or not self._is_pinned(address_of(array)):
            return []
        return [hooks.Region(address_of(array), array.shape, array.strides, array.itemsize)]

    def _declare(self, uses: tuple[Sequence[Any], Sequence[Any]]) -> None:
        if hooks.host_access is not None:
            for arrays, written in zip(uses, (False, True), strict=True):
                for array in arrays:
                    declare(array, written, self._is_pinned)


def declare(array: np.ndarray[Any, Any], written: bool, is_pinned: IsPinned) -> None:
    """Tell a test that this thread is about to use an array, if it is in pinned memory."""
    if hooks.host_access is None or not array.nbytes or not is_pinned(address_of(array)):
        return
    if array.flags.c_contiguous:
        hooks.host_access(address_of(array), array.nbytes, written)
        return
    for i in range(len(array)):
        declare(array[i, ...] if array.ndim > 1 else array[i : i + 1], written, is_pinned)


def _done(call: Call | None, submission: Submission) -> BaseException | None:
    """Do it; the error if it fails."""
    submission.start = time.perf_counter_ns()
    try:
        if call is not None:
            call()
        return None
    except Exception as error:
        return errors.with_user_line(error, submission.name, submission.line)
    finally:
        submission.end = time.perf_counter_ns()


def _copy_all(sources: Sequence[Any], targets: Sequence[Any]) -> None:
    for source, target in zip(sources, targets, strict=True):
        copy_host(target, source)
