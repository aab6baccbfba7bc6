"""ForeignStream: a stream of the user's, on which the scheduler records and waits, and enqueues nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuplace.runtime.backends.base import Event
from cuplace.runtime.backends.cuda.lane import CudaEvent, Lane

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.gpu import Gpu
    from cuplace.runtime.device import Device


class ForeignStream:
    """A stream that somebody else made, on a device of ours; also the null stream (handle 0 or 1) and the one of the
    thread (handle 2), which mean those of the device. Equal handles are the same stream."""

    __slots__ = ("_lane", "_owner", "device", "handle", "home", "name", "role")

    path = None  # nothing of ours travels on it

    def __init__(self, device: Device, gpu: Gpu, handle: int, owner: object = None) -> None:
        """``owner`` is what destroys the stream when it dies, where it is known: it is kept alive."""
        self._owner = owner
        self.device = device
        self.role = "foreign"
        self.name = f"{device} stream {handle:#x}"
        self.handle = handle
        self.home = gpu
        # A lane of its own each time: nothing may be concluded from the events of an earlier stream with this
        # handle, which may have been destroyed since.
        self._lane = Lane(gpu, handle)

    def wait(self, event: Event) -> None:
        """What the user enqueues from now on starts only after ``event`` is complete."""
        assert isinstance(event, CudaEvent)
        with self.home.device:
            self._lane.wait(event)

    def record(self, submission: int) -> CudaEvent:
        """An event after all that the user has enqueued."""
        with self.home.device:
            return self._lane.record(self, submission)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ForeignStream) and (self.home, self.handle) == (other.home, other.handle)

    def __hash__(self) -> int:
        return hash((self.home.ordinal, self.handle))
