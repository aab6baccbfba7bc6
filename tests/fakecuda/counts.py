"""What the fake has counted: calls, what blocked, bytes by direction, memory, and every copy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from tests.fakecuda import native

HOST = -1
"""The device number of host memory."""

DIRECTIONS = ("h2d", "d2h", "d2d", "p2p", "h2h")
"""In the order of ``Direction`` in ``src/records.h``."""


class Copy(NamedTuple):
    """One copy call.

    Attributes:
        number: counted from the last reset.
        direction: ``h2d``, ``d2h``, ``d2d`` (within a device), ``p2p`` (between devices) or ``h2h``.
        pageable: whether one side is pageable host memory, so that the call blocks.
        target, source: addresses.
        target_device, source_device: ``HOST`` for host memory.
        nbytes: of all rows.
        width, rows, slices: bytes a row, rows a slice, slices.
        target_pitch, source_pitch: bytes from row to row.
        stream: the handle; 0 for a default stream.
        stream_device: the stream's device.
        host_thread: who called.
    """

    number: int
    direction: str
    pageable: bool
    target: int
    source: int
    target_device: int
    source_device: int
    nbytes: int
    width: int
    rows: int
    slices: int
    target_pitch: int
    source_pitch: int
    stream: int
    stream_device: int
    host_thread: int


class Memory(NamedTuple):
    """Bytes of a device, or of pinned memory: allocated now, and at most since the last reset."""

    used: int
    peak: int


class Blocking(NamedTuple):
    """A call that made the host wait, or could have, with the lines that it came from."""

    name: str
    user: str | None
    library: str | None


@dataclass(frozen=True)
class Counters:
    """Counted since the last ``reset`` or ``reset_counters``.

    Attributes:
        calls: of each runtime or driver function.
        blocking: waits by name: synchronizations, copies without a stream, copies of pageable memory.
        blocking_calls: the same, one by one, with their lines.
        implicit: calls that may wait for the device although they are no waits: ``cudaMalloc``, ``cudaFree``,
            ``cudaHostAlloc``, ``cuModuleLoadData``, ...
        launches: of each kernel.
        bytes: copied, by direction.
        links: copied, by (source, target) device; ``HOST`` for host memory.
        filled: bytes of ``cudaMemset``.
        devices: memory of each.
        pinned: pinned memory.
        device_blocks, pinned_blocks: how many allocations are alive.
        streams, events: how many are alive, default streams left out.
        threads: host threads that are alive and have enqueued something, or waited for it.
    """

    calls: dict[str, int]
    blocking: dict[str, int]
    blocking_calls: tuple[Blocking, ...]
    implicit: dict[str, int]
    launches: dict[str, int]
    bytes: dict[str, int]
    links: dict[tuple[int, int], int]
    filled: int
    devices: tuple[Memory, ...]
    pinned: Memory
    device_blocks: int
    pinned_blocks: int
    streams: int
    events: int
    threads: int


def counters() -> Counters:
    """What was counted so far."""
    raw = json.loads(native.library().fake_counters().decode())
    links = {(source, target): nbytes for source, target, nbytes in raw["bytes"]}
    total = dict.fromkeys(DIRECTIONS, 0)
    for (source, target), nbytes in links.items():
        total[_direction(source, target)] += nbytes
    calls = tuple(Blocking(c["name"], c["place"]["user"], c["place"]["library"]) for c in raw["blocking_calls"])
    return Counters(
        calls=raw["calls"],
        blocking=raw["blocking"],
        blocking_calls=calls,
        implicit=raw["implicit"],
        launches=raw["launches"],
        bytes=total,
        links=links,
        filled=raw["filled"],
        devices=tuple(Memory(d["used"], d["peak"]) for d in raw["devices"]),
        pinned=Memory(raw["pinned_used"], raw["pinned_peak"]),
        device_blocks=raw["device_blocks"],
        pinned_blocks=raw["pinned_blocks"],
        streams=raw["streams"],
        events=raw["events"],
        threads=raw["threads"],
    )


def reset_counters() -> None:
    """Count from zero again; peaks start at what is allocated now."""
    native.library().fake_reset_counters()


def copies() -> list[Copy]:
    """Every copy call since the last reset (the last million of them), in order."""
    library = native.library()
    count = library.fake_copies(None, 0)
    records = (native.PlainCopy * max(count, 1))()
    count = min(count, library.fake_copies(records, count))
    return [_copy(record) for record in records[:count]]


def _copy(record: native.PlainCopy) -> Copy:
    values = {name: getattr(record, name) for name in Copy._fields}
    return Copy(**{**values, "direction": DIRECTIONS[record.direction], "pageable": bool(record.pageable)})


def _direction(source: int, target: int) -> str:
    if target == HOST:
        return "h2h" if source == HOST else "d2h"
    if source == HOST:
        return "h2d"
    return "d2d" if source == target else "p2p"
