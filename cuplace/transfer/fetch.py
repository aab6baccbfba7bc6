"""Fetches: values on their way to pinned memory of the host, enqueued before anybody waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from cuplace.placement.memory_space import PINNED_HOST
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.task import CopyTask
from cuplace.transfer.path import HOST_PLATFORM

if TYPE_CHECKING:
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line
    from cuplace.transfer.plan import Slices

_PATH = "host"


class Wanted(NamedTuple):
    """What is to be read on the host: a buffer, or a part of it, contiguous in its memory."""

    buffer: Buffer
    part: Slices | None = None


class Fetching:
    """Values of an array that are on their way: what `begin_fetches` gave for the first holder of each distinct box."""

    __slots__ = ("__weakref__", "buffers")

    def __init__(self, buffers: Sequence[Buffer | None]) -> None:
        self.buffers = tuple(buffers)


def begin_fetches(wanted: Sequence[Wanted], line: Line | None) -> list[Buffer | None]:
    """Enqueue a copy of each to pinned memory of the host, all in one turn of the scheduler. Nothing is waited for.

    Returns:
        The buffers that the values arrive in; None for what the host reads in place, where there is nothing to copy.

    Raises:
        OutOfMemoryError: there is no host memory for one of them. Nothing has been enqueued then.
    """
    copied = [one for one in wanted if not _is_read_in_place(one.buffer)]
    arriving: dict[int, Buffer] = {}
    for scheduler in {one.buffer.device.scheduler for one in copied}:
        here = [one for one in copied if one.buffer.device.scheduler is scheduler]
        with scheduler.lock:
            targets = [_target(one) for one in here]
            arriving |= {id(one): target for one, target in zip(here, targets, strict=True)}
            scheduler.submit_moves(
                [
                    (CopyTask(part, None, _PATH, target.nbytes), buffer.device.download, buffer, target)
                    for (buffer, part), target in zip(here, targets, strict=True)
                ],
                line,
            )
    return [arriving.get(id(one)) for one in wanted]


def _is_read_in_place(buffer: Buffer) -> bool:
    return buffer.device.platform == HOST_PLATFORM or buffer.block.arena.memory.on_host


def _target(one: Wanted) -> Buffer:
    buffer, part = one
    shape = buffer.array.shape if part is None else tuple([piece.stop - piece.start for piece in part])
    device = buffer.device
    return device.scheduler.allocate(device.place(PINNED_HOST), shape, buffer.array.dtype, TRANSFER)
