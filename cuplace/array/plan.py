"""plan: what a move would do, as a value, before a byte moves."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from cuplace.array.dtypes import canonicalize
from cuplace.array.put import read_bound, read_target
from cuplace.array.route import check_fit
from cuplace.errors import MachineSizeError, NotAnArrayError, PlanMeshError, PlanSourceError
from cuplace.placement.abstract_mesh import AbstractMesh
from cuplace.placement.mesh import Mesh
from cuplace.placement.sharding import NamedSharding, Sharding, SingleDeviceSharding
from cuplace.runtime.config import config
from cuplace.runtime.context import current_default_device
from cuplace.runtime.device import Device
from cuplace.runtime.machine import Machine
from cuplace.runtime.presets import HGX_H200, find_machine
from cuplace.runtime.topology import Topology, find_topology
from cuplace.transfer.plan import TransferPlan, plan_move, plan_upload

_HOST = "host"


def plan(
    x: Any, sharding: Sharding | Device | Any, *, source: Any = None, machine: Machine | str | None = None,
    max_bytes: int | None = None,
) -> TransferPlan:  # fmt: skip
    """What `device_put(x, sharding, max_bytes=max_bytes)` does: which boxes are copied between which devices, or from
    the host, how they travel, and how long it takes. Nothing is moved, and no device is needed: shardings may be over
    an `AbstractMesh`, whose devices then are the first ones of the machine, or over meshes of
    `cuplace.topology(machine).devices`.

    Args:
        x: an array, or anything with `shape` and `dtype`, such as a ShapeDtypeStruct.
        sharding: where to; what `device_put` takes.
        source: where from, for an `x` that has no `sharding`; ``'host'`` for values of the caller's, which NumPy arrays
            are anyhow.
        machine: the machine to plan for: its name, a TOML file, or a `Machine` (see docs/machines.md). Without it,
            that of the devices; for an AbstractMesh the one that the option `sim_machine` names, else `hgx-h200`.
        max_bytes: bytes that the move may take of the memory of each device, as for `device_put`.

    Raises:
        PlanSourceError: a ValueError, where nothing tells where `x` is.
        PlanMeshError: a ValueError, where one sharding has devices and the other one has none.
        MachineSizeError: a ValueError, where the machine has fewer GPUs than the shardings use.
        MachineError: a ValueError; there is no such machine.
        NotAnArrayError: a TypeError, where `x` has no shape and dtype.
        RankError, IndivisibleError: ValueErrors, where a sharding does not fit the shape.
        MaxBytesError: a ValueError, where `max_bytes` is too little; its ``least`` is what would do.
        and what `device_put` raises for what is no target.

    >>> from cuplace.placement.spec import P
    >>> mesh = AbstractMesh((8,), ("x",))
    >>> rows, columns = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "x"))
    >>> made = plan(np.empty((1024, 1024), "float32"), columns, source=rows, machine="hgx-h200")
    >>> made.num_moves, made.nbytes, {move.path for move in made.moves} == {"peer", "local"}
    (64, 4194304, True)
    """
    shape, dtype, held = _read(x, source)
    wanted = read_target(sharding)
    if wanted is None:
        wanted = current_default_device() if held is None else held
    topology = None if machine is None else _topology(machine)
    bound = read_bound(max_bytes, (), "plan")
    if held is None:
        new, topology = _placed_alone(wanted, topology)
        check_fit(new, shape)
        return plan_upload(shape, dtype, new, topology, bound)
    old, new = _placed(held, wanted, topology)
    check_fit(old, shape)
    check_fit(new, shape)
    if topology is None and bound is None:
        return plan_move(shape, dtype, old, new, True)  # spelled as for device_put, so that both find the same plan
    return plan_move(shape, dtype, old, new, True, topology, bound)


def _read(x: Any, source: Any) -> tuple[tuple[int, ...], np.dtype[Any], Sharding | None]:
    """Shape and dtype on a device, and where the values are: None for the caller's own memory."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise NotAnArrayError(x)
    held = source if source is not None else getattr(x, "sharding", None)
    if held == _HOST if isinstance(held, str) else (held is None and isinstance(x, np.ndarray | np.generic)):
        return tuple(x.shape), canonicalize(x.dtype), None
    if isinstance(held, Device):
        held = SingleDeviceSharding(held)
    if not isinstance(held, Sharding):
        raise PlanSourceError(x, source)
    return tuple(x.shape), np.dtype(x.dtype), held


@lru_cache(maxsize=64)
def _topology(machine: Machine | str) -> Topology:
    return find_topology(find_machine(machine) if isinstance(machine, str) else machine)


@lru_cache(maxsize=4096)
def _placed(old: Sharding, new: Sharding | Device, topology: Topology | None) -> tuple[Sharding, Sharding]:
    """Both shardings over devices: those of the machine where the meshes are abstract."""
    target = SingleDeviceSharding(new) if isinstance(new, Device) else new
    if isinstance(old.mesh_or_none, AbstractMesh) != isinstance(target.mesh_or_none, AbstractMesh):
        raise PlanMeshError(old, target)
    return _placed_alone(old, topology)[0], _placed_alone(target, topology)[0]


@lru_cache(maxsize=4096)
def _placed_alone(wanted: Sharding | Device, topology: Topology | None) -> tuple[Sharding, Topology | None]:
    """A sharding over devices: the first ones of the machine, in order, where the mesh is abstract; and the machine."""
    sharding = SingleDeviceSharding(wanted) if isinstance(wanted, Device) else wanted
    if isinstance(sharding.mesh_or_none, AbstractMesh):
        topology = topology or _topology(config.sim_machine or HGX_H200)
        return _over(sharding, topology), topology
    if topology is not None:
        _check_size(topology, max(device.gpu for device in sharding.flat_devices) + 1)
    return sharding, topology


def _over(sharding: Sharding, topology: Topology) -> Sharding:
    mesh = sharding.mesh_or_none
    assert isinstance(mesh, AbstractMesh)
    assert isinstance(sharding, NamedSharding)
    _check_size(topology, mesh.size)
    devices = np.empty(mesh.size, dtype=object)
    devices[:] = topology.devices[: mesh.size]
    concrete = Mesh(devices.reshape(mesh.axis_sizes), mesh.axis_names, mesh.axis_types)
    return NamedSharding(concrete, sharding.spec, sharding.memory_kind)


def _check_size(topology: Topology, needed: int) -> None:
    if needed > topology.machine.total:
        raise MachineSizeError(topology.machine.name, topology.machine.total, needed)
