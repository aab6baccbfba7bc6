"""Shardings that users ask for with ``in_shardings`` and ``out_shardings``: read, spread over leaves, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import optree

from cuplace import errors
from cuplace.array.key import OperandKey
from cuplace.array.pytree import broadcast_prefix
from cuplace.placement.sharding import NamedSharding, Sharding
from cuplace.placement.spec import PartitionSpec
from cuplace.runtime.context import context_mesh

if TYPE_CHECKING:
    from cuplace.array.type import ArrayType


class _Unspecified:
    def __repr__(self) -> str:
        return "UnspecifiedValue"


UNSPECIFIED = _Unspecified()


def check_leaves(name: str, shardings: Any) -> None:
    """Check that a pytree holds shardings, specs and None only.

    Raises:
        ShardingLeafError: a TypeError.
    """
    for leaf in optree.tree_leaves(shardings, none_is_leaf=True):
        if leaf is not None and leaf is not UNSPECIFIED and not isinstance(leaf, Sharding | PartitionSpec):
            raise errors.ShardingLeafError(
                f"{name} leaf specifications are expected to be PartitionSpec instances or None, but got {leaf}\n"
                "Give a NamedSharding, a SingleDeviceSharding(device), or None to leave the place open."
            )


def spread_inputs(shardings: Any, args: Sequence[Any], kwargs: Any, num_leaves: int) -> list[Sharding | None]:
    """One sharding, or None, for each leaf of the arguments.

    Raises:
        ShardingPrefixError: a ValueError; the structure does not fit, or there are keyword arguments.
        NoContextMeshError: a RuntimeError; a bare spec without a context mesh.
    """
    if shardings is UNSPECIFIED:
        return [None] * num_leaves
    if kwargs:
        raise errors.ShardingPrefixError("pjit does not support kwargs when in_shardings is specified.")
    if isinstance(shardings, tuple | list) and len(shardings) != len(args):
        raise errors.ShardingPrefixError(
            "pjit in_shardings specification must be a tree prefix of the positional arguments tuple. In particular, "
            "pjit in_shardings must either be a Sharding, a PartitionSpec, or a tuple of length equal to the number "
            f"of positional arguments. But pjit in_shardings is the wrong length: got a tuple or list of length "
            f"{len(shardings)} for an args tuple of length {len(args)}."
        )
    prefix = tuple(shardings) if isinstance(shardings, list) else shardings
    spread = broadcast_prefix("pjit in_shardings", prefix, tuple(args), num_leaves)
    return [_read("in_shardings", sharding) for sharding in spread]


def spread_outputs(shardings: Any, structure: Any) -> list[Sharding | None]:
    """One sharding, or None, for each leaf of the results. Raises as `spread_inputs` does."""
    count = structure.num_leaves
    if shardings is UNSPECIFIED:
        return [None] * count
    tree = optree.tree_unflatten(structure, range(count))
    spread = broadcast_prefix("pjit out_shardings", shardings, tree, count)
    return [_read("out_shardings", sharding) for sharding in spread]


def _read(name: str, sharding: Any) -> Sharding | None:
    if sharding is UNSPECIFIED:
        return None
    if isinstance(sharding, PartitionSpec):
        mesh = context_mesh()
        if mesh is None:
            raise errors.NoContextMeshError(
                f"jit requires a non-empty mesh in context if you are passing `PartitionSpec`s to {name}. You can "
                "define a context mesh via `jax.set_mesh(mesh)`. Alternatively, provide `Sharding`s to "
                f"{name} and then the mesh context manager is not required."
            )
        return NamedSharding(mesh, sharding)
    found: Sharding | None = sharding
    return found


def check_fit(what: str, path: str, sharding: Sharding | None, type: ArrayType) -> None:
    """Check that an argument or result can be cut as it was asked for. ``what`` is ``arguments`` or ``outputs``.

    Raises:
        RankError, IndivisibleError: ValueErrors.
    """
    if sharding is None:
        return
    try:
        sharding.layout(type.shape)
    except errors.RankError:
        assert isinstance(sharding, NamedSharding)
        raise errors.RankError(
            f"One of pjit {what} with pytree key path {path} is incompatible with its sharding annotation {sharding}: "
            f"Sharding {sharding} is only valid for values of rank at least {len(sharding.spec)}, but was applied to a "
            f"value of rank {type.ndim}."
        ) from None
    except errors.IndivisibleError as error:
        raise errors.IndivisibleError(
            f"One of pjit {what} with pytree key path {path} was given the sharding of {sharding}, which does not "
            f"fit its shape {type.shape}:\n{error}"
        ) from None


def check_argument(sharding: Sharding | None, key: Any) -> None:
    """Check that an argument is in the memory, and a committed one is where ``in_shardings`` wants it.

    Raises:
        ArgumentShardingError: a ValueError.
    """
    if sharding is None or type(key) is not OperandKey:
        return
    asked, own = sharding.memory_kind, key.sharding.memory_kind
    if asked != own:
        raise errors.ArgumentShardingError(
            "Memory kinds passed to jax.jit does not match memory kind on the respective arg. Got jit memory kind: "
            f"{asked}, arg memory kind: {own} for arg type: {key.type}\nMove the argument first, with "
            f"device_put(x, x.sharding.with_memory_kind({asked!r}))."
        )
    if key.committed and not key.sharding.is_equivalent_to(sharding, key.type.ndim):
        raise errors.ArgumentShardingError(
            f"Sharding passed to jit does not match the sharding on the respective arg. Got jit sharding: {sharding},\n"
            f"arg sharding: {key.sharding} for arg type: {key.type}\n"
            f"The first is on the devices {list(sharding.flat_ids)}, the second on {list(key.sharding.flat_ids)}. Move "
            "the argument first, with device_put, or leave its in_sharding open (None)."
        )
