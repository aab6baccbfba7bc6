"""``array`` and ``asarray``: arrays from host values, and from other arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.array import Array
from cuplace.array.foreign import adopted, devices_of, duplicate, is_foreign, shared
from cuplace.array.put import device_put, put_unasked, read_target
from cuplace.numpy.promotion import cast
from cuplace.numpy.shaping import astype, copy, reshape, stack
from cuplace.ops.convert import convert
from cuplace.ops.elementwise import COPY
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import PartitionSpec
from cuplace.runtime.caller import caller
from cuplace.runtime.context import context_mesh, current_default_device
from cuplace.staging.eager import eager
from cuplace.staging.trace import bind, lift, tracing

SCALARS = (bool, int, float, complex)
_HOST_TYPES = (*SCALARS, np.generic, np.ndarray, list, tuple, range)


@eager("asarray", static=("dtype",), device="device")
def _placed(x: Any, dtype: Any, device: Any = None) -> Any:
    return bind(COPY, x) if dtype is None else cast(x, dtype)


def array(
    object: Any, dtype: Any = None, copy: bool = True, order: str | None = "K", ndmin: int = 0, *, device: Any = None
) -> Array:
    """A new array of the values of an array, a number, or nested lists and tuples of these.

    Args:
        object: the values. Python numbers become int32, float32, complex64 or bool; a number alone stays weak.
        dtype: the dtype, or None.
        copy: whether an Array is copied.
        order: accepted for NumPy's sake.
        ndmin: how many dimensions the result has at least.
        device: a device or a sharding, to which the array is committed. An Array that is committed elsewhere is
            refused: use ``device_put``.

    Raises:
        DtypeError: a TypeError: strings, objects and other things that are no numbers.
        ValueError: None, and lists of unequal lengths.
        IntegerRangeError, OverflowError: an integer that does not fit into the dtype.

    Example:
        >>> array([[1, 2], [3, 4]])
        Array([[1, 2],
               [3, 4]], dtype=int32)
    """
    wanted = dtypes.requested_or_none(dtype, "array")
    return _converted(object, wanted, bool(copy), ndmin, device)


def asarray(
    a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None, device: Any = None
) -> Array:
    """Like `array`, but an Array that is right already is returned as it is, and masked arrays are refused.

    Raises:
        MaskedArrayError: a ValueError, for NumPy's masked arrays, whose mask would be lost.
        and what `array` raises.

    Example:
        >>> x = asarray(1.5)
        >>> asarray(x) is x
        True
    """
    if isinstance(a, np.ma.MaskedArray):
        raise errors.MaskedArrayError()
    wanted = dtypes.requested_or_none(dtype, "asarray")
    return _converted(a, wanted, bool(copy), 0, device)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An array over the memory of another library's array, committed to the device that it lies on.

    Nothing is waited for: the array holds what has been enqueued for `x` so far. The memory is shared from then on, so
    `x` must not be written to any more. What is not dense, 64-bit types while these are off, and memory of the host
    where the devices are GPUs, are copied.

    Args:
        x: of NumPy, CuPy, PyTorch or another library that has DLPack's methods.
        device: a device or sharding that the array is moved to.
        copy: True copies in any case; with False it is an error where a copy is due.

    Raises:
        DLPackProtocolError: a TypeError, for what has no such methods.
        DLPackCopyError: a BufferError; a copy is due, and ``copy=False``.
        and what ``device_put`` raises.

    Example:
        >>> from_dlpack(np.arange(3, dtype="int32"))
        Array([0, 1, 2], dtype=int32)
    """
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        raise errors.DLPackProtocolError(x)
    target = read_target(device)
    if type(x) is Array:
        array, is_copy = x, False
    else:
        found = adopted(x, devices_of(target), True)
        array = _from_host_memory(x, target) if found is None else found
        is_copy = not is_foreign(array)
    result: Array = array if target is None else device_put(array, target)
    is_copy |= result._live()[0] is not array._live()[0]
    if copy is False and is_copy:
        raise errors.DLPackCopyError("the memory cannot be used where it is, as it is")
    if copy is not True or is_copy:
        return result
    line = caller()
    return Array._make([duplicate(buffer, result.dtype, line) for buffer in result._live()], result._key, line)


def _from_host_memory(x: Any, target: Any) -> Array:
    values = dtypes.narrow(np.from_dlpack(x))
    found = shared(values, target, True)
    return device_put(values, target or current_default_device()) if found is None else found


