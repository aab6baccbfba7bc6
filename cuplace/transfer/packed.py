"""Which moves of a plan are packed on their way, and at which ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cuplace.placement.memory_space import DEVICE, UNPINNED_HOST
from cuplace.runtime.staging import packed_ends
from cuplace.runtime.strided import contiguous_strides
from cuplace.transfer.path import HOST_PLATFORM
from cuplace.transfer.table import NOTHING, Table

if TYPE_CHECKING:
    from cuplace.placement.sharding import Sharding

Flags: TypeAlias = npt.NDArray[np.bool_]


class Packed(NamedTuple):
    """For each move whether it is packed at its source, and whether it is unpacked at its target."""

    sent: Flags
    received: Flags

    @property
    def rows(self) -> list[int]:
        """The moves that are packed anywhere."""
        found: list[int] = np.flatnonzero(self.sent | self.received).tolist()
        return found


def find_packed(table: Table, shape: tuple[int, ...], itemsize: int, source: Sharding, target: Sharding) -> Packed:
    """Between GPUs, boxes with short rows; between a GPU and host memory that is not pinned, the same on the GPU.

    Only shapes matter: all shards of a sharding have the same, so that few kinds of boxes are looked at.
    """
    count, late = len(table.sources), table.after != NOTHING
    far = _far(table, late, source, target)
    sent, received = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    if far.any():
        strides = [contiguous_strides(place.layout(shape).shard_shape, itemsize) for place in (source, target)]
        rows = np.column_stack((table.stops - table.starts, late))[far]
        kinds, kind_of = np.unique(rows, axis=0, return_inverse=True)
        ends = [packed_ends(tuple(box), itemsize, strides[is_late], strides[1]) for *box, is_late in kinds.tolist()]
        flags = np.array(ends, dtype=bool)[kind_of.reshape(-1)]
        sent[far] = flags[:, 0] & _is_on_devices(source)
        received[far] = flags[:, 1] & _is_on_devices(target)
    return Packed(sent, received)


def _far(table: Table, late: Flags, source: Sharding, target: Sharding) -> Flags:
    """The moves that may be packed: those that leave their GPU, unless a kernel reads or writes pinned memory."""
    froms, tos = source.flat_devices, target.flat_devices
    kinds = source.memory_kind, target.memory_kind
    if HOST_PLATFORM in (froms[0].platform, tos[0].platform):
        return np.zeros(len(late), dtype=bool)
    if not (_is_on_devices(source) and _is_on_devices(target)):
        passes_ring = UNPINNED_HOST in kinds and (_is_on_devices(source) or _is_on_devices(target))
        return np.full(len(late), passes_ring)
    gpus: dict[Any, int] = {}
    here, there = (
        np.array([gpus.setdefault((device.process_index, device.gpu), len(gpus)) for device in devices], dtype=np.int64)
        for devices in (froms, tos)
    )
    begins = np.where(late, there[np.where(late, table.sources, 0)], here[np.where(late, 0, table.sources)])
    far: Flags = begins != there[table.targets]
    return far


def _is_on_devices(sharding: Sharding) -> bool:
    return sharding.memory_kind in (None, DEVICE)
