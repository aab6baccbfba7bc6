"""Gpu: one GPU with its lanes, its events, and whether it is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import cupy
from cupy.cuda import runtime

from cuplace import errors
from cuplace.runtime.backends.cuda.failure import STICKY, is_sticky
from cuplace.runtime.backends.cuda.lane import HIGHEST_PRIORITY, Lane
from cuplace.runtime.backends.cuda.plan_caches import keep_apart

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.strand import HostWorker
    from cuplace.runtime.backends.cuda.timing import Meter
    from cuplace.runtime.submission import Submission

MOST_STREAMS = 32
"""Hardware queues of a GPU: with more streams than these, independent work would wait for each other by chance."""

_MOST_PEERS = 8  # peers with a lane of their own, each way

_ROLES = 4  # lanes of a partition: compute, upload, download, copies inside the GPU


class Gpu:
    """One GPU.

    Attributes:
        ordinal: CUDA's number of it.
        name: what the hardware calls itself.
        device: CuPy's object for it.
        lost: the error that ended its context, or None.
        spare_events: handles of CUDA events that nobody uses.
        timed_events: the same of events that tell times.
        meter: what measures the times of its work, while somebody wants them.
        uuid: its UUID as CuPy tells it: up to the first zero byte.
        taken: bytes that the pools of its partitions have from allocators.
    """

    def __init__(self, ordinal: int, peers: int, find_lost: Callable[[], errors.DeviceLostError | None]) -> None:
        """``peers`` is the number of other GPUs; ``find_lost`` looks for a GPU that was lost just now."""
        self.ordinal = ordinal
        self.device = cupy.cuda.Device(ordinal)
        properties = runtime.getDeviceProperties(ordinal)
        name = properties["name"]
        self.name: str = name.decode() if isinstance(name, bytes) else str(name)
        self.processors = int(properties["multiProcessorCount"])
        self.uuid: bytes = properties.get("uuid", b"")
        self.taken = 0
        self.lost: errors.DeviceLostError | None = None
        self.spare_events: deque[int] = deque()
        self.timed_events: deque[int] = deque()
        self.meter: Meter | None = None
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._partition_lanes = (MOST_STREAMS - 2 * min(peers, _MOST_PEERS)) // _ROLES
        self._find_lost = find_lost
        self._worker: HostWorker | None = None

    @property
    def in_use(self) -> bool:
        """Whether anything was enqueued on it."""
        return bool(self._lanes)

    def lane(self, role: str, number: int) -> Lane:
        """The lane of a role: ``compute``, ``upload``, ``download``, ``local`` of partition ``number``, or ``out`` to
        and ``in`` from GPU ``number``; ``clock`` 0 for what nobody waits for but the host. Where there are too many for
        the hardware, some share one."""
        most = _MOST_PEERS if role in ("in", "out") else self._partition_lanes
        key = (role, number % most)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane.create(self, 0 if role == "compute" else HIGHEST_PRIORITY)
            if role == "compute":
                keep_apart(lane)
        return lane

    def host_lane(self) -> tuple[Lane, HostWorker]:
        """The lane of the host strands of all partitions, and the thread that does their work; made at first use.

        It is one lane more than the hardware has queues for. What stands behind its latches by chance is late, and
        never held for good, since the host's work only waits for what was enqueued before it.
        """
        if self._worker is None:
            from cuplace.runtime.backends.cuda.strand import HostWorker

            self._worker = HostWorker(f"cuplace-host-{self.ordinal}")
        return self.lane("host", 0), self._worker

    def failed(self, error: BaseException) -> BaseException:
        """What an error of a call means for the work at hand: itself, or the loss of a GPU; of this one, unless
        another one is found to be lost."""
        if not is_sticky(error):
            return error
        return self._find_lost() or self.lose(error)

    def check(self) -> errors.DeviceLostError | None:
        """Find out whether a GPU that was healthy still answers; the error if it does not. Never blocks."""
        if self.lost is None:
            for lane in list(self._lanes.values())[:1]:
                status = int(runtime.streamQuery(lane.ptr))
                if status in STICKY:
                    return self.lose(runtime.CUDARuntimeError(status))
        return None

    def lose(self, error: BaseException) -> errors.DeviceLostError:
        """Give the GPU up: all that lives on it is poisoned from now on."""
        if self.lost is None:
            work = sorted(self._unfinished(), key=lambda submission: -submission.id)
            self.lost = errors.DeviceLostError(self.ordinal, self.name, str(error), list(map(str, work)))
        return self.lost

    def finish(self) -> None:
        """Wait for the end of all work."""
        if self._worker is not None:
            self._finish_host_work()
        for lane in self._lanes.values():
            lane.settle()

    def close(self) -> None:
        """Wait for the end of all work and give everything back."""
        self.finish()
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.close()
        for events in (self.spare_events, self.timed_events):
            while events and self.lost is None:
                runtime.eventDestroy(events.pop())

    def _finish_host_work(self) -> None:
        worker, self._worker = self._worker, None
        assert worker is not None
        lane = self._lanes["host", 0]
        lane.finish()
        worker.close()

    def _unfinished(self) -> set[Submission]:
        return {submission for lane in self._lanes.values() for submission in lane.unfinished()}