def _converted(value: Any, dtype: np.dtype | None, copied: bool, ndmin: int, device: Any) -> Array:
    if value is None:
        raise errors.NoValueError("None is not a valid value for jnp.array")
    mine = value if isinstance(value, Array) else None if isinstance(value, _HOST_TYPES) else adopted(value)
    if mine is not None:
        out = _from_array(mine, dtype, copied, device)
    elif isinstance(value, list | tuple) and any(isinstance(leaf, Array) for leaf in _leaves(value)):
        out = stack([_converted(part, dtype, False, 0, None) for part in value], dtype=dtype)
        out = out if device is None and not out.weak_type else _placed(out, out.dtype, device=device)
    else:
        out = _from_host(host_value(value, dtype), device)
    return out if out.ndim >= ndmin else reshape(out, (1,) * (ndmin - out.ndim) + out.shape)


def _from_array(value: Array, dtype: np.dtype | None, copied: bool, device: Any) -> Array:
    if device is not None:
        return _placed(value, dtype, device=device)
    if dtype is not None and (dtype != value.dtype or value.weak_type):
        return astype(value, dtype)
    return copy(value) if copied else value


def _from_host(value: Any, device: Any) -> Array:
    if device is None:
        if tracing():
            return lift(value)
        mesh = context_mesh()
        if mesh is not None and not mesh.empty:
            device = NamedSharding(mesh, PartitionSpec())
    return put_unasked(value, device)


def _leaves(value: Any) -> Iterator[Any]:
    """The numbers and arrays in nested lists and tuples."""
    for part in value:
        if isinstance(part, list | tuple):
            yield from _leaves(part)
        else:
            yield part


def host_value(value: Any, dtype: np.dtype | None) -> Any:
    """A NumPy array, or a Python number where its weakness is to be kept."""
    if isinstance(value, SCALARS) and dtype is None and not isinstance(value, np.generic):
        return value
    if isinstance(value, SCALARS) and not isinstance(value, np.generic):
        return np.asarray(value, dtype=dtype)
    if isinstance(value, list | tuple | range):
        return _from_sequence(value, dtype)
    found = _numbers(np.asarray(value), value)
    return found if dtype is None else _cast(found, dtype)


def _from_sequence(value: Any, dtype: np.dtype | None) -> np.ndarray:
    """Python numbers of a sequence become the default types; NumPy values in it promote as arrays do."""
    found = np.asarray(value)
    if found.dtype.kind == "O":
        found = _from_extended(found, value)
    found = _numbers(found, value)
    if dtype is not None:
        return _exact(value, dtype) if found.dtype.kind in "iuf" and dtype.kind in "iu" else _cast(found, dtype)
    target = _common_dtype(value)
    return _exact(value, target) if found.dtype.kind in "iu" and target.kind in "iu" else _cast(found, target)


def _from_extended(found: np.ndarray, value: Any) -> np.ndarray:
    """What NumPy finds no dtype for: numbers of ml_dtypes beside others are converted, None is refused."""
    leaves = list(_leaves(value))
    if any(leaf is None for leaf in leaves):
        raise errors.NoValueError("None is not a valid value for jnp.array")
    if all(isinstance(leaf, (*SCALARS, np.generic, np.ndarray)) for leaf in leaves):
        return np.array(value, dtype=_common_dtype(value))
    return found


def _common_dtype(value: Any) -> np.dtype:
    types = {(leaf.dtype, False) if isinstance(leaf, np.ndarray | np.generic) else _number_type(leaf)
             for leaf in _leaves(value)}  # fmt: skip
    return dtypes.promote(types)[0] if types else dtypes.default_dtype("float")


def _number_type(value: Any) -> tuple[np.dtype, bool]:
    if isinstance(value, bool):
        return dtypes.BOOL, False
    weak = "int" if isinstance(value, int) else "float" if isinstance(value, float) else "complex"
    return dtypes.default_dtype(weak), True


def _exact(value: Any, dtype: np.dtype) -> np.ndarray:
    """Numbers converted one by one, so that NumPy raises OverflowError for one that does not fit."""
    return np.array(list(value), dtype=dtype)


def _cast(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(all="ignore"):
        return convert(np, value, dtype)


def _numbers(found: np.ndarray, value: Any) -> np.ndarray:
    if not dtypes.is_supported(found.dtype):
        shown = found.dtype.name if found.dtype.kind == "O" else found.dtype.str
        raise errors.DtypeError(
            f"Value '{value}' with dtype {shown} is not a valid JAX array type. "
            "Only arrays of numeric types are supported by JAX."
        )
    return found
