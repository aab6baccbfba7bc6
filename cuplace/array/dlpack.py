"""DLPack and `__cuda_array_interface__`: the memory of an array lent to other libraries, in the order of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.array.foreign import duplicate
from cuplace.array.interop import host_value
from cuplace.errors import DLPackCopyError, DLPackDeviceError, DLPackShardingError, DLPackStreamError
from cuplace.placement.memory_space import PINNED_HOST
from cuplace.runtime.caller import caller

if TYPE_CHECKING:
    from cuplace.array.array import Array
    from cuplace.runtime.backends.base import Exchange
    from cuplace.runtime.buffer import Buffer

_CPU, _CUDA, _PINNED = 1, 2, 3  # DLPack's names of memory
_NO_ORDER, _LEGACY = -1, 1  # DLPack's names of streams
_HOST = (_CPU, 0)


def to_dlpack(
    array: Array,
    *,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A DLPack capsule of the values, where they are, as the Array API standard has it.

    On a GPU nothing is waited for: the receiver's stream waits for the values, and the memory is reused only after
    what is on that stream when the receiver lets go of it. The receiver must not write to it. A receiver older than
    DLPack 1.0, which cannot be told so, gets a copy. On cpu and sim the host waits.

    Args:
        stream: on a GPU the receiver's stream: a handle, 1 (or None) for the legacy default stream, 2 for that of the
            thread, -1 where the receiver sees to the order itself. For memory of the host None.
        max_version: the latest version of DLPack that the receiver knows.
        dl_device: the device that the receiver wants the memory on; ``(1, 0)`` is the host.
        copy: True gives memory that is the receiver's alone; with False it is an error where a copy is due.

    Raises:
        DLPackShardingError, DLPackStreamError, DLPackDeviceError, DLPackCopyError: BufferErrors: the array is on
            several devices, or what is asked for is not possible.
    """
    here = dlpack_device(array)
    versioned = max_version is not None and max_version[0] >= 1
    there = here if dl_device is None else tuple(dl_device)
    if there == _HOST or here[0] == _PINNED == there[0]:
        return _host_capsule(array, stream, versioned, copy, there)
    if there != here:
        raise DLPackDeviceError(there, here)
    return _device_capsule(array, stream, versioned, copy)


def dlpack_device(array: Array) -> tuple[int, int]:
    """DLPack's name of where the capsule's memory is. Raises DLPackShardingError for several devices."""
    devices = array._key.sharding.num_devices
    if devices > 1:
        raise DLPackShardingError(devices)
    buffer = array._live()[0]
    if _exchange_of(buffer) is not None:
        return _CUDA, buffer.device.gpu
    memory = buffer.block.arena.memory
    is_pinned = memory.kind == PINNED_HOST and memory.backend.exchange is not None
    return (_PINNED, 0) if is_pinned else _HOST


def _exchange_of(buffer: Buffer) -> Exchange | None:
    """How memory that the host cannot reach is shared; None for memory of the host."""
    memory = buffer.block.arena.memory
    return None if memory.on_host else memory.backend.exchange


def cuda_array_interface(array: Array) -> dict[str, Any]:
    """What `__cuda_array_interface__` says, for libraries without DLPack; the memory is lent until the array dies.

    Raises:
        AttributeError: the memory is not on a GPU, or on several.
    """
    buffer, *others = array._live()
    exchange = _exchange_of(buffer)
    if exchange is None or others:
        raise AttributeError("only an array on a single GPU has __cuda_array_interface__")
    device = buffer.device
    # The receiver waits for our download stream. On which stream its work will be is not known: the legacy default
    # stream comes after that of all streams that libraries use in its place.
    loan = device.scheduler.lend_out(buffer, device.download, exchange.stream(device, _LEGACY))
    array._loans = [*getattr(array, "_loans", ()), loan]
    return exchange.interface(exchange.view(buffer.array, device, loan), device.download)


def _host_capsule(array: Array, stream: Any, versioned: bool, copy: bool | None, there: tuple[int, int]) -> Any:
    if stream is not None:
        raise DLPackStreamError(stream, "None, since the capsule's memory is the host's")
    buffer: Buffer = array._live()[0]
    if copy is False and _exchange_of(buffer) is not None:
        raise DLPackCopyError("the values are on a GPU, and the host was asked for")
    host = host_value(array)
    copied = _is_copied(versioned, copy)
    if copied:
        host = np.array(host)
    capsule = host.__dlpack__(max_version=(1, 0) if versioned else None)
    if there[0] == _PINNED and not copied:
        buffer.block.arena.memory.backend.exchange.say_pinned(capsule)
    return capsule


def _is_copied(versioned: bool, copy: bool | None) -> bool:
    """Whether the receiver gets memory of its own. Raises DLPackCopyError where it must and may not."""
    if copy is False and not versioned:
        raise DLPackCopyError("before DLPack 1.0 a receiver cannot be told that memory is read-only")
    return copy is True or not versioned


def _device_capsule(array: Array, stream: Any, versioned: bool, copy: bool | None) -> Any:
    buffer: Buffer = array._live()[0]
    device = buffer.device
    exchange = _exchange_of(buffer)
    assert exchange is not None
    handle = _LEGACY if stream is None else stream
    if type(handle) is not int or handle < _NO_ORDER or handle == 0:
        raise DLPackStreamError(stream, "-1, 1, 2 or the handle of a stream; 0 has two meanings")
    copied = _is_copied(versioned, copy)
    if copied:
        buffer = duplicate(buffer, array.dtype, caller())
    theirs = exchange.stream(device, _LEGACY if handle == _NO_ORDER else handle)
    loan = device.scheduler.lend_out(buffer, None if handle == _NO_ORDER else theirs, theirs)
    return exchange.capsule(exchange.view(buffer.array, device, loan), versioned, copied)
