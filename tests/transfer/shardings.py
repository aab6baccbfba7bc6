"""Random shardings over pretended devices, for tests of plans: any order, replicas, several axes on a dimension."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from cuplace.placement.mesh import AxisType, Mesh
from cuplace.placement.sharding import NamedSharding, Sharding, SingleDeviceSharding
from cuplace.placement.spec import P


@dataclass(frozen=True, eq=False)
class PretendedDevice:
    """What placement sees of a device: two of them on each GPU."""

    id: int
    platform: str = "sim"
    device_kind: str = "pretended"
    process_index: int = 0
    memory_kinds: tuple[str, ...] = ("device",)

    @property
    def local_hardware_id(self) -> int:
        return self.id

    @property
    def gpu(self) -> int:
        return self.id // 2


DEVICES = tuple(PretendedDevice(i) for i in range(10))


def mesh(devices, sizes, names) -> Mesh:
    array = np.empty(len(devices), dtype=object)
    array[:] = list(devices)
    return Mesh(array.reshape(sizes), names, (AxisType.Explicit,) * len(names))


@st.composite
def meshes(draw: st.DrawFn, devices: tuple = DEVICES) -> Mesh:
    sizes = draw(st.lists(st.integers(1, 4), min_size=0, max_size=4).filter(lambda s: math.prod(s) <= len(devices)))
    order = draw(st.permutations(devices))
    return mesh(order[: math.prod(sizes)], sizes, tuple("abcd"[: len(sizes)]))


@st.composite
def specs(draw: st.DrawFn, axis_names: tuple[str, ...], ndim: int) -> P:
    dims: list[list[str]] = [[] for _ in range(ndim)]
    for axis in draw(st.permutations(axis_names)):
        where = draw(st.integers(-1, ndim - 1))
        if where >= 0:
            dims[where].append(axis)
    return P(*[tuple(dim) for dim in dims])


@st.composite
def shardings(draw: st.DrawFn, ndim: int, devices: tuple = DEVICES) -> Sharding:
    if draw(st.integers(0, 5)) == 0:
        return SingleDeviceSharding(draw(st.sampled_from(devices)))
    grid = draw(meshes(devices))
    return NamedSharding(grid, draw(specs(grid.axis_names, ndim)))


def pieces(sharding: Sharding, ndim: int) -> list[int]:
    """Into how many pieces the sharding cuts each dimension."""
    if not isinstance(sharding, NamedSharding):
        return [1] * ndim
    sizes = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_sizes, strict=True))
    entries = sharding.spec.padded(ndim).entries
    return [math.prod(sizes[axis] for axis in entry or ()) for entry in entries]


@st.composite
def transfers(draw: st.DrawFn, devices: tuple = DEVICES) -> tuple[tuple[int, ...], Sharding, Sharding]:
    """A shape, and two shardings that both fit it; also 0-d and empty shapes."""
    ndim = draw(st.integers(0, 4))
    source, target = draw(shardings(ndim, devices)), draw(shardings(ndim, devices))
    scale = st.sampled_from([1, 1, 2, 3, 0])
    shape = tuple(math.lcm(a, b) * draw(scale) for a, b in zip(pieces(source, ndim), pieces(target, ndim), strict=True))
    return shape, source, target
