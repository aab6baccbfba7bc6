"""History: who has read and written which bytes of one piece of memory, as far as it can still matter."""

from __future__ import annotations

from typing import NamedTuple

from cuplace.runtime.caller import Line
from cuplace.runtime.order.clock import Actor, Clock
from cuplace.runtime.order.region import Region

_SHORTEST_TO_PRUNE = 64


class Origin(NamedTuple):
    """Where an access comes from, for the report.

    Attributes:
        what: the work, as a report names it (``compute 'add'``).
        where: the stream, or ``the host``.
        line: the user's line, or None.
        buffer: the id of the buffer that the memory belonged to, or None.
    """

    what: str
    where: str
    line: Line | None
    buffer: int | None


class Access:
    """One use of memory: the ``position``-th step of ``actor`` reads or writes ``region``.

    ``start`` and ``stop`` bound the part of it that nothing later has overwritten.
    """

    __slots__ = ("actor", "position", "region", "start", "stop", "writes", "origin")

    def __init__(
        self, actor: Actor, position: int, region: Region, writes: bool, origin: Origin,
        start: int | None = None, stop: int | None = None,
    ) -> None:  # fmt: skip
        self.actor = actor
        self.position = position
        self.region = region
        self.writes = writes
        self.origin = origin
        self.start = region.start if start is None else start
        self.stop = region.stop if stop is None else stop

    def touches(self, region: Region) -> bool:
        """Whether the region has a byte of what is left of this access."""
        if self.start >= region.stop or region.start >= self.stop:
            return False
        if not region.dims:
            left, right = max(self.start, region.start), min(self.stop, region.stop)
            return self.region.overlaps(Region(left, right - left))
        return self.region.overlaps(region)

    def without(self, start: int, stop: int) -> list[Access]:
        """What is left of this access outside of an interval."""
        parts = [(self.start, min(self.stop, start)), (max(self.start, stop), self.stop)]
        return [
            Access(self.actor, self.position, self.region, self.writes, self.origin, low, high)
            for low, high in parts
            if low < high
        ]


class History:
    """The accesses of one piece of memory that something later may still have to be ordered with.

    The memory may have belonged to any number of buffers one after the other: its history knows nothing of them.
    """

    def __init__(self) -> None:
        self.accesses: list[Access] = []
        self._prune_at = _SHORTEST_TO_PRUNE

    def conflict(self, region: Region, writes: bool, clock: Clock) -> Access | None:
        """An earlier access to the same bytes that is not ordered before one that knows ``clock``, if there is any.

        Two reads do not conflict.
        """
        for access in self.accesses:
            if (
                (writes or access.writes)
                and access.start < region.stop
                and region.start < access.stop
                and clock.get(access.actor, 0) < access.position
                and access.touches(region)
            ):
                return access
        return None

    def note(self, new: Access, known: Clock) -> None:
        """Add an access that conflicts with nothing.

        What it makes needless is forgotten: later work that is ordered with the new access is ordered with what the
        new one covers and came after. ``known`` is what all later work will know.
        """
        region = new.region
        kept: list[Access] = []
        for access in self.accesses:
            if access.start >= region.stop or region.start >= access.stop:
                kept.append(access)
            elif new.writes and not region.dims:
                kept += access.without(region.start, region.stop)
            elif not (access.region.same(region) and (new.writes or _succeeds(new, access))):
                kept.append(access)
        kept.append(new)
        if len(kept) > self._prune_at:
            kept = [access for access in kept if known.get(access.actor, 0) < access.position]
            self._prune_at = max(_SHORTEST_TO_PRUNE, 2 * len(kept))
        self.accesses = kept

    def forget(self, region: Region) -> None:
        """Forget all uses of these bytes, which are contiguous."""
        kept: list[Access] = []
        for access in self.accesses:
            overlaps = access.start < region.stop and region.start < access.stop
            kept += access.without(region.start, region.stop) if overlaps else [access]
        self.accesses = kept


def _succeeds(new: Access, old: Access) -> bool:
    """Whether a read makes an earlier one of the same bytes needless."""
    return new.actor is old.actor and new.writes == old.writes
