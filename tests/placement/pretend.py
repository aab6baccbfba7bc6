"""Pretended devices, and random meshes, specs and shapes over them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import strategies as st

from cuplace.placement.mesh import AxisType, Mesh, make_mesh
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import P


@dataclass(frozen=True, eq=False)
class PretendedDevice:
    """What placement sees of a device."""

    id: int
    platform: str = "cpu"
    device_kind: str = "cpu"
    process_index: int = 0
    memory_kinds: tuple[str, ...] = ("device", "pinned_host")

    @property
    def local_hardware_id(self) -> int | None:
        return self.id if self.process_index == 0 else None

    def __repr__(self) -> str:
        return f"CpuDevice(id={self.id})"

    def __reduce__(self) -> tuple[object, ...]:
        return device_by_id, (self.id,)


DEVICES = [PretendedDevice(number) for number in range(20)]


def device_by_id(number: int) -> PretendedDevice:
    return DEVICES[number]


NAMES = ("x", "y", "z", "w")


def line(count: int = 8, name: str = "x", kind: AxisType = AxisType.Explicit, first: int = 0) -> Mesh:
    """A mesh of one axis over consecutive devices."""
    return make_mesh((count,), (name,), (kind,), devices=DEVICES[first : first + count])


def grid(*sizes: int, kind: AxisType = AxisType.Explicit) -> Mesh:
    """A mesh over the first devices, its axes named x, y, z, w."""
    return make_mesh(sizes, NAMES[: len(sizes)], (kind,) * len(sizes), devices=DEVICES)


class Placed(NamedTuple):
    """A sharding and a shape that it cuts evenly."""

    sharding: NamedSharding
    shape: tuple[int, ...]


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    sizes = draw(st.lists(st.integers(1, 4), max_size=4).filter(lambda sizes: math.prod(sizes) <= len(DEVICES)))
    names = draw(st.permutations(NAMES))[: len(sizes)]
    types = draw(st.lists(st.sampled_from(AxisType), min_size=len(sizes), max_size=len(sizes)))
    return make_mesh(sizes, names, types, devices=draw(st.permutations(DEVICES)))


@st.composite
def placements(draw: st.DrawFn) -> Placed:
    mesh = draw(meshes())
    rank = draw(st.integers(0, 4))
    entries: list[tuple[str, ...]] = [()] * rank
    for name in draw(st.permutations(mesh.axis_names)):
        dim = draw(st.integers(-1, rank - 1))
        if dim >= 0:
            entries[dim] = (*entries[dim], name)
    shape = tuple(math.prod(mesh.shape[name] for name in entry) * draw(st.integers(0, 3)) for entry in entries)
    spec = P(*entries)
    return Placed(NamedSharding(mesh, spec.trimmed() if draw(st.booleans()) else spec), shape)
