"""``out_sharding=``: where the user wants the result of an operation whose operands leave a choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuplace import errors
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import PartitionSpec
from cuplace.runtime.context import context_mesh


def out_sharding(wanted: Any) -> NamedSharding | None:
    """The sharding that a user asked for; a bare spec is one on the context mesh.

    Raises:
        SpecWithoutMeshError: a ValueError, for a bare spec where no mesh is set.
        ArgumentTypeError: a TypeError, for anything else than a NamedSharding or a spec.
    """
    if wanted is None or isinstance(wanted, NamedSharding):
        return wanted
    if not isinstance(wanted, PartitionSpec):
        raise errors.ArgumentTypeError(
            f"`out_sharding` argument only supports instances of `NamedSharding` or `PartitionSpec`. Got {wanted!r}\n"
            "Write NamedSharding(mesh, P(...)), on the mesh of the operands; device_put moves results elsewhere."
        )
    mesh = context_mesh()
    if mesh is None or mesh.empty:
        raise errors.SpecWithoutMeshError(wanted, "reshard")
    return NamedSharding(mesh, wanted)


def permuted(sharding: NamedSharding | None, order: Sequence[int]) -> NamedSharding | None:
    """The sharding of an array whose dimension ``order[i]`` will become dimension ``i`` of a result in ``sharding``."""
    if sharding is None:
        return None
    entries = list(sharding.spec.padded(len(order)))
    before: list[Any] = [None] * len(order)
    for i, dim in enumerate(order):
        before[dim] = entries[i]
    return sharding.update(spec=PartitionSpec(*before))
