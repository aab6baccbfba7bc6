"""Tasks: what can be enqueued on a stream. Prebuilt once by executables and plans, enqueued many times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cuplace.runtime.staging import Staging

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Event, Stream, Work
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.submission import Submission

_array = attrgetter("array")


class Cost(NamedTuple):
    """An estimate of work: floating-point operations, and bytes read plus written.

    >>> Cost(1.0, 2.0) + Cost(3.0, 4.0)
    Cost(flops=4.0, bytes=6.0)
    """

    flops: float
    bytes: float

    def __add__(self, other: Any) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


NOTHING = Cost(0.0, 0.0)


class Task:
    """One kind of work: how it is enqueued, and what submission records say of it.

    Attributes:
        kind: ``compute``, ``move``, ``upload`` or ``latch``.
        name: what a timeline shows: the op, the jitted function.
        nbytes: bytes that a copy moves; 0 for compute.
        path: how a copy travels; empty for compute.
        library: whether it calls what is not ours: libraries that run threads of their own, or the user's functions.
        cost: the estimated work of computing; nothing for copies.
    """

    __slots__ = ("kind", "name", "nbytes", "path")

    library: bool = False
    cost: Cost = NOTHING

    def __init__(self, kind: str, name: str, nbytes: int = 0, path: str = "") -> None:
        self.kind = kind
        self.name = name
        self.nbytes = nbytes
        self.path = path

    def enqueue(
        self, stream: Stream, reads: Sequence[Buffer], writes: Sequence[Buffer], scalars: tuple[Any, ...],
        needs: Sequence[Event], submission: Submission,
    ) -> None:  # fmt: skip
        raise NotImplementedError

    def arrays(self, reads: Sequence[Buffer], writes: Sequence[Buffer]) -> tuple[list[Any], list[Any]]:
        """What it reads, and what it writes."""
        return list(map(_array, reads)), list(map(_array, writes))


LATCH = Task("latch", "latch")


class ComputeTask(Task):
    """``run(reads, writes, scalars)`` on arrays of the backend's array module.

    ``seconds`` estimates its run time: work that is shorter than a hand-off between threads is not handed off. ``run``
    may be called again on the same arrays after it has failed; where that would do harm, it is ``library`` work.
    ``within(function, *args)`` calls a function in which many calls of ``run`` share what each would set up on its
    own, such as NumPy's error state; None where there is nothing to share.
    """

    __slots__ = ("cost", "library", "run", "seconds", "within")

    def __init__(
        self, name: str, run: Work, seconds: float, library: bool = False, cost: Cost = NOTHING,
        within: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__("compute", name)
        self.run = run
        self.seconds = seconds
        self.library = library
        self.cost = cost
        self.within = within

    def enqueue(
        self, stream: Stream, reads: Sequence[Buffer], writes: Sequence[Buffer], scalars: tuple[Any, ...],
        needs: Sequence[Event], submission: Submission,
    ) -> None:  # fmt: skip
        read = [buffer.array for buffer in reads]
        write = [writes[0].array] if len(writes) == 1 else [buffer.array for buffer in writes]
        stream.run(self.run, read, write, scalars, needs, self.seconds, submission)


class CopyTask(Task):
    """A copy of a box of one buffer to a box of another; None for slices means the whole buffer.

    ``packs`` tells at which ends it has staging memory: the buffers of bytes that it writes beside its target.
    """

    __slots__ = ("packs", "source_slices", "target_slices")

    def __init__(
        self, source_slices: tuple[slice, ...] | None, target_slices: tuple[slice, ...] | None, path: str, nbytes: int,
        packs: Staging | None = None,
    ) -> None:  # fmt: skip
        super().__init__("move", "move", nbytes, path)
        self.source_slices = source_slices
        self.target_slices = target_slices
        self.packs = packs

    def enqueue(
        self, stream: Stream, reads: Sequence[Buffer], writes: Sequence[Buffer], scalars: tuple[Any, ...],
        needs: Sequence[Event], submission: Submission,
    ) -> None:  # fmt: skip
        source, target = self.boxes(reads[0], writes[0])
        if self.packs is None:
            stream.copy(source, target, self.path, needs, submission)
        else:
            memory = map(_array, writes[1:])
            staging = Staging(*[next(memory) if packed else None for packed in self.packs])
            stream.copy(source, target, self.path, needs, submission, staging)

    def arrays(self, reads: Sequence[Buffer], writes: Sequence[Buffer]) -> tuple[list[Any], list[Any]]:
        source, target = self.boxes(reads[0], writes[0])
        return [source], [target, *map(_array, writes[1:])]  # behind the target is memory to pack into

    def boxes(self, source: Buffer, target: Buffer) -> tuple[Any, Any]:
        """The boxes that it copies from and to."""
        from_box, to_box = source.array, target.array
        if self.source_slices is not None:
            from_box = from_box[self.source_slices]
        if self.target_slices is not None:
            to_box = to_box[self.target_slices]
        return from_box, to_box


@lru_cache(maxsize=1024)
def upload_task(nbytes: int) -> Task:
    """What records show of an upload of one array."""
    return Task("upload", "upload", nbytes, "host")


class PackedUpload(Task):
    """Uploads of several small host arrays, each to a buffer of its own."""

    __slots__ = ("_sources",)

    def __init__(self, sources: Sequence[np.ndarray[Any, Any]], nbytes: int) -> None:
        super().__init__("upload", "upload", nbytes, "host")
        self._sources = sources

    def enqueue(
        self, stream: Stream, reads: Sequence[Buffer], writes: Sequence[Buffer], scalars: tuple[Any, ...],
        needs: Sequence[Event], submission: Submission,
    ) -> None:  # fmt: skip
        sources, self._sources = self._sources, ()  # records of submissions keep their tasks
        stream.upload_packed(sources, list(map(_array, writes)), submission)


class PartUpload(Task):
    """An upload of a host array to a box of a buffer; None for slices means the whole buffer."""

    __slots__ = ("_source", "_target_slices")

    def __init__(self, source: np.ndarray[Any, Any], target_slices: tuple[slice, ...] | None, nbytes: int) -> None:
        super().__init__("upload", "upload", nbytes, "host")
        self._source: np.ndarray[Any, Any] | None = source
        self._target_slices = target_slices

    def enqueue(
        self, stream: Stream, reads: Sequence[Buffer], writes: Sequence[Buffer], scalars: tuple[Any, ...],
        needs: Sequence[Event], submission: Submission,
    ) -> None:  # fmt: skip
        source, self._source = self._source, None  # records of submissions keep their tasks
        assert source is not None
        stream.upload(source, self.arrays(reads, writes)[1][0], submission)

    def arrays(self, reads: Sequence[Buffer], writes: Sequence[Buffer]) -> tuple[list[Any], list[Any]]:
        target = writes[0].array
        return [], [target if self._target_slices is None else target[self._target_slices]]
