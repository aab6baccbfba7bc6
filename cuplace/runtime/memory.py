"""Arenas: where a device's memory comes from, and where dead blocks wait until they may be used again.

A device has two arenas. *compute* is stream-ordered: its blocks are results of work on the device's compute
stream, and a block that only this stream has used is free for its next work at once. *transfer* holds targets of
moves and uploads: its blocks come back only when all that used them is complete, so any stream takes them
without a wait. A dead block that cannot come back yet is *parked*. No stream ever waits because of a free; only
when the memory is limited does a requester wait for parked blocks, and each such wait is counted.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.placement.memory_space import DEVICE
from cuplace.runtime.config import config
from cuplace.runtime.shortage import collect_garbage, out_of_memory, reclaim, value_text
from cuplace.runtime.submission import MEMORY_WAIT
from cuplace.runtime.usage import DeviceUsage

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Backend, Event, StoragePool, Stream
    from cuplace.runtime.device import Device

COMPUTE = "compute"
TRANSFER = "transfer"

_POLL = 8  # parked blocks that an allocation looks at; all of them are looked at when memory is short

Parked = tuple["Block", "list[Event]"]
"""A dead block, and the events of its last use that were not complete when somebody looked."""

Graveyard = deque["Uses"]
"""The last uses of buffers that died, and loans that ended, until a door of the scheduler takes them in."""


class Block:
    """Storage handed out by an arena, and what it holds at present."""

    __slots__ = ("arena", "bury", "storage", "nbytes", "shape", "dtype")  # filled in by those who make it

    arena: Arena
    bury: Callable[[Uses], None]
    storage: Any
    nbytes: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None


class Uses:
    """The block of a buffer and the events of its latest uses, which outlive the buffer (see ``Buffer``).

    Blocks do not have these themselves: arenas hold those in use, and the event of failed work holds its error, whose
    frames may hold the buffer, which would then never die.
    """

    __slots__ = ("block", "writes", "reads")  # filled in by those who make it: a constructor would take twice as long

    block: Block
    writes: tuple[Event, ...]
    reads: dict[Stream, Event] | None


class Arena:
    """Blocks of one kind on one device. Its collections are iterated over as they were at that moment: a destructor
    may change them meanwhile. ``home`` is the stream in whose order its blocks are reused, if any."""

    def __init__(self, memory: DeviceMemory, name: str, home: Stream | None) -> None:
        self.memory = memory
        self.name = name
        self.home = home
        self.bury = memory.graveyard.append
        self.pool = memory._storage(name)
        self.birth = self.pool.birth
        self.parked: deque[Parked] = deque()
        self.live: set[Block] = set()

    def release(self, block: Block, events: Sequence[Event]) -> None:
        """Take a dead block: free it if nothing that matters is unfinished, else park it."""
        home = self.home
        pending = [event for event in events if not event.done and (home is None or event.stream is not home)]
        if pending:
            memory = self.memory
            memory.parking.add(memory)
            memory.parked += 1  # at once with the next lines: no interrupt comes between stores and a call
            memory.parked_bytes += block.nbytes
            self.parked.append((block, pending))
            self.live.discard(block)
        else:
            self.free(block)

    def collect(self, most: int | None = None) -> None:
        """Free parked blocks whose events are complete; look at ``most`` of them, or at all."""
        parked = self.parked
        for _ in range(len(parked) if most is None else min(most, len(parked))):
            if not parked:
                return
            first = block, events = parked[0]
            pending = [event for event in events if not self.memory.backend.query(event)]
            rest = block, pending
            if not parked or parked[0] is not first:
                continue  # a destructor that computes has been here
            if pending:
                parked[0] = rest
                parked.rotate(-1)
            elif self._unpark(first):
                self.free(block)

    def take_parked(self, nbytes: int) -> Parked | None:
        """The oldest parked block that serves ``nbytes`` without waste, with the events it waits for."""
        fitting = [parked for parked in list(self.parked) if nbytes <= parked[0].nbytes <= nbytes + nbytes // 8]
        for found in sorted(fitting, key=_age):
            if self._unpark(found):
                return found
        return None

    def _unpark(self, parked: Parked) -> bool:
        """Take it out; False where it is not there any more."""
        memory = self.memory
        if parked not in self.parked:
            return False
        memory.parked -= 1
        memory.parked_bytes -= parked[0].nbytes
        self.parked.remove(parked)
        if not memory.parked:
            memory.parking.discard(memory)
        return True

    def free(self, block: Block) -> None:
        """Take a dead block that nothing uses any more."""
        self.live.discard(block)
        self.memory.in_use -= block.nbytes
        self.pool.free(block.storage)

    def holds(self, block: Block) -> bool:
        """Whether a dead block has yet to be released."""
        return block in self.live and not any(block is parked for parked, _ in list(self.parked))

    def take_in_lost(self) -> None:
        """Take in the blocks that an interrupt has lost before anything used them: they count as alive, and nobody
        holds them."""
        self.live.difference_update([block for block, _ in list(self.parked)])
        for count, block in _held(self.live):
            if count == _UNHELD:
                self.release(block, ())


class ForeignArena(Arena):
    """Memory that did not come from our pools: parked like ours while work is unfinished, then simply forgotten.

    With a ``home`` it was made there for us by a function of the user's, and counts as ours; else it is the user's.
    """

    def adopt(self, array: Any) -> Block:
        """A block over the memory of an array."""
        block = Block()
        block.arena, block.bury, block.storage = self, self.bury, array
        if self.home is None:
            block.nbytes, block.shape, block.dtype = 0, (), None
            return block
        block.nbytes, block.shape, block.dtype = int(array.nbytes), array.shape, array.dtype
        self.live.add(block)
        memory = self.memory
        memory.in_use += block.nbytes
        memory.peak = max(memory.peak, memory.in_use)
        return block

    def free(self, block: Block) -> None:
        self.live.discard(block)
        self.memory.in_use -= block.nbytes
        block.storage = None

    def holds(self, block: Block) -> bool:
        return block.storage is not None and not any(block is parked for parked, _ in list(self.parked))


class DeviceMemory:
    """The arenas of one memory of a device, their limit and their counters (all in bytes).

    ``graveyard`` and ``parking`` are shared by the devices of a platform; ``parking`` are the memories that have
    parked blocks at present. ``foreign`` is memory of the user's, ``returned`` what functions of the user's made on
    the compute stream. A call of the device's own memory gives its memory of another kind.

    Attributes:
        device: whose memory it is.
        kind: which one: ``device``, ``pinned_host`` or ``unpinned_host``.
        on_host: whether the host can read and write it in place.
        limited: whether ``max_device_bytes`` bounds it.

    >>> import cuplace
    >>> cuplace.devices()[0].memory("pinned_host").kind
    'pinned_host'
    """

    on_host = False
    limited = True

    def __init__(
        self, device: Device, backend: Backend, graveyard: Graveyard, parking: set[DeviceMemory], kind: str = DEVICE
    ) -> None:
        self.device = device
        self.kind = kind
        self.backend = backend
        self.graveyard = graveyard
        self.parking = parking
        self.in_use = 0
        self.peak = 0
        self.parked = 0
        self.parked_bytes = 0
        self.memory_waits = 0
        self.arenas = {COMPUTE: Arena(self, COMPUTE, self.home), TRANSFER: Arena(self, TRANSFER, None)}
        self.foreign = ForeignArena(self, "foreign", None)
        self.returned = ForeignArena(self, "returned", self.compute)

    def __call__(self, kind: str) -> DeviceMemory:
        """The device's memory of a kind.

        Raises:
            MemoryKindError: a ValueError, for a memory that the device does not have.
        """
        return self.device.place(kind).memory

    @property
    def platform(self) -> str:
        return self.device.platform

    @property
    def process_index(self) -> int:
        return self.device.process_index

    def addressable_by_devices(self) -> list[Device]:
        """The devices whose memory it is."""
        return [self.device]

    @property
    def name(self) -> str:
        """What errors call it."""
        return str(self.device) if self.kind == DEVICE else f"{self.device} {self.kind}"

    @property
    def compute(self) -> Stream:
        """The stream that computes on it."""
        return self.device.compute

    @property
    def home(self) -> Stream | None:
        """The stream in whose order blocks of the compute arena are reused, where they are."""
        return self.device.compute

    @property
    def upload(self) -> Stream:
        """The stream that brings values from the caller to it."""
        return self.device.upload

    @property
    def limit(self) -> int | None:
        """Bytes that its blocks may be; None where there is no limit."""
        limit: int | None = config.max_device_bytes
        return limit if self.limited else None

    def _storage(self, arena: str) -> StoragePool:
        return self.backend.storage(self.device, arena)

    def __repr__(self) -> str:
        return f"Memory({self.name})"

    def allocate(
        self, arena_name: str, nbytes: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> tuple[Block, Sequence[Event]]:
        """A block, and the events that its first writers must wait for (none, unless memory is limited).

        Raises:
            OutOfMemoryError: there is no memory even after all that is dead has come back.
        """
        arena = self.arenas[arena_name]
        if self.parked:
            self._poll()
        limit = config.max_device_bytes
        if limit is not None and self.limited and self.in_use + nbytes > limit:
            found = self._make_room(arena, nbytes, limit, shape, dtype)
            if found is not None:
                return found
        try:
            storage = arena.pool.allocate(nbytes)
        except MemoryError:
            storage = None
        if storage is None:  # outside of the handler, so that the error keeps nothing alive
            storage = self._allocate_again(arena, nbytes, shape, dtype)
        block = Block()
        block.arena, block.bury, block.storage = arena, arena.bury, storage
        block.nbytes, block.shape, block.dtype = nbytes, shape, dtype
        arena.live.add(block)
        self.in_use += nbytes
        if self.in_use > self.peak:
            self.peak = self.in_use
        return block, () if arena.birth is None else arena.birth(storage)

    def stats(self) -> dict[str, int]:
        """Bytes in use, parked behind unfinished work, and the peak of both, and the limit where there is one."""
        lock = self.device.scheduler.lock
        if lock.acquire(blocking=False):
            try:
                self.recount()
            finally:
                lock.release()
        stats = {"bytes_in_use": self.in_use - self.parked_bytes, "bytes_parked": self.parked_bytes,
                 "peak_bytes": self.peak, "memory_waits": self.memory_waits}  # fmt: skip
        if self.limit is not None:
            stats["bytes_limit"] = self.limit
        return stats

    def recount(self) -> None:
        """Put right what an interrupt has left wrong: blocks that nobody holds, and the count of bytes."""
        arenas = self._counted()
        for arena in arenas:
            arena.take_in_lost()
        self.in_use = self.parked_bytes + sum(block.nbytes for arena in arenas for block in tuple(arena.live))

    def collect(self, most: int | None = None) -> None:
        """Free the parked blocks that are complete; look at ``most`` of each arena, or at all."""
        for arena in self._all():
            if arena.parked:
                arena.collect(most)

    def trim(self) -> int:
        """Return unused storage to the system; how many bytes it was."""
        return sum(arena.pool.trim() for arena in self.arenas.values())

    def usage(self, arrays: int) -> DeviceUsage:
        """What it is used for, as of now; ``arrays`` are the bytes that live arrays hold."""
        transfer = sum(block.nbytes for block in tuple(self.arenas[TRANSFER].live))
        unused = sum(pool.unused for pool in {arena.pool for arena in self.arenas.values()})  # pinned memory has one
        return DeviceUsage(
            self.name, arrays, self.in_use - self.parked_bytes - transfer, transfer, self.parked_bytes, unused,
            self.peak, self.limit, self.memory_waits,
        )  # fmt: skip

    def live_blocks(self) -> list[Block]:
        """The blocks in use."""
        return [block for arena in self._counted() for block in tuple(arena.live)]

    def wait_for_all_parked(self) -> None:
        """Wait until every parked block has come back."""
        while self.parked:
            self._wait_for([parked for arena in self._all() for parked in list(arena.parked)])

    def _poll(self) -> None:
        self.collect(_POLL)
        while self.parked_bytes > config.max_inflight_bytes:
            self._wait_for_oldest()

    def _allocate_again(self, arena: Arena, nbytes: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        reclaim(self)
        try:
            return arena.pool.allocate(nbytes)
        except MemoryError as error:
            raise out_of_memory(self, nbytes, value_text(shape, dtype), reason=str(error)) from None

    def _make_room(
        self, arena: Arena, nbytes: int, limit: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Parked | None:
        """Reach the limit's room: complete blocks first, then a parked block whose events the new writers
        wait for on the device, and only then a wait of the host."""
        self.collect()
        if self.in_use + nbytes <= limit:
            return None
        found = arena.take_parked(nbytes)
        if found is not None:
            self.memory_waits += 1
            found[0].shape, found[0].dtype = shape, dtype
            arena.live.add(found[0])
            return found
        if self.in_use - self.parked_bytes + nbytes > limit:
            collect_garbage(self)
        if self.in_use - self.parked_bytes + nbytes > limit:
            raise out_of_memory(self, nbytes, value_text(shape, dtype), limit)
        while self.in_use + nbytes > limit:
            self.memory_waits += 1
            self._wait_for_oldest()
        return None

    def _wait_for_oldest(self) -> None:
        """Wait for the parked block of ours whose last use was enqueued first."""
        parked = [parked for arena in self._counted() for parked in list(arena.parked)]
        self._wait_for(sorted(parked, key=_age)[:1])

    def _wait_for(self, blocks: Sequence[Parked]) -> None:
        for _, events in blocks:
            for event in events:
                self.device.scheduler.wait(event, MEMORY_WAIT)
        self.collect()

    def _all(self) -> tuple[Arena, ...]:
        return (*self._counted(), self.foreign)

    def _counted(self) -> tuple[Arena, ...]:
        return (*self.arenas.values(), self.returned)


def _held(blocks: set[Any]) -> list[tuple[int, Any]]:
    """The blocks, each with the number of references to it, those from here included."""
    each = list(blocks)
    return [(sys.getrefcount(block), block) for block in each]


_UNHELD = _held({object()})[0][0]


def _age(parked: Parked) -> int:
    """The number of the submission that uses a parked block last. Its place tells nothing: polls turn the queues."""
    return max(event.submission for event in parked[1])
