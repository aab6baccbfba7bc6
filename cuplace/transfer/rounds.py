"""Rounds: which moves may pack at a time, so that the memory that they pack into stays under a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from cuplace.errors import MaxBytesError
from cuplace.runtime.staging import UNIT, most_staging

STAGING_BYTES = 64 << 20
"""Staging memory of a device at most, whatever more is allowed."""

LEAST_BYTES = 1 << 20
"""Staging memory with which a copy of any size is done. Less than its size and than this serves none."""

MOST_SLOTS = 64
"""Pieces that the staging memory of a device is cut into at most."""

SHARING = 4
"""Copies that share the staging memory of a device at a time, where it does not serve them all."""


class End(NamedTuple):
    """One end of a move that packs: the move's number, the device, and the bytes that the move copies."""

    move: int
    device: Any
    nbytes: int


class Slot(NamedTuple):
    """Staging memory that moves use one after the other."""

    device: Any
    nbytes: int


class Rounds:
    """The staging memory of some moves. A move that finds its slot in use comes in a later round: it waits, on the
    device, for the move that had it before.

    Attributes:
        slots: the memory.
        of_moves: for each move that packs, the numbers of its slots, the source's first.

    >>> rounds = Rounds([End(0, "a", 1000), End(1, "a", 1000), End(1, "b", 1000)], {"b": 100}, 1200)
    >>> rounds.slots, rounds.of_moves
    ([Slot(device='a', nbytes=1024), Slot(device='b', nbytes=1024)], {0: (0,), 1: (0, 1)})
    >>> rounds.earlier, rounds.staging_bytes
    ({1: (0,)}, {'a': 1024, 'b': 1024})
    """

    def __init__(self, ends: Sequence[End], new: Mapping[Any, int], max_bytes: int | None = None) -> None:
        """Divide what ``max_bytes`` leaves of each device beside its ``new`` bytes among the ends.

        Raises:
            MaxBytesError: a ValueError, where it leaves a device too little.
        """
        self.slots: list[Slot] = []
        self.of_moves: dict[int, tuple[int, ...]] = {}
        by_device: dict[Any, list[int]] = {}
        for number, end in enumerate(ends):
            by_device.setdefault(end.device, []).append(number)
        if max_bytes is not None:
            _check({device: [ends[i].nbytes for i in mine] for device, mine in by_device.items()}, new, max_bytes)
        taken = [0] * len(ends)
        for device, mine in by_device.items():
            room = STAGING_BYTES if max_bytes is None else min(STAGING_BYTES, max_bytes - new.get(device, 0))
            sizes = _sizes([ends[i].nbytes for i in mine], room)
            for turn, i in enumerate(mine):
                taken[i] = len(self.slots) + turn % len(sizes)
            self.slots += [Slot(device, size) for size in sizes]
        for end, slot in zip(ends, taken, strict=True):
            self.of_moves[end.move] = (*self.of_moves.get(end.move, ()), slot)

    @property
    def staging_bytes(self) -> dict[Any, int]:
        """The bytes of staging memory of each device that has any."""
        total: dict[Any, int] = {}
        for device, nbytes in self.slots:
            total[device] = total.get(device, 0) + nbytes
        return total

    @cached_property
    def earlier(self) -> dict[int, tuple[int, ...]]:
        """For each move that waits for a slot, the moves that had it before."""
        latest: dict[int, int] = {}
        found: dict[int, tuple[int, ...]] = {}
        for move in sorted(self.of_moves):
            before = tuple(dict.fromkeys([latest[slot] for slot in self.of_moves[move] if slot in latest]))
            if before:
                found[move] = before
            latest |= dict.fromkeys(self.of_moves[move], move)
        return found


def _sizes(copied: Sequence[int], room: int) -> list[int]:
    """The slots of a device for moves that copy so many bytes each: one for each if there is room, else as many equal
    ones as there are."""
    wanted = list(map(most_staging, copied))
    if sum(wanted) <= room and len(wanted) <= MOST_SLOTS:
        return wanted
    share = room // min(len(wanted), SHARING) // UNIT * UNIT
    size = min(max(wanted), max(share, min(LEAST_BYTES, room // UNIT * UNIT)))
    return [size] * min(len(wanted), room // size, MOST_SLOTS)


def _check(copied: Mapping[Any, Sequence[int]], new: Mapping[Any, int], max_bytes: int) -> None:
    least = {
        device: new.get(device, 0) + max([min(most_staging(n), LEAST_BYTES) for n in copied.get(device, ())], default=0)
        for device in {**new, **copied}
    }
    most = max(least, key=lambda device: least[device], default=None)
    if most is not None and least[most] > max_bytes:
        raise MaxBytesError(max_bytes, least[most], str(most), new.get(most, 0))
