"""The commitment rule: where an operation runs whose operands live in different places, or why it cannot.

Observed in JAX 0.10 and 0.12 (JAX_SEMANTICS section 5): uncommitted operands follow; committed ones must agree, first
on the mesh that is part of their type, then on the devices and their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from cuplace.placement.abstract_mesh import AbstractMesh
from cuplace.placement.sharding import Sharding

Operand = tuple[Sharding, bool]
"""The sharding of an operand, and whether the operand is committed to it."""


class Conflict(NamedTuple):
    """Two committed operands, by position, the first one first, that cannot meet in one operation.

    `reason` is 'mesh' where their types name different meshes of which not all axes are Auto, and 'devices' where
    they live on different devices, or on the same in another order.
    """

    first: int
    second: int
    reason: Literal["devices", "mesh"]


def governing(operands: Sequence[Operand]) -> int | Conflict | None:
    """The position of the operand whose placement decides where the operation runs.

    That is the first committed operand on a mesh with named axes, else the first committed on a mesh, else the first
    committed on a single device; None where no operand is committed. Conflicts of meshes are found before
    conflicts of devices, and each names the first pair.
    """
    committed = [place for place, (_, is_committed) in enumerate(operands) if is_committed]
    if not committed:
        return None
    shardings = {place: operands[place][0] for place in committed}
    meshes = {place: _mesh_in_type(sharding) for place, sharding in shardings.items()}
    conflict = _mesh_conflict(meshes) or _device_conflict(shardings)
    if conflict is not None:
        return conflict
    return min(committed, key=lambda place: (meshes[place] is None, shardings[place].mesh_or_none is None))


def _mesh_in_type(sharding: Sharding) -> AbstractMesh | None:
    """The mesh that an operand's type names; none for single devices and for meshes without axes."""
    mesh = sharding.mesh_or_none
    return mesh.abstract_mesh if mesh is not None and mesh.axis_names else None


def _mesh_conflict(meshes: dict[int, AbstractMesh | None]) -> Conflict | None:
    named = [(place, mesh) for place, mesh in meshes.items() if mesh is not None]
    for second, theirs in named[1:]:
        for first, ours in named:
            if first == second:
                break
            if ours is not theirs and not (ours.are_all_axes_auto and theirs.are_all_axes_auto):
                return Conflict(first, second, "mesh")
    return None


def _device_conflict(shardings: dict[int, Sharding]) -> Conflict | None:
    (first, ours), *others = shardings.items()
    for second, theirs in others:
        if ours.flat_devices != theirs.flat_devices:
            return Conflict(first, second, "devices")
    return None
