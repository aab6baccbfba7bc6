"""CudaStream: what the scheduler enqueues on. It runs work on one lane; a move may end on a lane of another GPU."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import cupy
import numpy as np

from cuplace import errors
from cuplace.runtime.backends.base import Event, Work
from cuplace.runtime.backends.cuda.copies import LocalMover, Mover
from cuplace.runtime.backends.cuda.failure import status_of
from cuplace.runtime.backends.cuda.lane import CudaEvent, HostHome, Lane, Outcome
from cuplace.runtime.backends.cuda.ring import RingFullError
from cuplace.runtime.backends.interrupts import Uninterrupted, is_interrupt
from cuplace.runtime.shortage import out_of_memory, reclaim
from cuplace.runtime.staging import NO_STAGING, Staging
from cuplace.runtime.submission import STAGING_WAIT

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.gpu import Gpu
    from cuplace.runtime.backends.cuda.host import HostCopies
    from cuplace.runtime.backends.cuda.latch import CudaLatch, Latches
    from cuplace.runtime.backends.cuda.ring import PinnedRing
    from cuplace.runtime.backends.cuda.timing import Timed
    from cuplace.runtime.device import Device
    from cuplace.runtime.submission import Submission

Release = Callable[[CudaEvent], None]
Home: TypeAlias = "Gpu | HostHome"


class CudaStream:
    """A queue of one device.

    Attributes:
        lane: where its work is enqueued first; waits are made there.
        home: the GPU whose memory its work writes, or the host.
        path: how the copies of a move stream travel; None for other streams.
    """

    __slots__ = (
        "_error",
        "_held",
        "_host",
        "_latches",
        "_outcomes",
        "_mover",
        "_open",
        "_outer",
        "_tail",
        "_timed",
        "device",
        "home",
        "lane",
        "name",
        "path",
        "role",
    )

    def __init__(
        self, device: Device, role: str, name: str, lane: Lane, home: Home, host: HostCopies, latches: Latches,
        mover: Mover | None = None,
    ) -> None:  # fmt: skip
        self.device = device
        self.role = role
        self.name = name
        self.lane = lane
        self.home = home
        self.path = None if mover is None else mover.path
        self._mover = mover or LocalMover()
        self._host = host
        self._latches = latches
        self._tail: tuple[CudaStream, Lane] = (self, lane)
        self._error: BaseException | None = None
        self._outcomes: tuple[Outcome, ...] = ()
        self._held: list[Release] = []
        self._open = False
        self._timed: Timed | None = None  # what is being enqueued, while a profile is open
        self._outer: list[tuple[Any, ...]] = []

    def wait(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        self.lane.wait(event)

    def run(
        self, work: Work, reads: list[Any], writes: list[Any], scalars: tuple[Any, ...],
        needs: Sequence[Event], seconds: float, submission: Submission,
    ) -> None:  # fmt: skip
        if self._begins(needs, submission):
            lane = self.lane
            try:
                with lane.device, lane.on:
                    work(reads, writes, scalars)
            except MemoryError as error:
                self._run_again(error, work, reads, writes, scalars, submission)
            except Exception as error:
                if is_interrupt(error):
                    raise
                self._fails(error, submission)

    def copy(
        self, source: Any, target: Any, path: str, needs: Sequence[Event], submission: Submission,
        staging: Staging = NO_STAGING,
    ) -> None:  # fmt: skip
        if self._begins(needs, submission) and target.nbytes:
            full, waited = self._move(source, target, submission, staging), False
            while full is not None:
                self.wait_for_room(full, waited)
                full, waited = self._move(source, target, submission, staging), True

    def upload(self, source: np.ndarray[Any, Any], target: Any, submission: Submission) -> None:
        if self._begins((), submission) and target.nbytes:
            try:
                self._host.upload(self, source, target)
            except Exception as error:
                if status_of(error) is None:  # not CUDA's: something is wrong with the source
                    raise
                self._fails(error, submission)

    def upload_packed(
        self, sources: Sequence[np.ndarray[Any, Any]], targets: Sequence[Any], submission: Submission
    ) -> None:
        if self._begins((), submission):
            try:
                self._host.upload_packed(self, sources, targets)
            except Exception as error:
                if status_of(error) is None:
                    raise
                self._fails(error, submission)

    def hold(self, submission: Submission) -> CudaLatch:
        self._begins((), submission)
        with Uninterrupted():
            return self._latches.hold(self)

    def record(self, submission: int) -> CudaEvent:
        stream, lane = self._tail
        if self._timed is not None:
            self._end_timing(lane)
        event = lane.record(stream, submission, self._error)
        event.outcomes = self._outcomes
        if stream is not self:
            stream.last_is(event)
        if self._held:
            self._release(event)
        self._ends()
        return event

    def _end_timing(self, lane: Lane) -> None:
        """What is being enqueued ends here: before its event, so that what waits for it begins later."""
        timed, self._timed = self._timed, None
        if timed is not None:
            timed.ends(lane)

    def _ends(self) -> None:
        """What was being enqueued is recorded. Last: a call that is interrupted before records once more."""
        self._error = None
        if not self._outer:
            self._open = False
        else:
            self._tail, self._error, self._outcomes, self._held, self._timed = self._outer.pop()

    def until_recorded(self, release: Release) -> None:
        """Call ``release(event)`` with the event that marks the end of what is being enqueued."""
        self._held.append(release)

    def release_held(self) -> None:
        """Do so now: the rest of what is being enqueued does not use it."""
        self._release(self._tail[1].record(self._tail[0], self.submission.id))

    @property
    def submission(self) -> Submission:
        """What is being enqueued."""
        return self.lane.recent[-1][1]

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Of the host work that comes before what is being enqueued, and that may fail."""
        return self._outcomes

    def awaits(self, outcome: Outcome) -> None:
        """What is being enqueued comes after work of the host that may fail."""
        self._outcomes = (*self._outcomes, outcome)

    def ends_on(self, stream: CudaStream) -> None:
        """What is being enqueued ends on another stream, which has been made to wait for this one."""
        self._tail = (stream, stream.lane)

    def wait_for_room(self, ring: PinnedRing, again: bool, begun: bool = False) -> None:
        """Wait for pinned memory. ``again``: not for the first time; ``begun``: a part of what is being enqueued is
        enqueued already."""
        start, awaited = self.device.backend.now(), None
        try:
            awaited = ring.wait_for_room(again)
        finally:
            self.device.scheduler.note_wait(STAGING_WAIT, 0 if awaited is None else awaited.submission, start)
            if self._timed is not None and not begun:
                self._timed.begins_now(self.lane)

    def last_is(self, event: CudaEvent) -> None:
        """``event`` marks the end of work that another stream was given, and that ended here."""

    def _release(self, event: CudaEvent) -> None:
        with Uninterrupted():
            held, self._held = self._held, []
            for release in held:
                release(event)

    def _move(self, source: Any, target: Any, submission: Submission, staging: Staging) -> PinnedRing | None:
        """Enqueue a copy; the ring that has no room for it, if there is one."""
        with Uninterrupted():  # it only enqueues; else memory could be lost between two calls
            try:
                self._mover.copy(self, source, target, staging)
            except RingFullError as full:
                return full.ring
            except Exception as error:
                self._fails(error, submission)
        return None

    def _begins(self, needs: Sequence[Event], submission: Submission) -> bool:
        """Note what is being enqueued; False where it must not run, since something that it needs has failed."""
        if self._open:  # a garbage collection has run a destructor that computes
            self._outer.append((self._tail, self._error, self._outcomes, self._held, self._timed))
            self._held, self._timed = [], None
        self._open = True
        self._tail = (self, self.lane)
        outcomes: tuple[Outcome, ...] = ()
        for event in needs:
            if event.error is not None:
                self._error = event.error
                return False
            assert isinstance(event, CudaEvent)
            if event.outcomes:
                outcomes += tuple(outcome for outcome in event.outcomes if not outcome.settled)
        self._outcomes = outcomes
        gpu = self.lane.gpu
        self._error = gpu.lost or self.home.lost
        self.lane.note(submission)
        if gpu.meter is not None:
            self._timed = gpu.meter.begins(self, submission)
        return self._error is None

    def _fails(self, error: BaseException, submission: Submission) -> None:
        failure = self.lane.gpu.failed(error)
        if failure is error:
            errors.with_user_line(error, submission.name, submission.line)
        self._error = failure

    def _run_again(
        self, error: MemoryError, work: Work, reads: list[Any], writes: list[Any], scalars: tuple[Any, ...],
        submission: Submission,
    ) -> None:  # fmt: skip
        """Out of memory for temporaries: once more after all dead memory has come back, unless the work that was
        broken off has already overwritten what it reads."""
        written = {array.data.mem.ptr for array in writes}
        if any(array.data.mem.ptr in written for array in reads):
            self._fails(error, submission)
            return
        lane, memory = self.lane, self.device.memory
        traceback.clear_frames(error.__traceback__)  # they hold the temporaries that did fit
        try:
            reclaim(memory)
            with lane.device, lane.on:
                work(reads, writes, scalars)
        except cupy.cuda.memory.OutOfMemoryError as again:
            needed = getattr(again, "_size", 0)
            what = f"temporary memory of {submission.name!r}"
            self._fails(out_of_memory(memory, needed, what, reason=str(again)), submission)
        except Exception as again:
            if is_interrupt(again):
                raise
            self._fails(again, submission)
