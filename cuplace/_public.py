"""The names of `cuplace`, each from the module that owns it.

Loading this module loads every floor; in particular it gives arrays their operators and methods, which are
staged like everything else that computes.
"""

from __future__ import annotations

from cuplace.array.array import Array
from cuplace.array.assemble import (
    make_array_from_callback,
    make_array_from_process_local_data,
    make_array_from_single_device_arrays,
)
from cuplace.array.fetch import iter_host
from cuplace.array.memory import free_unused, live_arrays, memory_report
from cuplace.array.plan import plan
from cuplace.array.prefetch import prefetch
from cuplace.array.put import block_until_ready, device_get, device_put
from cuplace.array.reshard import reshard
from cuplace.array.struct import ShapeDtypeStruct
from cuplace.array.type import typeof
from cuplace.numpy import methods as _methods  # noqa: F401
from cuplace.placement.mesh import Mesh
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import PartitionSpec as P
from cuplace.profiling.profile import profile
from cuplace.runtime.config import config
from cuplace.runtime.context import default_device, make_mesh, set_mesh
from cuplace.runtime.device import Device
from cuplace.runtime.guard import (
    transfer_guard,
    transfer_guard_device_to_device,
    transfer_guard_device_to_host,
    transfer_guard_host_bounce,
    transfer_guard_host_sync,
    transfer_guard_host_to_device,
)
from cuplace.runtime.order.watch import check_order
from cuplace.runtime.platform import (
    default_backend,
    device_count,
    devices,
    local_device_count,
    local_devices,
    process_count,
    process_index,
)
from cuplace.runtime.survey import topology
from cuplace.staging.jit import jit
from cuplace.staging.map_shards import map_shards

__all__ = [
    "Array",
    "Device",
    "Mesh",
    "NamedSharding",
    "P",
    "ShapeDtypeStruct",
    "block_until_ready",
    "check_order",
    "config",
    "default_backend",
    "default_device",
    "device_count",
    "device_get",
    "device_put",
    "devices",
    "free_unused",
    "iter_host",
    "jit",
    "live_arrays",
    "local_device_count",
    "local_devices",
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
    "make_mesh",
    "map_shards",
    "memory_report",
    "prefetch",
    "plan",
    "process_count",
    "process_index",
    "profile",
    "reshard",
    "set_mesh",
    "transfer_guard",
    "transfer_guard_device_to_device",
    "transfer_guard_device_to_host",
    "transfer_guard_host_bounce",
    "transfer_guard_host_sync",
    "transfer_guard_host_to_device",
    "topology",
    "typeof",
]
