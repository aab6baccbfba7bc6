"""Meshes and shardings, under the names of `jax.sharding`.

    >>> from cuplace.sharding import NamedSharding, PartitionSpec as P
    >>> P('x', None)
    P('x', None)
"""

from __future__ import annotations

from cuplace.placement.mesh import AbstractMesh, AxisType, Mesh
from cuplace.placement.sharding import NamedSharding, Sharding, SingleDeviceSharding
from cuplace.placement.spec import PartitionSpec
from cuplace.runtime.context import get_abstract_mesh, get_mesh

__all__ = [
    "AbstractMesh",
    "AxisType",
    "Mesh",
    "NamedSharding",
    "PartitionSpec",
    "Sharding",
    "SingleDeviceSharding",
    "get_abstract_mesh",
    "get_mesh",
]
