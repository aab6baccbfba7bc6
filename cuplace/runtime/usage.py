"""MemoryReport: where the memory of a platform is, by device, by GPU, and pinned on the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_COLUMNS = {
    "device": "device", "arrays": "arrays", "compute": "compute", "transfer": "transfer", "parked": "parked",
    "unused": "unused", "peak": "peak", "limit": "limit", "memory_waits": "waits",
}  # fmt: skip
_GPU_COLUMNS = {
    "gpu": "gpu", "name": "name", "total": "total", "free": "free", "cuplace": "cuplace", "pooled": "pooled",
    "others": "others",
}  # fmt: skip


@dataclass(frozen=True)
class DeviceUsage:
    """Memory of one device. All but the last in bytes.

    Attributes:
        device: which one, as errors name it; host memory of a device that was used has a row of its own.
        arrays: held by live arrays, memory that was adopted from others included.
        compute: in use of the compute arena: results of work, whether an array holds them or a running program.
        transfer: in use of the transfer arena: targets of moves and uploads, and memory that moves pass through.
        parked: dead, and waiting for unfinished work.
        unused: kept by the arenas for later requests. Pinned memory of arrays is kept for all devices together.
        peak: the most that was in use and parked at a time.
        limit: the option ``max_device_bytes``; host memory has none.
        memory_waits: how often a request had to wait, on the device or on the host, since memory was limited.
    """

    device: str
    arrays: int
    compute: int
    transfer: int
    parked: int
    unused: int
    peak: int
    limit: int | None
    memory_waits: int


@dataclass(frozen=True)
class GpuUsage:
    """Memory of one GPU, in bytes. What nobody tells is None.

    Attributes:
        gpu: its number, ``Device.gpu`` of the devices on it.
        name: what the hardware calls itself.
        uuid: its name in NVML, which knows GPUs and MIG instances by it.
        cuplace: taken by the devices on it: in use, parked and unused.
        pooled: unused in CuPy's memory pool.
        total, free: what NVML tells of the hardware.
        others: what is neither free nor cuplace's nor pooled: memory of other libraries in this process, of other
            processes, and of CUDA itself.
    """

    gpu: int
    name: str
    uuid: str | None
    cuplace: int
    pooled: int | None
    total: int | None
    free: int | None
    others: int | None


@dataclass(frozen=True)
class PinnedUsage:
    """Pinned host memory that copies between host and GPUs pass through. All but the last in bytes.

    Attributes:
        size: pinned now.
        peak: the most that was pinned at a time.
        limit: the option ``staging_bytes``.
        pressure_waits: how often a call waited since all of it was in use.
    """

    size: int
    peak: int
    limit: int
    pressure_waits: int


@dataclass(frozen=True, repr=False)
class MemoryReport:
    """What the memory of a platform is used for. Printed, it is a table.

    Attributes:
        platform: ``cuda``, ``cpu`` or ``sim``.
        devices: a DeviceUsage each.
        gpus: a GpuUsage for each GPU; empty but on cuda.
        pinned: the PinnedUsage; None but on cuda.
    """

    platform: str
    devices: tuple[DeviceUsage, ...]
    gpus: tuple[GpuUsage, ...] = ()
    pinned: PinnedUsage | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same as dicts and lists of plain numbers, strings and None, ready for JSON."""
        return {
            "platform": self.platform,
            "devices": [asdict(device) for device in self.devices],
            "gpus": [asdict(gpu) for gpu in self.gpus],
            "pinned": None if self.pinned is None else asdict(self.pinned),
        }

    def __repr__(self) -> str:
        lines = [f"Memory of {self.platform} in bytes", *_table(_COLUMNS, self.devices)]
        if self.gpus:
            lines += ["", *_table(_GPU_COLUMNS, self.gpus)]
        if self.pinned is not None:
            size, peak, limit, waits = asdict(self.pinned).values()
            lines += ["", f"pinned: {size:,} of at most {limit:,}, peak {peak:,}, {waits:,} waits for it"]
        return "\n".join(lines)


def _table(columns: dict[str, str], rows: Iterable[Any]) -> list[str]:
    cells = [list(columns.values()), *([_text(getattr(row, name)) for name in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [_line(row, widths) for row in cells]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    return "  ".join([first.strip().ljust(widths[0]), *rest])


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)
