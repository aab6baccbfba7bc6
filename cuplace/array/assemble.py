"""Arrays made of parts: from a callback for each part, from single-device arrays, from the data of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cuplace.array.array import Array
from cuplace.array.foreign import adopted
from cuplace.array.host import read_host_value
from cuplace.array.key import OperandKey, key_of
from cuplace.array.put import device_put, put_unasked
from cuplace.errors import AssemblyError, AssemblyTypeError
from cuplace.placement.layout import Layout
from cuplace.placement.sharding import Sharding, SingleDeviceSharding
from cuplace.runtime.caller import caller
from cuplace.runtime.device import Device


def make_array_from_callback(
    shape: Sequence[int], sharding: Sharding, data_callback: Callable[[Any], Any], dtype: Any = None
) -> Array:
    """An array committed to `sharding`, whose parts `data_callback` gives.

    Args:
        shape: of the whole array.
        sharding: where to.
        data_callback: gets the index of a part in the whole array, a tuple of slices, and returns the part: a
            NumPy or CuPy array, a number, or an array. A CuPy array on the GPU where it belongs is not copied. It is
            called once for each device, in mesh order; once in all where every device holds the whole array.
        dtype: of the parts, as a check.

    Raises:
        AssemblyTypeError: a TypeError, where `sharding` is no sharding.
        RankError, IndivisibleError: ValueErrors, where the sharding does not fit the shape.
        AssemblyError: a ValueError, where a part has another shape or dtype than it should have.
        and what `device_put` raises for a value that cannot become an array.

    >>> import numpy as np, cuplace
    >>> sharding = cuplace.NamedSharding(cuplace.make_mesh((1,), ("x",)), cuplace.P("x"))
    >>> make_array_from_callback((4,), sharding, lambda index: np.arange(4, dtype="int32")[index])
    Array([0, 1, 2, 3], dtype=int32)
    """
    layout = _layout(sharding, shape)
    if sharding.is_fully_replicated:
        part = _read_part(data_callback(layout.indices[0]), sharding.flat_devices)
        parts = [part] * sharding.num_devices
    else:
        places = zip(layout.indices, sharding.flat_devices, strict=True)
        parts = [_read_part(data_callback(index), (device,)) for index, device in places]
    if dtype is not None and np.dtype(dtype) != parts[0].dtype:
        raise AssemblyError(
            "If `dtype` is provided to `jax.make_array_from_callback`, it must match the dtype of the addressable "
            f"shards. Got dtype={np.dtype(dtype).name} and shard dtype={parts[0].dtype.name}`."
        )
    key = key_of(layout.shape, parts[0].dtype, False, sharding, True)
    _check_parts(parts, key)
    return _joined(put_unasked(parts, list(sharding.flat_devices)), key)


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Sharding, arrays: Sequence[Any], *, dtype: Any = None
) -> Array:
    """An array committed to `sharding` over the memory of one array on each of its devices; nothing is copied.

    Deleting the result deletes the arrays that it was made of.

    Args:
        shape: of the whole array.
        sharding: where the arrays are.
        arrays: a list or tuple with one array for each device, in any order. CuPy arrays are taken as `device_put`
            takes them; where several devices are on one GPU, those on it belong to these devices in their order.
        dtype: of the arrays, as a check.

    Raises:
        AssemblyTypeError: a TypeError, where `sharding` is no sharding, or `arrays` no list of arrays.
        AssemblyError: a ValueError, where an array is missing, is on another device, is spread over several
            devices, or has another shape or dtype than it should have.
        DeletedArrayError: a RuntimeError, where one of the arrays has been deleted.

    >>> import cuplace
    >>> device = cuplace.devices()[0]
    >>> part = cuplace.device_put(1.5, device)
    >>> make_array_from_single_device_arrays((), cuplace.sharding.SingleDeviceSharding(device), [part]).committed
    True
    """
    layout = _layout(sharding, shape)
    arrays = _with_adopted(arrays, sharding)
    _check_arrays(arrays)
    if len(arrays) != sharding.num_devices:
        raise AssemblyError(
            f"Expected {sharding.num_devices} per-device arrays (this is how many devices are addressable by the "
            f"sharding), but got {len(arrays)}"
        )
    on_device: dict[Device, Array] = {array.sharding.flat_devices[0]: array for array in arrays}
    _check_devices(arrays, on_device, sharding)
    parts = [on_device[device] for device in sharding.flat_devices]
    key = key_of(layout.shape, arrays[0].dtype if dtype is None else np.dtype(dtype), False, sharding, True)
    _check_parts(parts, key)
    return _joined(parts, key)


def make_array_from_process_local_data(
    sharding: Sharding, local_data: Any, global_shape: Sequence[int] | None = None
) -> Array:
    """An array committed to `sharding` from the data that this process has; in one process it has all of them.

    Raises:
        AssemblyError: a ValueError, where `global_shape` is given and is not the shape of the data.
        and what `device_put` raises.

    >>> import numpy as np, cuplace
    >>> sharding = cuplace.NamedSharding(cuplace.make_mesh((1,), ("x",)), cuplace.P("x"))
    >>> make_array_from_process_local_data(sharding, np.arange(2, dtype="int32"))
    Array([0, 1], dtype=int32)
    """
    if global_shape is not None and tuple(global_shape) != np.shape(local_data):
        raise AssemblyError(
            "When calling `make_array_from_process_local_data` on a single process, global_shape should be None or "
            f"equal to local_data.shape.Got global_shape={tuple(global_shape)} and "
            f"local_data.shape={np.shape(local_data)}."
        )
    array: Array = device_put(local_data, sharding)
    return array


def _joined(parts: Sequence[Array], key: OperandKey) -> Array:
    """The array whose shards are the parts, in mesh order, which become its shard views."""
    line = caller()
    array = Array._make([part._live()[0] for part in parts], key, line)
    array._views = []
    for part, device in zip(parts, key.sharding.flat_devices, strict=True):
        place = SingleDeviceSharding(device, memory_kind=key.sharding.memory_kind)
        array._views.append(part._alias(key_of(part.shape, part.dtype, False, place, True), line))
    return array


def _read_part(part: Any, devices: Sequence[Device]) -> Any:
    if type(part) is Array:
        return part
    mine = adopted(part, devices)
    return read_host_value(part)[0] if mine is None else mine


def _with_adopted(arrays: Any, sharding: Sharding) -> Any:
    """The arrays, with those on GPUs that somebody else made adopted on devices that have none yet."""
    if not isinstance(arrays, list | tuple):
        return arrays
    taken = {device for array in arrays if type(array) is Array for device in array.sharding.flat_devices}
    found = []
    for array in arrays:
        free = [device for device in sharding.flat_devices if device not in taken]
        mine = array if type(array) is Array else adopted(array, free)
        if mine is not None:
            taken |= mine.sharding.device_set
        found.append(array if mine is None else mine)
    return found


def _layout(sharding: Any, shape: Sequence[int]) -> Layout:
    if not isinstance(sharding, Sharding):
        raise AssemblyTypeError(
            f"sharding should be an instance of `jax.sharding`. Got {sharding} of type {type(sharding)}\n"
            "Write NamedSharding(mesh, P(...)) or SingleDeviceSharding(device)."
        )
    sharding.shard_shape(shape)  # raises for what is no shape
    return sharding.layout(tuple(shape))


def _check_parts(parts: Sequence[Any], key: OperandKey) -> None:
    type = key.type
    shard_shape = key.sharding.shard_shape(type.shape)
    for shard, part in enumerate(parts):
        if part.shape != shard_shape:
            raise AssemblyError(
                f"Expected shard shape {shard_shape} doesn't match the single device array shape {part.shape}. "
                f"Shape of Array is {type} with sharding {key.sharding}"
            )
        if part.dtype != type.dtype:
            raise AssemblyError(
                f"Input buffers to `Array` must have matching dtypes. Got {part.dtype.name}, expected "
                f"{type.dtype.name} for buffer: [{shard}]"
            )


def _check_arrays(arrays: Any) -> None:
    if not isinstance(arrays, list | tuple):
        raise AssemblyTypeError(
            "jax.make_array_from_single_device_arrays `arrays` argument must be a list or tuple, "
            f"but got {type(arrays)}."
        )
    for array in arrays:
        if type(array) is not Array:
            raise AssemblyTypeError(
                f"Unsupported type for elements in `arrays`: {type(array)}\nPut them on their devices first, "
                "with device_put(part, device)."
            )
        if array.sharding.num_devices != 1:
            raise AssemblyError(
                "When making an array from single-device arrays the input arrays must have one shard each. "
                f"An argument array had {array.sharding.num_devices} shard(s)."
            )


def _check_devices(arrays: Sequence[Array], on_device: dict[Device, Array], sharding: Sharding) -> None:
    if len(on_device) != len(arrays):
        ids = [array.sharding.flat_ids[0] for array in arrays]
        raise AssemblyError(
            "When making an array from single-device arrays, the input arrays must be from distinct devices, "
            f"but got device IDs {ids}"
        )
    if on_device.keys() != sharding.device_set:
        missing = {device.id for device in sharding.flat_devices if device not in on_device}
        foreign = {device.id for device in on_device if device not in sharding.device_set}
        raise AssemblyError(
            "Addressable devices and per-device arrays devices do not match. "
            f"Sharding contains devices {missing} that are not present in per-device arrays. "
            f"Per-device arrays contain devices {foreign} that are not present in the sharding."
        )
