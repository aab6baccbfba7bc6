"""The contract of a backend: what the scheduler asks of CUDA, of CPU threads and of the simulator.

A backend knows nothing of arrays, shardings or dependencies. It offers devices, raw storage, streams that run
what they are given in order, and events that mark points in a stream. All ordering is decided by the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cuplace.runtime.staging import NO_STAGING, Staging

if TYPE_CHECKING:
    from cuplace.runtime.device import Device
    from cuplace.runtime.submission import Submission
    from cuplace.runtime.task import Task
    from cuplace.runtime.topology import Topology
    from cuplace.runtime.usage import GpuUsage, PinnedUsage

Work = Callable[[list[Any], list[Any], tuple[Any, ...]], None]
"""``work(reads, writes, scalars)``: reads and fills arrays of the backend's array module."""


class Event(Protocol):
    """A point in a stream: complete when all that was enqueued before it has finished.

    ``done`` is cheap and never blocks; it may lag behind the truth until ``Backend.query`` is asked.
    ``error`` is the failure of the work that it marks, once done.
    """

    @property
    def stream(self) -> Stream: ...

    @property
    def submission(self) -> int: ...

    @property
    def done(self) -> bool: ...

    @property
    def error(self) -> BaseException | None: ...


class Stream(Protocol):
    """A queue of one device that runs its work in order.

    ``path`` is how the copies of a move stream travel, where the backend finds that out by trying; None elsewhere.
    """

    @property
    def device(self) -> Device: ...

    @property
    def role(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str | None: ...

    def wait(self, event: Event) -> None:
        """What is enqueued from now on starts only after ``event`` is complete."""

    def run(
        self, work: Work, reads: list[Any], writes: list[Any], scalars: tuple[Any, ...],
        needs: Sequence[Event], seconds: float, submission: Submission,
    ) -> None:  # fmt: skip
        """Enqueue ``work``. ``needs`` are the write events of what it reads: where one of them failed, this
        work fails with the same error instead of running. ``seconds`` is an estimate of its run time."""

    def copy(
        self, source: Any, target: Any, path: str, needs: Sequence[Event], submission: Submission,
        staging: Staging = NO_STAGING,
    ) -> None:  # fmt: skip
        """Enqueue a copy between two equally shaped strided views, of one device or of two. ``staging`` is memory that
        it may pack into at either end; it is the copy's until its event."""

    def upload(self, source: np.ndarray, target: Any, submission: Submission) -> None:
        """Enqueue a copy from host memory; ``source`` has been read entirely when this returns."""

    def upload_packed(self, sources: Sequence[np.ndarray], targets: Sequence[Any], submission: Submission) -> None:
        """Enqueue copies of several small arrays, each as ``upload`` does it, as one piece of work."""

    def hold(self, submission: Submission) -> Latch:
        """Enqueue a latch: nothing later on this stream runs until it is released."""

    def record(self, submission: int) -> Event | None:
        """An event after all that was enqueued, or None where all of it has finished without error."""


class Latch(Protocol):
    """A gate in a stream, opened by the host. ``held`` until then."""

    @property
    def held(self) -> bool: ...

    def release(self) -> None: ...


class Measurement(Protocol):
    """Measures when work runs, from when it is made until its ``end``.

    ``error_ns`` is by how much times of different GPUs, or of a GPU and the host, may be wrong against each other.
    """

    @property
    def error_ns(self) -> float: ...

    def end(self) -> None:
        """What is enqueued from now on is not measured."""

    def read(self) -> None:
        """Wait for what was measured, and fill in the times of its submissions."""

    def seconds_a_record(self) -> float:
        """What measuring adds to the enqueueing of one piece of work."""


class StoragePool(Protocol):
    """Raw memory of one arena of one device. Knows nothing of streams: what comes back may go out again at once.

    ``birth(storage)`` are the events after which new storage may be used, where an allocator works in the order of
    a stream; None where storage can be used at once. ``unused`` are the bytes kept for later requests.
    """

    @property
    def birth(self) -> Callable[[Any], Sequence[Event]] | None: ...

    @property
    def unused(self) -> int: ...

    def allocate(self, nbytes: int) -> Any:
        """Storage of at least ``nbytes``. Raises MemoryError where there is none."""

    def free(self, storage: Any) -> None:
        """Take storage back."""

    def trim(self) -> int:
        """Return unused storage to the system; the number of bytes returned."""


class Exchange(Protocol):
    """How memory that NumPy cannot reach is shared with other libraries, without copies."""

    def gpu(self, value: Any) -> int | None:
        """The GPU that an object's memory is on; None where it is no such memory."""

    def take(self, value: Any, device: Device) -> tuple[Any, Any]:
        """An array of ``xp`` over the memory of such an object on the GPU of ``device``, and the stream on which all
        that was enqueued for it so far has its end; None where it is complete."""

    def stream(self, device: Device, handle: int | None = None) -> Any:
        """The user's stream with this handle on the GPU of ``device``; without one, the current one. It records and
        waits as streams do, and nothing of ours is enqueued on it."""

    def view(self, array: Any, device: Device, owner: Any) -> Any:
        """Another array over the same memory of ``device``, which keeps ``owner`` alive."""

    def capsule(self, view: Any, versioned: bool, copied: bool) -> Any:
        """A DLPack capsule of an array; ``copied`` says that its memory is the receiver's alone."""

    def say_pinned(self, capsule: Any) -> None:
        """Let a versioned capsule of host memory say that the memory is pinned."""

    def interface(self, view: Any, stream: Stream) -> dict[str, Any]:
        """What ``__cuda_array_interface__`` says of an array that work on ``stream`` may use."""

    def marked(self, device: Device) -> AbstractContextManager[object]:
        """Mark the memory that is allocated inside, while the compute stream of ``device`` is current."""

    def own(self, result: Any, device: Device, mark: object) -> Any:
        """What a function of the user's returned, dense and in memory with this mark, which nobody has seen before and
        which may be freed in the order of the stream; else a copy. None where it is no array of ``xp``. Raises
        KernelResultError where it is on another GPU."""


class RunAtOnce(Protocol):
    """Does the work of a task once for each of several streams, in the calling thread.

    ``shards`` gives, for each stream, the arrays that are read and those that are written.

    Returns the nanoseconds when the first one began, and when each ended; then it counts as the latest on the streams.
    Returns nothing where the work is long, where something on one of the streams is unfinished, or where it fails: then
    it is to be enqueued, and what was done is done again.
    """

    def __call__(
        self, task: Task, streams: Sequence[Any], shards: Iterable[tuple[Any, Any]], scalars: tuple[Any, ...]
    ) -> Sequence[int]: ...


class CopyAtOnce(Protocol):
    """The same for copies of one array into another, cast as needed: for each stream a pair of source and target.

    ``nbytes`` are those of the largest; 0 where the caller has to wait for the copies anyway. Unlike work, a copy that
    fails raises.
    """

    def __call__(self, streams: Sequence[Any], pairs: Iterable[tuple[Any, Any]], nbytes: int) -> Sequence[int]: ...


class Backend(Protocol):
    """One kind of machine.

    Attributes:
        name: the platform's name (``cpu``, ``sim``, ``cuda``).
        device_platform: what ``Device.platform`` says (``cpu``, ``sim``, ``gpu``).
        xp: the array module that work is written against.
        exchange: how memory is shared with other libraries; None where NumPy reaches it.
        device_class: the class name that ``repr(device)`` shows (``CpuDevice``).
        device_kind: what ``Device.device_kind`` says.
        topology: how copies travel between its GPUs.
        run_at_once, copy_at_once: do short work and small copies in the calling thread; None where that never is.
    """

    name: str
    device_platform: str
    device_class: str
    device_kind: str
    xp: Any

    @property
    def run_at_once(self) -> RunAtOnce | None: ...

    @property
    def copy_at_once(self) -> CopyAtOnce | None: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def exchange(self) -> Exchange | None: ...

    def device_count(self, requested: int | None) -> int:
        """How many devices to offer when ``requested`` are asked for (None: the natural number)."""

    def place(self, index: int, count: int) -> tuple[int, int]:
        """``(gpu, partition)`` of device ``index`` of ``count``."""

    def stream(self, device: Device, role: str, peer: Device | None = None) -> Stream:
        """A new stream of ``device``; ``role`` is ``compute``, ``upload``, ``download``, ``move``, or ``host``: the
        strand that computes on the device's host memory, with arrays of NumPy."""

    def storage(self, device: Device, arena: str) -> StoragePool:
        """The pool that an arena of ``device`` takes its storage from."""

    def host_storage(self, device: Device, kind: str) -> StoragePool:
        """The pool of the host memory of ``device`` of this kind: ``pinned_host`` or ``unpinned_host``.

        Its views are arrays of NumPy. Copies between it and memory of a device go on the upload stream or on the
        download stream of that device.
        """

    def view(self, storage: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """The start of ``storage`` as a contiguous array of ``xp``."""

    def query(self, event: Event) -> bool:
        """Whether ``event`` is complete. Never blocks; polling it makes progress."""

    def now(self) -> int:
        """The time of the records, in nanoseconds: what the host's clock says now."""

    def measure(self, naming: bool) -> Measurement | None:
        """Begin to measure when work runs; None where submissions get their times anyway. ``naming``: tell a profiler
        of the hardware what is being enqueued, where there is one."""

    def synchronize(self, event: Event) -> None:
        """Block the calling thread until ``event`` is complete. Does not raise the work's error."""

    def host_view(self, array: Any) -> np.ndarray | None:
        """``array``'s memory as a NumPy array where the host can read it in place, else None."""

    def host_array(self, array: np.ndarray) -> np.ndarray:
        """``array``, complete, in host memory of a device, which the host is about to read."""

    def to_host(self, array: Any, device: Device) -> np.ndarray:
        """A new NumPy array with the values of a complete ``array`` of ``device``."""

    def trim(self) -> int:
        """Return unused memory that is no device's, such as pinned memory for copies, to the system; the number of
        bytes returned."""

    def usage(self) -> tuple[tuple[GpuUsage, ...], PinnedUsage | None]:
        """The memory of the hardware and the pinned memory for copies, where there is any."""

    def shortage(self, device: Device, nbytes: int) -> list[str]:
        """Lines that tell a user more about why ``device`` has no ``nbytes``."""

    def finish(self) -> None:
        """Wait for work whose memory others may take back only in the order of our streams; open what holds it."""

    def close(self) -> None:
        """Stop what runs in the background; the backend is not used afterwards."""
