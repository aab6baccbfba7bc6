"""Exchange: memory of other libraries taken in without a copy, ours given out, and the streams that order both."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from cuplace import errors
from cuplace.runtime.backends.cuda.foreign import ForeignStream
from cuplace.runtime.backends.cuda.gpu import Gpu
from cuplace.runtime.device import Device

CUDA, CUDA_MANAGED = 2, 13
"""DLPack's names of memory of a GPU."""

LEGACY, PER_THREAD = 1, 2
"""DLPack's names of CUDA's default streams."""

_VERSION = (1, 0)
_READ_ONLY, _IS_COPIED = 1, 2  # flags of DLPack
_FLAGS_AT = 24  # bytes from the start of a versioned tensor: version, context and deleter come before
_DEVICE_AT = 40  # then the flags and the address of the data
_PINNED = 3  # DLPack's name of pinned memory of the host


class CudaExchange:
    """Implements ``runtime.backends.base.Exchange`` for all that speaks DLPack or ``__cuda_array_interface__``."""

    def __init__(self, gpu_of: Callable[[Device], Gpu]) -> None:
        self._gpu_of = gpu_of

    def gpu(self, value: Any) -> int | None:
        if isinstance(value, cupy.ndarray):
            return int(value.data.device_id)
        where = getattr(value, "__dlpack_device__", None)
        if where is not None:
            kind, number = where()
            return int(number) if kind in (CUDA, CUDA_MANAGED) else None
        described = getattr(value, "__cuda_array_interface__", None)
        if described is None:
            return None
        address = described["data"][0]
        return int(runtime.pointerGetAttributes(address).device if address else runtime.getDevice())

    def take(self, value: Any, device: Device) -> tuple[Any, Any]:
        if isinstance(value, cupy.ndarray):
            return value, self.stream(device)
        if hasattr(value, "__dlpack__"):
            return self._imported(value, device), device.download
        described = value.__cuda_array_interface__
        if described.get("mask") is not None:
            raise errors.MaskedArrayError()
        handle = described.get("stream", LEGACY)  # older versions do not say
        stream = None if handle is None else self.stream(device, handle)
        return _described(value, described, device.gpu), stream

    def stream(self, device: Device, handle: int | None = None) -> ForeignStream:
        gpu = self._gpu_of(device)
        current = cupy.cuda.get_current_stream(gpu.ordinal)
        if handle is None or handle == current.ptr:
            return ForeignStream(device, gpu, int(current.ptr), current)
        return ForeignStream(device, gpu, handle)

    def view(self, array: Any, device: Device, owner: Any) -> Any:
        memory = cupy.cuda.UnownedMemory(array.data.ptr, array.nbytes, owner, device.gpu)
        return cupy.ndarray(array.shape, array.dtype, cupy.cuda.MemoryPointer(memory, 0), array.strides)

    def capsule(self, view: Any, versioned: bool, copied: bool) -> Any:
        # The order has been seen to: the borrower's stream waits already.
        capsule = view.__dlpack__(stream=-1, max_version=_VERSION if versioned else None)
        if versioned:
            _set_flags(capsule, _IS_COPIED if copied else _READ_ONLY)
        return capsule

    def say_pinned(self, capsule: Any) -> None:
        ctypes.c_int32.from_address(_address_of(capsule) + _DEVICE_AT).value = _PINNED

    def interface(self, view: Any, stream: Any) -> dict[str, Any]:
        return {
            "shape": view.shape, "typestr": view.dtype.str, "strides": None, "version": 3,
            "data": (int(view.data.ptr), True), "stream": stream.lane.ptr,
        }  # fmt: skip

    @contextmanager
    def marked(self, device: Device) -> Iterator[object]:
        compute: Any = device.compute
        mark, allocate, stream = object(), cupy.cuda.get_allocator(), compute.lane.ptr

        def watched(nbytes: int) -> Any:
            pointer = allocate(nbytes)
            if cupy.cuda.get_current_stream().ptr == stream:
                with suppress(AttributeError):  # some kinds of memory take no marks
                    pointer.mem.cuplace_mark = mark
            return pointer

        with cupy.cuda.using_allocator(watched):
            yield mark

    def own(self, result: Any, device: Device, mark: object) -> Any:
        if not isinstance(result, cupy.ndarray):
            return None
        if result.nbytes and result.data.device_id != device.gpu:
            raise errors.KernelResultError(
                f"it returned an array on GPU {result.data.device_id} for the shard on {device}, which is on GPU "
                f"{device.gpu}.\nThe GPU of the shard is current while it is called: allocate without choosing another."
            )
        if getattr(result.data.mem, "cuplace_mark", None) is not mark:
            return cupy.array(result, order="C")
        return cupy.ascontiguousarray(result)

    def _imported(self, value: Any, device: Device) -> Any:
        """What a DLPack capsule holds; our download stream waits for what its library has enqueued."""
        stream: Any = device.download
        with self._gpu_of(device).device:
            try:
                capsule = value.__dlpack__(stream=stream.lane.ptr, max_version=_VERSION)
            except TypeError:  # a library that knows no versions
                capsule = value.__dlpack__(stream=stream.lane.ptr)
            return cupy.from_dlpack(capsule)


def _described(owner: Any, described: dict[str, Any], gpu: int) -> Any:
    dtype, shape, strides = np.dtype(described["typestr"]), described["shape"], described.get("strides")
    nbytes = dtype.itemsize
    for size, stride in zip(shape, strides or (), strict=False):
        nbytes += max(0, (size - 1) * stride)
    if strides is None:
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    memory = cupy.cuda.UnownedMemory(described["data"][0], nbytes, owner, gpu)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)


def _set_flags(capsule: Any, flags: int) -> None:
    ctypes.c_uint64.from_address(_address_of(capsule) + _FLAGS_AT).value = flags


def _address_of(capsule: Any) -> int:
    """Where the tensor of a versioned capsule is described."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = pointer(capsule, b"dltensor_versioned")
    assert isinstance(address, int)
    return address
