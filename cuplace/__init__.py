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
    from cuplace import errors, lax, memory, numpy, sharding, testing, tree
    from cuplace._public import (
        Array,
        Device,
        Mesh,
        NamedSharding,
        P,
        ShapeDtypeStruct,
        block_until_ready,
        check_order,
        config,
        default_backend,
        default_device,
        device_count,
        device_get,
        device_put,
        devices,
        free_unused,
        iter_host,
        jit,
        live_arrays,
        local_device_count,
        local_devices,
        make_array_from_callback,
        make_array_from_process_local_data,
        make_array_from_single_device_arrays,
        make_mesh,
        map_shards,
        memory_report,
        plan,
        prefetch,
        process_count,
        process_index,
        profile,
        reshard,
        set_mesh,
        topology,
        transfer_guard,
        transfer_guard_device_to_device,
        transfer_guard_device_to_host,
        transfer_guard_host_bounce,
        transfer_guard_host_sync,
        transfer_guard_host_to_device,
        typeof,
    )

__version__ = "0.1.0"

__all__ = [
    "Array",
    "Device",
    "Mesh",
    "NamedSharding",
    "P",
    "ShapeDtypeStruct",
    "__version__",
    "block_until_ready",
    "check_order",
    "config",
    "default_backend",
    "default_device",
    "device_count",
    "device_get",
    "device_put",
    "devices",
    "errors",
    "free_unused",
    "iter_host",
    "jit",
    "lax",
    "live_arrays",
    "local_device_count",
    "local_devices",
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
    "make_mesh",
    "map_shards",
    "memory",
    "memory_report",
    "numpy",
    "prefetch",
    "plan",
    "process_count",
    "process_index",
    "profile",
    "reshard",
    "set_mesh",
    "sharding",
    "testing",
    "transfer_guard",
    "transfer_guard_device_to_device",
    "transfer_guard_device_to_host",
    "transfer_guard_host_bounce",
    "transfer_guard_host_sync",
    "transfer_guard_host_to_device",
    "tree",
    "topology",
    "typeof",
]

_MODULES = ("errors", "lax", "memory", "numpy", "sharding", "testing", "tree")


def __getattr__(name: str) -> object:
    """The public name `name`, loaded at its first use.

    Raises:
        AttributeError: there is no such name; the text says whether it is planned, and what to use instead.
    """
    if name in _MODULES:
        return import_module(f"cuplace.{name}")
    if name in __all__:
        value = globals()[name] = getattr(import_module("cuplace._public"), name)
        return value
    raise import_module("cuplace._absent").absent_name(name)


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
