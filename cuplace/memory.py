"""Memory spaces, under the name of `jax.memory`: memory of the device, and of the host.

    >>> import numpy as np, cuplace
    >>> x = cuplace.device_put(np.float32([1, 2]), cuplace.memory.Space.Host)
    >>> cuplace.typeof(x), x.sharding.memory_kind
    (ShapedArray(float32<host>[2]), 'pinned_host')
"""

from __future__ import annotations

from cuplace.placement.memory_space import MemorySpace as Space

__all__ = ["Space"]
