"""JAX's data-placement model on CuPy and CUDA streams, with no compiler in between.

Public names are those of JAX, so that a program that places data runs after changing its imports:

    >>> import cuplace as jax
    >>> import cuplace.numpy as jnp
    >>> print(jnp.arange(4.0).committed)
    False

Importing this package costs next to nothing: it loads no driver, starts no thread and reads no environment.
The first use of a public name loads the library, the first use of a device opens the platform.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cuplace import errors, lax, numpy, sharding, tree
    from cuplace._public import *  # noqa: F403

__version__ = "0.1.0"

MODULES = ("errors", "lax", "numpy", "sharding", "tree")
NAMES = (
    "Array", "Device", "Mesh", "NamedSharding", "P", "block_until_ready", "config", "default_backend",
    "default_device", "device_count", "device_get", "device_put", "devices", "jit", "local_device_count",
    "local_devices", "make_mesh", "process_count", "process_index", "reshard", "set_mesh", "typeof",
)  # fmt: skip

__all__ = ["__version__", *MODULES, *NAMES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    """The public name `name`, loaded at its first use.

    Raises:
        AttributeError: cuplace has no such name; the text says whether it will have it, and what to use instead.
    """
    if name in MODULES:
        return import_module(f"cuplace.{name}")
    if name in NAMES:
        value = globals()[name] = getattr(import_module("cuplace._public"), name)
        return value
    if name.startswith("_"):
        raise AttributeError(f"module 'cuplace' has no attribute {name!r}")
    raise import_module("cuplace._absent").absent_name(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
