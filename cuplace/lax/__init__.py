"""Control flow of programs, under the names of `jax.lax`.

    >>> import cuplace.numpy as jnp
    >>> from cuplace import lax
    >>> lax.scan(lambda total, x: (total + x, None), 0, jnp.arange(4))[0]
    Array(6, dtype=int32)
"""

from __future__ import annotations

from cuplace.staging.scan import scan

__all__ = ["scan"]
