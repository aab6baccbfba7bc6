"""The commitment rule: where an operation runs whose operands live in different places, or why it cannot.

Observed in JAX 0.10 and 0.12 (JAX_SEMANTICS section 5): uncommitted operands follow; committed ones must agree, first
on the mesh that is part of their type, then on the devices and their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

from cuplace.placement.abstract_mesh import AbstractMesh
from cuplace.placement.sharding import Sharding

T = TypeVar("T")

Reason = Literal["devices", "mesh"]

Operand = tuple[Sharding, bool]
"""The sharding of an operand, and whether the operand is committed to it."""


class Conflict(NamedTuple):
    """Two committed operands, by position, the first one first, that cannot meet in one operation.

    `reason` is 'mesh' where their types name different meshes of which not all axes are Auto, and 'devices' where
    they live on different devices, or on the same in another order.
    """

    first: int
    second: int
    reason: Reason


def governing(operands: Sequence[Operand]) -> int | Conflict | None:
    """The position of the operand whose placement decides where the operation runs.

    That is the first committed operand on a mesh with named axes, else the first committed on a mesh, else the first
    committed on a single device; None where no operand is committed. Conflicts of meshes are found before
    conflicts of devices, and each names the first pair.

    >>> from cuplace.placement.sharding import AbstractMesh, NamedSharding, PartitionSpec
    >>> rows = NamedSharding(AbstractMesh((8,), ('x',)), PartitionSpec('x'))
    >>> columns = NamedSharding(AbstractMesh((8,), ('y',)), PartitionSpec('y'))
    >>> governing([(rows, False), (columns, True)])
    1
    >>> governing([(rows, True), (columns, True)])
    Conflict(first=0, second=1, reason='mesh')
    """
    committed = {place: sharding for place, (sharding, is_committed) in enumerate(operands) if is_committed}
    if not committed:
        return None
    # To agree is transitive: whoever disagrees with any operand disagrees with the first.
    named = {place: mesh for place, sharding in committed.items() if (mesh := _mesh_in_type(sharding))}
    conflict = _disagreement(named, _same_mesh, "mesh") or _disagreement(committed, _same_devices, "devices")
    if conflict is not None:
        return conflict
    return min(committed, key=lambda place: (place not in named, committed[place].mesh_or_none is None))


def _mesh_in_type(sharding: Sharding) -> AbstractMesh | None:
    """The mesh that an operand's type names; none for single devices and for meshes without axes."""
    mesh = sharding.mesh_or_none
    return mesh.abstract_mesh if mesh is not None and mesh.axis_names else None


def _disagreement(values: dict[int, T], agree: Callable[[T, T], bool], reason: Reason) -> Conflict | None:
    """The first value that does not agree with the first of all."""
    places = iter(values)
    first = next(places, None)
    for second in places:
        if first is not None and not agree(values[first], values[second]):
            return Conflict(first, second, reason)
    return None


def _same_mesh(ours: AbstractMesh, theirs: AbstractMesh) -> bool:
    return ours is theirs or (ours.are_all_axes_auto and theirs.are_all_axes_auto)


def _same_devices(ours: Sharding, theirs: Sharding) -> bool:
    return ours.flat_devices == theirs.flat_devices
