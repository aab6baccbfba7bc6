"""Memory that somebody else made: arrays of CuPy, and of all that speaks DLPack, as arrays without a copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cuplace.array.array import Array
from cuplace.array.dtypes import checked_dtype, narrowed
from cuplace.array.key import key_of
from cuplace.errors import ForeignMemoryError
from cuplace.placement.memory_space import DEVICE
from cuplace.placement.sharding import Sharding, SingleDeviceSharding
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.caller import Line, caller
from cuplace.runtime.context import current_default_device
from cuplace.runtime.device import Device
from cuplace.runtime.platform import current
from cuplace.runtime.task import ComputeTask, Cost

_BYTES_PER_SECOND = 8e9

Target = Sharding | Device | None


def adopted(value: Any, preferred: Sequence[Device] = (), committed: bool = False) -> Array | None:
    """An array over the memory of an object that lies on a GPU, where it lies; None for all else. Never waits.

    It holds what has been enqueued for the object so far, on the user's current stream. What is not dense is copied,
    and so are 64-bit types while these are off; integers that do not fit wrap then, since looking would be waiting.

    Args:
        value: of CuPy, or something with DLPack's methods or `__cuda_array_interface__`.
        preferred: of the devices on that GPU the first of these is taken.
        committed: whether the array is attached to the device.

    Raises:
        ForeignMemoryError: a ValueError; no device of the platform is on that GPU.
        DtypeError: a TypeError, for a dtype that arrays cannot have.
    """
    platform = current()
    exchange = platform.backend.exchange
    gpu = None if exchange is None else exchange.gpu(value)
    if exchange is None or gpu is None:
        return None
    candidates = (*preferred, current_default_device(), *platform.devices)
    device = next((device for device in candidates if device.gpu == gpu), None)
    if device is None:
        raise ForeignMemoryError(gpu, sorted({device.gpu for device in platform.devices}))
    array, stream = exchange.take(value, device)
    found = checked_dtype(np.dtype(array.dtype))
    dtype, line = narrowed(found), caller()
    buffer = device.scheduler.adopt(array, device, stream)
    if dtype != found or not array.flags.c_contiguous:
        buffer = duplicate(buffer, dtype, line)
    key = key_of(tuple(array.shape), dtype, False, SingleDeviceSharding(device), committed)
    return Array._make([buffer], key, line)


def shared(values: np.ndarray, target: Target, committed: bool) -> Array | None:
    """An array over the memory of a NumPy array, of a type that arrays can have; None where devices cannot use it."""
    devices = devices_of(target) or (current_default_device(),)
    device = devices[0]
    sharding = target if isinstance(target, Sharding) else SingleDeviceSharding(device)
    usable = device.xp is np and sharding.memory_kind in (None, DEVICE)
    if len(devices) > 1 or not usable or not values.flags.c_contiguous:
        return None
    key, line = key_of(values.shape, values.dtype, False, sharding, committed), caller()
    return Array._make([device.scheduler.adopt(values, device)], key, line)


def devices_of(target: Target) -> tuple[Device, ...]:
    """The devices of a target of `device_put`; none where it leaves the place open."""
    return target.flat_devices if isinstance(target, Sharding) else () if target is None else (target,)


def is_foreign(array: Array) -> bool:
    """Whether some memory of an array is somebody else's."""
    return any(buffer.block.arena is buffer.block.arena.memory.foreign for buffer in array._live())


def duplicate(buffer: Buffer, dtype: np.dtype, line: Line | None) -> Buffer:
    """A new dense buffer with the values of another one, cast to a dtype, made where that one is."""
    device, shape = buffer.device.place(buffer.block.arena.memory.kind), tuple(buffer.array.shape)
    nbytes = math.prod(shape) * dtype.itemsize
    task = ComputeTask("copy", _copy, nbytes / _BYTES_PER_SECOND, cost=Cost(0.0, float(nbytes + buffer.nbytes)))
    ((new,),) = device.scheduler.submit_new(task, ((shape, dtype, nbytes),), (device,), ((buffer,),), (), line)
    return new


def _copy(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
    writes[0][...] = reads[0]
