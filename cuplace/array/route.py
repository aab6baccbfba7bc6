"""Route: how an array, or a value from the host, gets to a target; decided once for each key and target."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from cuplace.array.key import OperandKey, operand_key, type_under
from cuplace.errors import ForeignPlatformError, IndivisibleError
from cuplace.placement.mesh import Mesh
from cuplace.placement.sharding import NamedSharding, Sharding, SingleDeviceSharding
from cuplace.runtime.context import current_default_device
from cuplace.runtime.device import Device
from cuplace.transfer.plan import TransferPlan, plan_move

CACHED_ROUTES = 4096


class Route(NamedTuple):
    """How an array gets to its target.

    Attributes:
        key: of the result.
        plan: the moves to make, or None where the memory serves as it is.
        is_same: whether the array itself is the result.
    """

    key: OperandKey
    plan: TransferPlan | None
    is_same: bool


@lru_cache(maxsize=CACHED_ROUTES)
def route(key: OperandKey, target: Sharding | Device, may_alias: bool | None = None) -> Route:
    """The route of an array with this key. With ``may_alias=False`` all memory of the result is new.

    Raises:
        RankError, IndivisibleError: ValueErrors, where the target does not fit the shape.
        ForeignPlatformError: a ValueError, for a target on another platform.
    """
    sharding = SingleDeviceSharding(target) if isinstance(target, Device) else target
    here, there = key.sharding.flat_devices[0], sharding.flat_devices[0]
    if here.scheduler is not there.scheduler:
        raise ForeignPlatformError(str(here.platform), str(there.platform))
    old = key.type
    check_fit(sharding, old.shape)
    new = operand_key(type_under(old.shape, old.dtype, old.weak_type, sharding), sharding, True)
    plan = plan_move(old.shape, old.dtype, key.sharding, sharding, may_alias is not False)
    if not plan.is_identity:
        return Route(new, plan, False)
    return Route(new, None, new is key and isinstance(sharding, NamedSharding))


def host_key(
    shape: tuple[int, ...], dtype: np.dtype[Any], weak_type: bool, target: Sharding | Device | None
) -> OperandKey:
    """The key of the array that a host value becomes: uncommitted on the default device without a target.

    Raises:
        RankError, IndivisibleError: ValueErrors, where the target does not fit the shape.
    """
    if target is None:
        return _host_key(shape, dtype, weak_type, current_default_device(), False)
    return _host_key(shape, dtype, weak_type, target, True)


@lru_cache(maxsize=CACHED_ROUTES)
def _host_key(
    shape: tuple[int, ...], dtype: np.dtype[Any], weak_type: bool, target: Sharding | Device, committed: bool
) -> OperandKey:
    sharding = SingleDeviceSharding(target) if isinstance(target, Device) else target
    check_fit(sharding, shape)
    return operand_key(type_under(shape, dtype, weak_type, sharding), sharding, committed)


def check_fit(sharding: Sharding, shape: tuple[int, ...]) -> None:
    """Check that a sharding cuts a shape into equal pieces.

    Raises:
        RankError, IndivisibleError: ValueErrors, with the texts that JAX gives for `device_put`.
    """
    try:
        sharding.layout(shape)
    except IndivisibleError:
        assert isinstance(sharding, NamedSharding)
        raise IndivisibleError(_indivisible_text(sharding, shape)) from None


def _indivisible_text(sharding: NamedSharding, shape: tuple[int, ...]) -> str:
    parts = sharding.tiling(len(shape)).parts
    dim = next(dim for dim, size in enumerate(shape) if size % parts[dim])
    mesh = sharding.mesh.abstract_mesh if isinstance(sharding.mesh, Mesh) else sharding.mesh
    return (
        f"Sharding spec {sharding.spec.entries[dim]} implies that array axis {dim} is partitioned {parts[dim]} times, "
        f"but does not evenly divide the dimension size {shape[dim]}. Got shape: {shape} and sharding "
        f"NamedSharding(mesh={mesh}, spec={sharding.spec})\n"
        f"Pad the array so that {parts[dim]} divides axis {dim}, or leave the axis whole (None in the spec)."
    )
