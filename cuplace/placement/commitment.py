"""The commitment rule: on whose devices a program runs where several say where, or which two cannot agree.

Observed in JAX 0.10 and 0.12 (JAX_SEMANTICS sections 5 and 6): uncommitted operands follow and have no say; all that
has one must agree on the devices and their order. Whether types agree on a mesh is settled before, while the program
is traced (`cuplace.ops.rule.common_mesh`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cuplace.placement.sharding import Sharding


class Conflict(NamedTuple):
    """Two shardings, by position, the first one first, on different devices, or on the same in another order."""

    first: int
    second: int


def governing(shardings: Sequence[Sharding]) -> int | Conflict:
    """The position of the sharding that decides where a program runs.

    That is the first one on a mesh with named axes, else the first one on a mesh, else the first one. Where two
    disagree there is none, and the first such pair is named.

    >>> import cuplace
    >>> from cuplace.placement.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
    >>> device = SingleDeviceSharding(cuplace.devices()[0])
    >>> rows = NamedSharding(cuplace.make_mesh((1,), ("x",)), PartitionSpec("x"))
    >>> governing([device, rows])
    1

    Args:
        shardings: of committed operands, then of what else has a say; at least one.
    """
    # To agree is transitive: whoever disagrees with any of them disagrees with the first.
    devices = shardings[0].flat_devices
    for position, sharding in enumerate(shardings):
        if sharding.flat_devices != devices:
            return Conflict(0, position)
    return min(range(len(shardings)), key=lambda position: _rank(shardings[position]))


def _rank(sharding: Sharding) -> int:
    """What wins comes first: a mesh with named axes, a mesh without, a single device."""
    mesh = sharding.mesh_or_none
    return 2 if mesh is None else 0 if mesh.axis_names else 1
