"""Watch: lets a detector see every call that a platform's streams and its backend execute.

Watched objects change their class for a subclass that does what they always do and tells the detector. Who holds a
stream, an event or the backend keeps it, and what is not watched runs the same code as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.runtime.backends.uncollected import Uncollected
from cuplace.runtime.caller import caller
from cuplace.runtime.config import config
from cuplace.runtime.order.detector import Detector
from cuplace.runtime.staging import NO_STAGING, Staging

if TYPE_CHECKING:
    from cuplace.runtime.device import Device
    from cuplace.runtime.scheduler import Scheduler
    from cuplace.runtime.submission import Submission


class Watch:
    """The streams, the backend and the GPUs' memory under watch, from the making of this until ``end()``."""

    def __init__(self, scheduler: Scheduler, devices: Sequence[Device]) -> None:
        self.detector = Detector()
        self._scheduler = scheduler
        self._devices = devices
        self._watched: dict[type, type] = {}
        self._plain: dict[type, type] = {}
        with scheduler.lock:
            for thing, make in self._parts():
                self.follow(thing, make)

    def follow(self, thing: Any, make: Callable[[Any, Watch], type]) -> None:
        """Watch one object: ``make(its class, watch)`` gives the class that it has from now on."""
        plain = type(thing)
        if plain in self._plain:
            return
        watched = self._watched.get(plain)
        if watched is None:
            watched = self._watched[plain] = make(plain, self)
            self._plain[watched] = plain
        thing.__class__ = watched

    def end(self) -> None:
        """Stop watching. What events of the time under watch tell afterwards changes nothing any more."""
        with self._scheduler.lock:
            for thing, _ in self._parts():
                thing.__class__ = self._plain[type(thing)]

    def _parts(self) -> list[tuple[Any, Callable[[Any, Watch], type]]]:
        parts: list[tuple[Any, Callable[[Any, Watch], type]]]
        streams = [stream for device in self._devices for stream in device.streams()]
        parts = [*[(stream, watched_stream) for stream in streams], (self._scheduler.backend, watched_backend)]
        if self._scheduler.backend.xp is not np:
            pools = [arena.pool for device in self._devices for arena in device.memory.arenas.values()]
            parts += [(pool, watched_pool) for pool in pools]
        return parts


def watched_stream(plain: Any, watch: Watch) -> type:
    """A class of streams that tell what work they are given, for which events they wait and what they record."""
    detector = watch.detector

    class Watched(plain):  # type: ignore[misc]
        __slots__ = ()

        def wait(self, event: Any) -> None:
            with Uncollected():
                super().wait(event)
                detector.waited(self, event)

        def run(
            self, work: Any, reads: Sequence[Any], writes: Sequence[Any], scalars: Any, needs: Any, seconds: float,
            submission: Submission,
        ) -> None:  # fmt: skip
            with Uncollected():
                detector.works(self, submission, reads, writes)
            super().run(work, reads, writes, scalars, needs, seconds, submission)

        def copy(
            self, source: Any, target: Any, path: str, needs: Any, submission: Submission,
            staging: Staging = NO_STAGING,
        ) -> None:  # fmt: skip
            packed = [memory for memory in staging if memory is not None]
            with Uncollected():
                detector.works(self, submission, (source,), (target, *packed))
            super().copy(source, target, path, needs, submission, staging)

        def upload(self, source: Any, target: Any, submission: Submission) -> None:
            with Uncollected():
                detector.reads_on_host(source, "reading the source of an upload", submission.line)
                detector.works(self, submission, (), (target,))
            super().upload(source, target, submission)

        def upload_packed(self, sources: Sequence[Any], targets: Sequence[Any], submission: Submission) -> None:
            with Uncollected():
                for source in sources:
                    detector.reads_on_host(source, "reading the source of an upload", submission.line)
                detector.works(self, submission, (), targets)
            super().upload_packed(sources, targets, submission)

        def record(self, submission: int) -> Any:
            with Uncollected():
                event = super().record(submission)
                if event is not None:
                    watch.follow(event, watched_event)
                detector.recorded(self, event)
            return event

    return Watched


def watched_event(plain: Any, watch: Watch) -> type:
    """A class of events that tell when somebody has seen that they are complete."""
    done, detector = plain.done, watch.detector

    class Watched(plain):  # type: ignore[misc]
        __slots__ = ()

        @property
        def done(self) -> bool:
            found: bool = done.__get__(self)
            if found:
                with Uncollected():
                    detector.completed(self)
            return found

        @done.setter
        def done(self, value: bool) -> None:
            done.__set__(self, value)

    return Watched


def watched_backend(plain: Any, watch: Watch) -> type:
    """A class of backends whose new streams are watched, and that tell what the host waits for and reads."""
    detector = watch.detector

    def reads(array: Any) -> None:
        with Uncollected():
            detector.reads_on_host(array, "reading an array", caller())

    class Watched(plain):  # type: ignore[misc]
        __slots__ = ()
        run_at_once = copy_at_once = None  # each piece is enqueued, so that its order is seen

        def stream(self, device: Device, role: str, peer: Device | None = None) -> Any:
            stream = super().stream(device, role, peer)
            watch.follow(stream, watched_stream)
            return stream

        def query(self, event: Any) -> bool:
            found: bool = super().query(event)
            if found:
                with Uncollected():
                    detector.completed(event)
            return found

        def synchronize(self, event: Any) -> None:
            super().synchronize(event)
            with Uncollected():
                detector.completed(event)

        def host_view(self, array: Any) -> Any:
            host = super().host_view(array)
            if host is not None:
                reads(host)
            return host

        def host_array(self, array: Any) -> Any:
            reads(array)
            return super().host_array(array)

        def to_host(self, array: Any, device: Device) -> Any:
            reads(array)
            return super().to_host(array, device)

    return Watched


def watched_pool(plain: Any, watch: Watch) -> type:
    """A class of pools of GPU memory that tell what the driver gives and takes back: it orders such uses itself."""
    detector = watch.detector

    class Watched(plain):  # type: ignore[misc]
        __slots__ = ()

        def _new(self, size: int) -> Any:
            storage = super()._new(size)
            if storage.from_driver:
                with Uncollected():
                    detector.is_new(storage.pointer.ptr, storage.nbytes)
            return storage

        def trim(self) -> int:
            returned: int = super().trim()
            with Uncollected():
                detector.all_completed()
            return returned

    return Watched


@contextmanager
def check_order() -> Iterator[None]:
    """Prove, for what runs inside the ``with`` block, that waits order all uses of memory that conflict.

    Every access of memory by work, by copies and by the host is followed, as are the waits that order them; what
    nothing orders is a race, whether or not this run got a wrong value from it. It costs some time for each call, and
    small work on ``cpu``, which the call would do itself, is enqueued like any other. The option ``check_order`` does
    the same for a whole program.

    On ``cuda`` it follows what cuplace enqueues, work and moves with the arrays they are given, and all that it waits
    for. It does not see pinned memory on the way of a move, temporary memory of CuPy, and what
    programs enqueue on streams of their own.

    Raises:
        RaceError: from the call that makes the second of two accesses without order; it names both, their streams,
            the lines they come from and the wait that is missing.

    >>> import cuplace, cuplace.numpy as jnp
    >>> with cuplace.check_order():
    ...     x = jnp.arange(4) + 1
    ...     print(x)
    [1 2 3 4]
    """
    before = config.check_order
    config.update("check_order", True)
    try:
        yield
    finally:
        config.update("check_order", before)
