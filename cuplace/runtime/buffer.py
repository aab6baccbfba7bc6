"""Buffer: memory on one device, with the events that order its use."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.runtime.memory import Uses

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Event, Stream
    from cuplace.runtime.device import Device
    from cuplace.runtime.memory import Block

_next_id = itertools.count().__next__
_exporting = threading.RLock()


class Buffer:
    """Memory on one device. Its life is its Python references: the last one gives its block back.

    Only the scheduler touches ``writes`` and ``reads``.

    Attributes:
        id: unique number; submission records name buffers by it.
        device: where the memory is.
        array: the memory as an array of the backend's array module, with shape and dtype.
        writes: the events of the latest write; several when the moves of one plan wrote disjoint boxes.
            Empty when there is nothing to wait for.
        reads: the latest read event of each stream since the latest write, or None.
        exports: an element for each living export to the host (see ``Export``).
    """

    __slots__ = ("id", "device", "block", "array", "nbytes", "uses", "exports", "__del__", "__weakref__")

    __del__: Callable[[], object]

    def __init__(self, device: Device, block: Block, array: Any, nbytes: int) -> None:
        self.id = _next_id()
        self.device = device
        self.block = block
        self.array = array
        self.nbytes = nbytes
        self.uses = uses = Uses()
        uses.block, uses.writes, uses.reads = block, (), None
        self.exports: list[None] | tuple[()] = ()
        # Any thread and any moment, even inside a backend call: only note the death, the doors do the rest. By
        # functions of C alone: out of a method an interrupt would be swallowed, and the block with it be lost.
        self.__del__ = partial(block.bury, uses)

    @property
    def writes(self) -> tuple[Event, ...]:
        return self.uses.writes

    @writes.setter
    def writes(self, events: tuple[Event, ...]) -> None:
        self.uses.writes = events

    @property
    def reads(self) -> dict[Stream, Event] | None:
        return self.uses.reads

    @reads.setter
    def reads(self, events: dict[Stream, Event] | None) -> None:
        self.uses.reads = events

    def __repr__(self) -> str:
        return f"Buffer({self.id}, {self.device}, {self.array.dtype}{list(self.array.shape)})"


class Export:
    """What a NumPy view of a buffer's memory has as its base, so that the memory outlives every view of it."""

    __slots__ = ("buffer", "__array_interface__", "__del__")

    __del__: Callable[[], object]

    def __init__(self, buffer: Buffer, host: np.ndarray) -> None:
        self.buffer = buffer
        address = host.__array_interface__["data"][0]
        self.__array_interface__ = {
            "data": (address, True), "shape": (host.nbytes,), "typestr": "|u1", "version": 3,
        }  # fmt: skip
        with _exporting:
            exports = buffer.exports = buffer.exports or []
        exports += [None]  # at once with the next line: no interrupt comes between what calls nothing
        self.__del__ = exports.pop


class Loan:
    """A use of a buffer's memory by work of the user's, on a stream of the user's, that ends when this object dies.

    It is the owner of what the user gets, so that the memory outlives every view of it. As with buffers, the end is
    only noted, and a door records it on the stream.
    """

    __slots__ = ("buffer", "__del__")

    __del__: Callable[[], object]

    def __init__(self, buffer: Buffer, stream: Stream) -> None:
        self.buffer = buffer
        graveyard = buffer.block.arena.memory.graveyard
        end = partial(graveyard.appendleft, Returned(buffer, stream))  # before the buffer, which may be dead, too
        with _exporting:
            exports = buffer.exports = buffer.exports or []
        exports += [None]
        self.__del__ = end


class Returned(Uses):
    """What a loan leaves behind: the buffer, and the stream that may still have work on it; None once that is known."""

    __slots__ = ("buffer", "stream")

    def __init__(self, buffer: Buffer, stream: Stream) -> None:
        self.block, self.writes, self.reads = buffer.block, (), None
        self.buffer = buffer
        self.stream: Stream | None = stream


def export(buffer: Buffer, host: np.ndarray) -> np.ndarray:
    """A read-only NumPy view of ``host`` (the host's view of ``buffer``) that keeps it alive.

    Of nothing, and of adopted memory that is not contiguous, it is a copy.
    """
    if host.nbytes == 0 or not host.flags.c_contiguous:
        copy = host.copy()
        copy.flags.writeable = False
        return copy
    raw = np.asarray(Export(buffer, host))
    return raw.view(host.dtype).reshape(host.shape)
