"""Arrays in different places, for tests of functions of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

import cuplace
from cuplace.array.array import Array
from cuplace.placement.axes import AxisType
from cuplace.placement.mesh import Mesh
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import PartitionSpec as P


def grid(kind: AxisType = AxisType.Explicit) -> Mesh:
    """A mesh of 2 by 4 devices."""
    return cuplace.make_mesh((2, 4), ("x", "y"), (kind, kind))


def put(values: Any, *entries: Any, kind: AxisType = AxisType.Explicit) -> Array:
    """Values on the mesh, sharded by these entries of a spec."""
    return cuplace.device_put(np.asarray(values), NamedSharding(grid(kind), P(*entries)))


def counted(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """The numbers from 0 on, in a shape."""
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


def spec_of(x: Array) -> P:
    """The spec without trailing None."""
    return x.sharding.spec.trimmed()
