"""Control flow of programs, under the names of `jax.lax`.

    >>> import cuplace.numpy as jnp
    >>> from cuplace import lax
    >>> lax.scan(lambda total, x: (total + x, None), 0, jnp.arange(4))[0]
    Array(6, dtype=int32)
"""

from __future__ import annotations

from typing import NoReturn

from cuplace.staging.scan import scan

__all__ = ["scan"]

_LOOP = "write a loop of Python around a jitted function, whose calls do not wait, or scan"
_CHOICE = "choose between values with cuplace.numpy.where, or between jitted functions in Python"
_COLLECTIVE = "arrays are whole: sum them with cuplace.numpy, and change their layout with reshard"
_INSTEAD = {
    **dict.fromkeys(("fori_loop", "while_loop", "map", "associative_scan"), _LOOP),
    **dict.fromkeys(("cond", "switch", "select"), _CHOICE),
    **dict.fromkeys(("psum", "pmean", "pmax", "pmin", "all_gather", "all_to_all", "ppermute"), _COLLECTIVE),
    "with_sharding_constraint": "use reshard(x, sharding), or device_put where axes are Auto",
}


def __getattr__(name: str) -> NoReturn:
    """Raises AttributeError: `name` is not there; the text says what to write instead."""
    instead = _INSTEAD.get(name, "it has scan; functions of arrays are in cuplace.numpy")
    raise AttributeError(f"cuplace.lax has no {name!r}: {instead}.", name=name)
