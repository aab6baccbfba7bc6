"""Detector: follows what streams and the host really do, and finds accesses that nothing orders."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from cuplace import errors
from cuplace.runtime.caller import Line
from cuplace.runtime.order.clock import Actor, Moment
from cuplace.runtime.order.history import Access, History, Origin
from cuplace.runtime.order.region import PAGE_BYTES, Region, holders_of, region_of

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Event, Stream
    from cuplace.runtime.submission import Submission

_MOST_MOMENTS = 256  # of a stream, before those that all later work knows are forgotten

HOST = "the host"

Use = tuple[Sequence[Any], Region, bool, Origin]
"""A use of memory that is about to happen: what holds the memory, the bytes, whether they are written, whence."""


class Detector:
    """Vector clocks over the streams of a platform and the host, and the history of all memory that they touch.

    It is told of the calls that are executed: work with the arrays that it is given, waits, records, and what the
    host has seen to be complete. It knows nothing of buffers, arenas and of what the scheduler means to do.

    Attributes:
        races: the texts of the errors that it has raised, since one may be caught.
    """

    def __init__(self) -> None:
        self.races: list[str] = []
        self._host = Actor(HOST)
        self._streams: dict[Any, Actor] = {}
        self._moments: dict[Actor, dict[int, Moment]] = {}  # of each stream, when which submission's event completes
        self._pages: dict[int, History] = {}
        self._histories: dict[int, History] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._gone: deque[weakref.KeyedRef[int, Any]] = deque()
        self._lock = threading.RLock()

    # ------------------------------------------------------------------ streams

    def works(self, stream: Stream, submission: Submission, reads: Sequence[Any], writes: Sequence[Any]) -> None:
        """``stream`` is about to be given work on these arrays.

        Raises:
            RaceError: nothing orders it with an earlier access. Nothing has been noted then.
        """
        with self._lock:
            actor = self._actor(stream)
            actor.learn_all(self._host)
            uses = _uses(f"stream '{stream.name}'", submission, reads, writes)
            self._check(actor, uses)
            position, known = actor.step(), self._host.clock
            for holders, region, written, origin in uses:
                for holder in holders:
                    self._history(holder).note(Access(actor, position, region, written, origin), known)

    def reads_on_host(self, array: Any, what: str, line: Line | None) -> None:
        """The host is about to read this array.

        Raises:
            RaceError: nothing orders the reading with an earlier write.
        """
        region = region_of(array)
        if region is not None:
            with self._lock:  # no need to note it: all later work knows what the host did before
                self._check(self._host, [(holders_of(array, region), region, False, Origin(what, HOST, line, None))])

    def waited(self, stream: Stream, event: Event) -> None:
        """``stream`` was made to wait for ``event``."""
        with self._lock:
            self._learn(self._actor(stream), event)

    def recorded(self, stream: Stream, event: Event | None) -> None:
        """``event`` was recorded on ``stream``. None says that all of its work is complete."""
        with self._lock:
            actor = self._actor(stream)
            if event is None:
                self._host.learn(actor.last)
                return
            owner = self._actor(event.stream)  # another stream, where a move ends on a stream of the target
            moments = self._moments[owner]
            moments[event.submission] = actor.last
            if len(moments) > _MOST_MOMENTS:
                self._forget_known(owner)

    def completed(self, event: Event) -> None:
        """The host has seen that ``event`` is complete."""
        with self._lock:
            self._learn(self._host, event)

    # ------------------------------------------------------------------ what drivers do

    def all_completed(self) -> None:
        """A driver has waited for all work, as it does before it takes memory back."""
        with self._lock:
            for actor in self._streams.values():
                self._host.learn(actor.last)

    def is_new(self, address: int, nbytes: int) -> None:
        """A driver hands out memory of a GPU, and orders its uses with those that it had before."""
        region = Region(address, nbytes)
        with self._lock:
            for page in range(address // PAGE_BYTES, (region.stop - 1) // PAGE_BYTES + 1):
                self._history(page).forget(region)

    # ------------------------------------------------------------------ moments

    def _actor(self, stream: Stream) -> Actor:
        """The actor that a stream is. Streams that share a queue of the hardware are one."""
        queue = getattr(stream, "lane", stream)
        actor = self._streams.get(queue)
        if actor is None:
            actor = self._streams[queue] = Actor(f"stream '{stream.name}'")
            self._moments[actor] = {}
        return actor

    def _learn(self, actor: Actor, event: Event) -> None:
        """All up to ``event`` happens before what ``actor`` does next."""
        moment = self._moments[self._actor(event.stream)].get(event.submission)
        if moment is not None:  # else it is from a time before the watch, or the host knows it
            actor.learn(moment)

    def _forget_known(self, actor: Actor) -> None:
        """Whatever works later knows what the host knows now."""
        known = self._host.clock
        moments = self._moments[actor].items()
        self._moments[actor] = {id: moment for id, moment in moments if moment.position > known.get(moment.actor, 0)}

    # ------------------------------------------------------------------ accesses

    def _check(self, actor: Actor, uses: Sequence[Use]) -> None:
        for holders, region, writes, origin in uses:
            for holder in holders:
                found = self._history(holder).conflict(region, writes, actor.clock)
                if found is not None:
                    race = _race(found, region, writes, origin)
                    self.races.append(str(race))
                    raise race

    def _history(self, memory: Any) -> History:
        """The history of a page, or of a piece of memory, which lasts as long as what owns it."""
        if isinstance(memory, int):
            return self._pages.setdefault(memory, History())
        while self._gone:
            try:
                gone = self._gone.popleft().key
            except IndexError:  # another thread was quicker
                break
            self._histories.pop(gone, None)
            self._references.pop(gone, None)
        key = id(memory)
        history = self._histories.get(key)
        if history is None:
            history = self._histories[key] = History()
            # What is called may be called at any moment: only a note is left, by a function of C, out of which no
            # interrupt is swallowed.
            self._references[key] = weakref.KeyedRef(memory, self._gone.append, key)
        return history


def _uses(where: str, submission: Submission, reads: Sequence[Any], writes: Sequence[Any]) -> list[Use]:
    what = f"{submission.kind} {submission.name!r}" if submission.name != submission.kind else submission.kind
    uses = []
    for arrays, buffers, written in ((reads, submission.reads, False), (writes, submission.writes, True)):
        for array, buffer in zip_longest(arrays, buffers):  # what a borrower of memory enqueues names no buffers
            region = region_of(array)
            if region is not None:
                origin = Origin(what, where, submission.line, buffer)
                uses.append((holders_of(array, region), region, written, origin))
    return uses


def _race(found: Access, region: Region, writes: bool, origin: Origin) -> errors.RaceError:
    first = found.origin
    changed_hands = None not in (first.buffer, origin.buffer) and first.buffer != origin.buffer
    return errors.RaceError(
        _sentence(first, found.writes, found.region),
        _sentence(origin, writes, region),
        _missing_edge(first, found.writes, origin),
        changed_hands,
    )


def _sentence(origin: Origin, writes: bool, region: Region) -> str:
    of = "" if origin.buffer is None else f" of buffer {origin.buffer}"
    line = "a line that is not known" if origin.line is None else str(origin.line)
    does = "writes" if writes else "reads"
    return f"{origin.what}, on {origin.where}, {does} {region.nbytes:,} bytes{of}; from {line}"


def _missing_edge(first: Origin, wrote: bool, second: Origin) -> str:
    """What would have ordered the two, in words."""
    event = f"an event recorded on {first.where} after the first has {'written' if wrote else 'read'}"
    if second.where == HOST:
        return f"the host does not wait for {event}"
    return f"{second.where} does not wait for {event}, and the host has not seen such an event complete"
