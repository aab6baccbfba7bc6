"""Memory in order: new buffers, which wait for the last users of their blocks, and the blocks of dead ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from sys import getrefcount
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cuplace.runtime.backends.interrupts import Uninterrupted
from cuplace.runtime.buffer import Buffer, Returned
from cuplace.runtime.config import config
from cuplace.runtime.memory import COMPUTE, TRANSFER, Block, ForeignArena, Uses
from cuplace.runtime.remains import ALONE
from cuplace.runtime.scheduler.at_once import AtOnce
from cuplace.runtime.scheduler.rules import forget_done, note_read, now_ns
from cuplace.runtime.task import ComputeTask

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Backend, Event, Stream
    from cuplace.runtime.device import Device
    from cuplace.runtime.host_memory import HostMemory

    Place: TypeAlias = Device | HostMemory


_POLL = 8  # kept blocks that a door looks at

_GONE = ALONE + 2
"""What ``sys.getrefcount`` tells of a kept block that nobody holds: it is in the table, and in the list of those that
are looked at."""


class Memory(AtOnce):
    """The doors of memory: ``allocate`` and its batch form, ``park`` and ``tidy``."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        # Of buffers that something holds although their destructor was called, or that of a loan of theirs: with the
        # streams of such loans.
        self._kept: dict[Block, tuple[Stream, ...]] = {}

    def allocate(
        self, device: Place, shape: tuple[int, ...], dtype: np.dtype[Any], arena: str = TRANSFER
    ) -> Buffer:
        """A new buffer of ``device``. One of the compute arena must be written first by ``device.compute``.

        Raises:
            OutOfMemoryError: the device has no memory for it.
        """
        return self.allocate_batch((device,), shape, dtype, arena)[0]

    def allocate_batch(
        self, devices: Iterable[Place], shape: tuple[int, ...], dtype: np.dtype[Any], arena: str = TRANSFER
    ) -> list[Buffer]:
        """A new buffer of the same shape and dtype for each of the devices, as ``allocate`` makes it."""
        nbytes = math.prod(shape) * dtype.itemsize
        with self.lock:
            if self.graveyard:
                self._park()
            return self._new_buffers(devices, arena, shape, dtype, nbytes)

    def _new_buffers(
        self, places: Iterable[Place], arena: str, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int
    ) -> list[Buffer]:
        view, buffers = self._view, []
        for place in places:
            memory = place.memory
            block, hazards = memory.allocate(arena, nbytes, shape, dtype)
            buffer = Buffer(memory.device, block, view(block.storage, shape, dtype), nbytes)
            if hazards:
                buffer.reads = _latest_of_each_stream(hazards)
            buffers.append(buffer)
        if config.poison and nbytes:
            self._poison(buffers, arena)
        return buffers

    def _poison(self, buffers: Sequence[Buffer], arena: str) -> None:
        for buffer in buffers:
            memory = buffer.block.arena.memory
            stream = memory.compute if arena == COMPUTE else memory.upload
            self._launch(_POISON, stream, (), (buffer,), (), None, now_ns())

    def may_overwrite(self, buffers: Iterable[Buffer]) -> bool:
        """Whether the next work on their devices' compute streams may write over ``buffers``: their memory is ours,
        nobody views it, and no other stream is still to read it, so that nothing waits because of that."""
        with self.lock:
            return not any(
                buffer.exports or isinstance(buffer.block.arena, ForeignArena) or _has_readers(buffer)
                for buffer in buffers
            )

    def park(self) -> None:
        """Take in the blocks of buffers that died since the last call of a door."""
        with self.lock:
            self._park(None)

    def _park(self, most: int | None = _POLL) -> None:
        graveyard, kept = self.graveyard, self._kept
        run_ahead, marks = self._run_ahead, self._marks
        if run_ahead and run_ahead[0].done:
            forget_done(run_ahead)
        if marks:
            forget_done(marks)
        uses: Uses | None = None
        try:
            while graveyard:
                try:
                    uses = graveyard[0]
                except IndexError:  # a handler of a signal that computes has been here
                    break
                graveyard.popleft()
                block = uses.block
                if getrefcount(uses) > ALONE or block in kept:
                    self._look_after(uses)
                elif uses.reads:
                    block.arena.release(block, (*uses.writes, *uses.reads.values()))
                elif uses.writes:
                    block.arena.release(block, uses.writes)
                elif type(uses) is Returned:
                    self._take_back(uses)
                else:
                    block.arena.free(block)
                uses = None
        except BaseException:  # an interrupt
            if uses is not None and uses.block.arena.holds(uses.block):
                graveyard.append(uses)
            raise
        if kept:
            self._look_at_kept(most)

    def _look_after(self, uses: Uses) -> None:
        """Take in what others still refer to, though a destructor has handed it over (see ``remains``): another
        destructor has kept the buffer or the loan, or the traceback of the error that it would raise."""
        streams = self._kept.get(uses.block, ())
        if isinstance(uses, Returned) and uses.stream is not None and uses.stream not in streams:
            streams = (*streams, uses.stream)
        self._kept[uses.block] = streams

    def _look_at_kept(self, most: int | None) -> None:
        """Take in those of the kept blocks that nothing holds any more; look at ``most`` of them, or at all."""
        kept = self._kept
        for block in list(kept)[:most]:  # a list at once: destructors that compute change the table
            if getrefcount(block) > _GONE + (block in block.arena.live):
                streams = kept[block]
                del kept[block]  # at once with the next line
                kept[block] = streams  # the last to be looked at again
                continue
            if block.arena.holds(block):  # the events are gone: all that was enqueued by now may be its last use
                for stream in kept[block]:
                    self._mark(stream)
                block.arena.release(block, (*self._run_ahead, *self._marks))
            kept.pop(block, None)

    def _take_back(self, returned: Returned) -> None:
        """The end of a loan: the buffer is free for others after what is on the borrower's stream by now."""
        with Uninterrupted():
            buffer, stream = returned.buffer, returned.stream
            if stream is not None:
                event = self._mark(stream)
                if event is not None:
                    note_read(buffer, stream, event)
                assert isinstance(buffer.exports, list)
                buffer.exports.pop()
                returned.stream = None

    def tidy(self) -> None:
        """Free dead blocks that are complete, unless another thread is in a door: it may be waiting for memory."""
        if self.lock.acquire(blocking=False):
            try:
                self._park()
                for memory in tuple(self.parking):
                    memory.collect()
            finally:
                self.lock.release()


def _fill_pattern(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
    writes[0].reshape(-1).view(np.uint8)[...] = 0xA5


_POISON = ComputeTask("poison", _fill_pattern, 0.0)


def _has_readers(buffer: Buffer) -> bool:
    own = buffer.block.arena.memory.compute
    return any(not event.done and stream is not own for stream, event in (buffer.reads or {}).items())


def _latest_of_each_stream(events: Iterable[Event]) -> dict[Stream, Event]:
    latest: dict[Stream, Event] = {}
    for event in sorted(events, key=lambda event: event.submission):
        latest[event.stream] = event
    return latest
