"""Shard: the part of an array that one device holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cuplace.array.array import Array
    from cuplace.runtime.device import Device


class Shard:
    """The part of an array on one device, from `Array.addressable_shards`.

    Attributes:
        device: where it is.
        index: which part of the array it is, one slice a dimension; ``slice(None)`` where the dimension is whole.
        replica_id: how many devices before it, in mesh order, hold the same part.
        data: the part itself, an array committed to the device. It shares the memory of the whole array and is
            deleted with it.

    >>> import numpy as np, cuplace
    >>> cuplace.device_put(np.float32([1, 2]), cuplace.devices()[0]).addressable_shards[0].index
    (slice(None, None, None),)
    """

    __slots__ = ("data", "device", "index", "replica_id")

    def __init__(self, device: Device, index: tuple[slice, ...], replica_id: int, data: Array) -> None:
        self.device = device
        self.index = index
        self.replica_id = replica_id
        self.data = data

    def __repr__(self) -> str:
        return f"Shard(device={self.device!r}, index={self.index}, replica_id={self.replica_id}, data={self.data})"
