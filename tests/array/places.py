"""Meshes over the devices of a platform that tests of arrays share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cuplace.placement.mesh import AxisType, Mesh, make_mesh
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import P


@dataclass(frozen=True)
class Places:
    """The usual meshes: all devices, two halves, all in reverse, a 2x4 grid, single devices."""

    full: Mesh
    a: Mesh
    b: Mesh
    reverse: Mesh
    grid: Mesh
    auto: Mesh
    m0: Mesh


def places(platform) -> Places:
    devices = platform.devices
    return Places(
        full=make_mesh((8,), ("x",), devices=devices),
        a=make_mesh((4,), ("x",), devices=devices[:4]),
        b=make_mesh((4,), ("x",), devices=devices[4:]),
        reverse=make_mesh((8,), ("x",), devices=devices[::-1]),
        grid=make_mesh((2, 4), ("x", "y"), devices=devices),
        auto=make_mesh((8,), ("x",), (AxisType.Auto,), devices=devices),
        m0=make_mesh((1,), ("x",), devices=devices[:1]),
    )


def on(mesh: Mesh, *spec) -> NamedSharding:
    return NamedSharding(mesh, P(*spec))


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype="float32").reshape(shape)
