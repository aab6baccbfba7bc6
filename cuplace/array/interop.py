"""Arrays as NumPy arrays, Python numbers and pickles: all that reads values on the host."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.errors import (
    IndexConversionError,
    ScalarConversionError,
    StreamArgumentError,
    TruthValueError,
)
from cuplace.runtime.caller import caller
from cuplace.runtime.guard import armed, transfer_guard_host_to_device
from cuplace.transfer.execute import gather_to_host
from cuplace.transfer.guarded import judge_fetch, judge_upload
from cuplace.transfer.upload import upload

if TYPE_CHECKING:
    from cuplace.array.array import Array
    from cuplace.placement.sharding import Sharding


def host_value(array: Array) -> np.ndarray:
    """What `values_of` gives, in a call that was not made for that.

    Raises:
        DeletedArrayError: a RuntimeError, where the array has been deleted.
        TransferGuardError: a RuntimeError, where a guard forbids to read values on the host, or to wait.
    """
    if armed and array._buffers:
        judge_fetch(array.shape, array.dtype, array._key.sharding, False)
    return values_of(array)


def values_of(array: Array) -> np.ndarray:
    """The values as a read-only NumPy array, the same object at each call; waits for them.

    Raises:
        DeletedArrayError: a RuntimeError, where the array has been deleted.
    """
    buffers = array._live()
    host = array._host
    if type(host) is not np.ndarray:
        of = array._key.type
        fetched = None if host is None else host.buffers
        host = array._host = gather_to_host(buffers, array._key.sharding, of.shape, of.dtype, fetched)
    return host


def to_numpy(array: Array, dtype: Any, copy: bool | None) -> np.ndarray:
    """What `numpy.asarray(array, dtype, copy=copy)` gives: the cached values, or a writable copy where one is due.

    Raises:
        ValueError: NumPy's, where a copy is due and ``copy=False``.
    """
    host = host_value(array)
    if copy:
        return np.array(host, dtype=dtype)
    return host if dtype is None else np.asarray(host, dtype=dtype, copy=copy)


def scalar(array: Array) -> Any:
    """The value of a 0-d array as a Python number. Raises ScalarConversionError for other arrays."""
    if array._key.type.shape:
        raise ScalarConversionError(array.ndim)
    return host_value(array).item()


def index(array: Array) -> int:
    """The value of a 0-d integer array. Raises IndexConversionError for other arrays."""
    type = array._key.type
    if type.shape or type.dtype.kind not in "iu":
        raise IndexConversionError(str(type))
    return operator.index(host_value(array).item())


def truth(array: Array) -> bool:
    """The truth of the only element. Raises TruthValueError where there is not exactly one."""
    size = array._key.type.size
    if size != 1:
        raise TruthValueError(size)
    return bool(host_value(array).item())


def rows(array: Array) -> Iterator[Array]:
    """The elements along the first dimension: where each device holds the whole array they are indexed there,
    else they are new uncommitted arrays, as in JAX."""
    if array._key.sharding.is_fully_replicated:
        array._live()
        return (_row(array, i) for i in range(len(array)))
    from cuplace.array.put import device_put

    return map(device_put, host_value(array))


def _row(array: Array, position: int) -> Array:
    with transfer_guard_host_to_device("allow") if armed else nullcontext():  # the position is ours, not the user's
        return array[position]  # type: ignore[index,no-any-return]  # attached by the staging floor


def to_device(array: Array, device: Any, stream: None) -> Array:
    """`device_put` of one array. Raises StreamArgumentError where `stream` is not None."""
    if stream is not None:
        raise StreamArgumentError()
    from cuplace.array.put import device_put

    moved: Array = device_put(array, device)
    return moved


def pickled(array: Array) -> tuple[np.ndarray, bool, Sharding | None]:
    """What `unpickle` needs: values, weakness, and the place of a committed array."""
    return host_value(array), array.weak_type, array.sharding if array.committed else None


def unpickle(values: np.ndarray, weak_type: bool, sharding: Sharding | None) -> Array:
    """An array placed as it was when it was pickled; an uncommitted one goes to the default device.

    Where devices are missing, unpickling raises AbsentDeviceError, a RuntimeError, before this is called.
    """
    from cuplace.array.array import Array
    from cuplace.array.route import host_key

    key = host_key(values.shape, values.dtype, weak_type, sharding)
    line = caller()
    if armed:
        judge_upload(key.type.unplaced(), key.sharding, True)
    return Array._make(upload(values, key.sharding, line), key, line)
