"""Value: what is known of a value of a program while the program is being placed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cuplace.placement.memory_space import DEVICE
from cuplace.placement.sharding import NamedSharding, Sharding
from cuplace.placement.spec import PartitionSpec
from cuplace.staging.local import Constant, Slot

INPUT_LEVEL = -1


class Value(NamedTuple):
    """A value and where it is.

    Attributes:
        shape, dtype, weak_type: of the whole array.
        sharding: which part each device holds.
        place: where its buffers stand in the environment; -1 for numbers.
        level: how many moves come before it. Values of one level are made by one submission a device; inputs are
            on level -1.
        number: the number that it is, for numbers. An int stands for the input of that position, whose dtype is
            not settled before its first use.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    weak_type: bool
    sharding: Sharding
    place: int
    level: int
    number: Slot | Constant | int | None = None

    @property
    def spec(self) -> PartitionSpec:
        """The spec in full rank."""
        if isinstance(self.sharding, NamedSharding):
            return self.sharding.spec.padded(len(self.shape))
        return PartitionSpec().padded(len(self.shape))

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of what each device holds."""
        return self.sharding.layout(self.shape).shard_shape if self.number is None else ()

    @property
    def kind(self) -> str:
        """The kind of memory that it is in."""
        return self.sharding.memory_kind or DEVICE

    def relabelled(self, sharding: Sharding) -> Value:
        """The same data under another name of the same layout."""
        return self._replace(sharding=sharding)

    def update(self, **changes: Any) -> Value:
        """The same with some attributes changed."""
        return self._replace(**changes)
