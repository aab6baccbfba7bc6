"""Shortage: what is done when there is no memory, and what is told when that did not help."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace import errors

if TYPE_CHECKING:
    from cuplace.runtime.memory import Block, DeviceMemory

Living = tuple[int, Callable[[], str]]
"""Something alive: its bytes, and a function that describes it."""

holders: Callable[[DeviceMemory], dict[Block, Living]] | None = None
"""``holders(memory)`` tells the blocks of a memory that live arrays hold, with the arrays. The array floor sets it."""

_LISTED = 8  # rows of the table that tells what fills the memory


def collect_garbage(memory: DeviceMemory) -> None:
    """Let go of arrays that only garbage holds: reference cycles, the frames of tracebacks."""
    scheduler = memory.device.scheduler
    for _ in range(2):  # what an error keeps whose traceback holds its buffer is gone only the second time
        gc.collect()
        scheduler.park()


def reclaim(memory: DeviceMemory) -> None:
    """Get back all memory of the hardware that nobody needs: of arrays that are garbage, of dead blocks, which are
    waited for, and what pools keep."""
    collect_garbage(memory)
    for neighbour in _on_the_same_hardware(memory):
        neighbour.wait_for_all_parked()
        neighbour.trim()
    if memory.on_host:
        memory.backend.trim()


def out_of_memory(
    memory: DeviceMemory, nbytes: int, what: str, limit: int | None = None, reason: str = ""
) -> errors.OutOfMemoryError:
    """The error that says that there are no ``nbytes`` for ``what``, with a table of the largest live arrays.

    Where it was not ``limit`` that was reached, ``reason`` is what the allocator said, and the arrays of all devices on
    the same hardware are listed.
    """
    notes: list[str] = []
    memories = [memory]
    if limit is None:
        notes = [f"The allocator said: {reason}"] if reason else []
        notes += [] if memory.on_host else memory.backend.shortage(memory.device, nbytes)
        memories = _on_the_same_hardware(memory)
    rows = sorted((row for each in memories for row in living(each)), key=lambda row: -row[0])
    listed = [(size, text()) for size, text in rows[:_LISTED]]
    rest = rows[_LISTED:]
    if rest:
        listed.append((sum(size for size, _ in rest), f"in {len(rest)} more"))
    return errors.OutOfMemoryError(memory.name, nbytes, what, memory.in_use, limit, listed, notes)


def living(memory: DeviceMemory) -> list[Living]:
    """What is alive in a memory: arrays, and values that no array holds, such as those inside of running programs."""
    found: dict[Block, Living] = {
        block: (block.nbytes, partial(value_text, block.shape, block.dtype)) for block in memory.live_blocks()
    }
    if holders is not None:
        found.update(holders(memory))
    return list(found.values())


def value_text(shape: tuple[int, ...], dtype: np.dtype[Any] | None) -> str:
    """What a block holds, in a word."""
    return f"{dtype}{list(shape)}"


def _on_the_same_hardware(memory: DeviceMemory) -> list[DeviceMemory]:
    """The memories that share the hardware of one, itself included: those of a GPU's partitions, those of the host."""
    device = memory.device
    return [
        other
        for each in device.scheduler.devices
        for other in each.memories()
        if other.on_host == memory.on_host and (memory.on_host or each.gpu == device.gpu)
    ]
