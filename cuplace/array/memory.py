"""What arrays hold of the memory of devices: which are alive, a report of it all, and giving the rest back."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import compress, repeat
from operator import is_

from cuplace.array.array import Array
from cuplace.placement.sharding import NamedSharding
from cuplace.runtime import shortage
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.memory import Block, DeviceMemory
from cuplace.runtime.platform import current, devices
from cuplace.runtime.usage import MemoryReport


def live_arrays(platform: str | None = None) -> list[Array]:
    """The arrays that are alive and not deleted, in the order in which their memory was made.

    Arrays of shards that somebody has looked at (``x.addressable_shards``) are among them, as in JAX. To find them
    takes the time that a full collection of Python's garbage takes; making arrays costs nothing for it. Arrays that
    ``gc.freeze`` has set apart are not found.

    Args:
        platform: the name of the platform; None: that of the default devices.

    Raises:
        RuntimeError: there is no such platform here.

    >>> import numpy as np, cuplace
    >>> x = cuplace.device_put(np.arange(4, dtype=np.int32))
    >>> any(y is x for y in cuplace.live_arrays())
    True
    >>> x.delete()
    >>> any(y is x for y in cuplace.live_arrays())
    False
    """
    scheduler = devices(platform)[0].scheduler
    found = [(buffers[0], array) for array, buffers in _alive()]
    found.sort(key=lambda pair: pair[0].id)
    return [array for buffer, array in found if buffer.device.scheduler is scheduler]


def memory_report() -> MemoryReport:
    """Where the memory of the devices is, in bytes: a value that prints as a table, with ``.to_dict()``.

    It waits for nothing. Dead memory whose last use is complete is taken back on the way, so that ``parked`` is what
    still waits; ``Device.memory_stats()`` tells the same numbers for one device. On cuda it tells of each GPU who has
    its memory: total, free, and what others use come from NVML (``nvidia-ml-py``), which finds the GPU by its UUID;
    they are None where it is not installed or does not answer.

    >>> import cuplace
    >>> report = cuplace.memory_report()
    >>> report.devices[0].device == str(cuplace.devices()[0])
    True
    >>> sorted(report.to_dict())
    ['devices', 'gpus', 'pinned', 'platform']
    """
    here = current()
    here.scheduler.tidy()
    held: Counter[DeviceMemory] = Counter()
    for block, buffer in {buffer.block: buffer for _, buffers in _alive() for buffer in buffers}.items():
        held[block.arena.memory] += buffer.nbytes
    usages = [memory.usage(held[memory]) for device in here.devices for memory in device.memories()]
    gpus, pinned = here.backend.usage()
    return MemoryReport(here.name, tuple(usages), gpus, pinned)


def free_unused() -> int:
    """Give memory that nothing uses back to the system; how many bytes it was.

    That is what the devices keep for later arrays, and pinned memory that no copy is using. Dead memory counts if
    its last use is complete; what still waits for unfinished work stays. Memory of others is not touched: of CuPy's
    pool only what cuplace's streams have freed goes back, and allocators that keep the memory of all their users
    together (``MemoryAsyncPool``, RMM, PyTorch) are left to whoever set them.

    It waits for no work of cuplace's. On cuda the driver may let the calls that give memory back (``cudaFree``,
    ``cudaFreeHost``) wait until the GPU has finished what it runs, so this is no call for a hot loop.

    >>> import cuplace
    >>> cuplace.free_unused() >= 0
    True
    >>> cuplace.free_unused()
    0
    """
    here = current()
    with here.scheduler.lock:
        here.scheduler.park()
        memories = [memory for device in here.devices for memory in device.memories()]
        for memory in memories:
            memory.collect()
        return sum(memory.trim() for memory in memories) + here.backend.trim()


def _alive() -> Iterator[tuple[Array, list[Buffer]]]:
    """Every array that has not been deleted, with its buffers as of now.

    Python's collector knows them all. A list of our own would cost each array that is made.
    """
    objects = gc.get_objects()
    for array in compress(objects, map(is_, map(type, objects), repeat(Array))):  # millions, so no loop in Python
        buffers = getattr(array, "_buffers", [])[:]  # another thread may be in the middle of making or deleting it
        if buffers and hasattr(array, "_key"):
            yield array, buffers


def _holders(memory: DeviceMemory) -> dict[Block, shortage.Living]:
    """What `shortage.holders` is. Of arrays that share memory it is the whole one that is told, not its shards."""
    found: dict[Block, tuple[int, Array]] = {}
    sizes: dict[Block, int] = {}
    for array, buffers in _alive():
        for buffer in buffers:
            block = buffer.block
            if block.arena.memory is memory and len(buffers) > found.get(block, (0, array))[0]:
                found[block] = len(buffers), array
                sizes[block] = buffer.nbytes
    return {block: (sizes[block], partial(_description, array)) for block, (_, array) in found.items()}


def _description(array: Array) -> str:
    sharding = array.sharding
    text = str(array.aval)
    if isinstance(sharding, NamedSharding):
        text += f", {sharding.spec!r} over {sharding.num_devices} devices"
    return text if array._origin is None else f"{text}, made at {array._origin}"


shortage.holders = _holders
