"""Functions that make arrays: constants, counts, and arrays from host values.

Every function takes ``device=``: a device or a sharding, to which the new array is committed; each device makes
its own part. Without it the array is uncommitted, on the default device (or replicated over the mesh that
``set_mesh`` chose). All functions raise

- ShapeTypeError (TypeError): a shape holds something else than integers, or a negative one;
- DtypeError (TypeError): a dtype that arrays cannot have;
- IndivisibleError (ValueError): the sharding does not divide the shape evenly.

    >>> import cuplace.numpy as jnp
    >>> jnp.zeros((2, 2))
    Array([[0., 0.],
           [0., 0.]], dtype=float32)
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.array import Array
from cuplace.array.type import typeof
from cuplace.numpy.arraylike import require_arrays
from cuplace.numpy.conversion import host_value
from cuplace.numpy.promotion import cast, number, promote_inexact
from cuplace.ops import elementwise as elementwise_ops
from cuplace.ops.creation import EYE, IOTA
from cuplace.ops.manipulation import BROADCAST, TRANSPOSE
from cuplace.ops.reshape import RESHAPE
from cuplace.ops.shapes import checked_shape, integers, normalize_axis
from cuplace.runtime.context import context_mesh
from cuplace.staging.eager import eager
from cuplace.staging.trace import bind, tracing


def _dtype_or(default: Any, dtype: Any, name: str) -> np.dtype:
    return dtypes.requested(default if dtype is None else dtype, name)


# --- constants ---------------------------------------------------------------------------------------------


@eager("full", static=("shape", "dtype", "weak_type"), device="device")
def _full(fill_value: Any, /, shape: Any, dtype: Any, weak_type: bool, device: Any = None) -> Any:
    return bind(BROADCAST, cast(fill_value, dtype, weak_type), shape=shape)


def zeros(shape: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """An array of zeros; float32 unless ``dtype`` says otherwise.

    Example:
        >>> zeros(2, dtype="int8")
        Array([0, 0], dtype=int8)
    """
    return _full(0, checked_shape(shape), _dtype_or(float, dtype, "zeros"), False, device=device)


def ones(shape: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """An array of ones; float32 unless ``dtype`` says otherwise."""
    return _full(1, checked_shape(shape), _dtype_or(float, dtype, "ones"), False, device=device)


def empty(shape: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """An array whose values do not matter: zeros, since uninitialised memory would make programs differ."""
    return _full(0, checked_shape(shape), _dtype_or(float, dtype, "empty"), False, device=device)


def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """An array of one value, or of values that are broadcast; its dtype unless ``dtype`` says otherwise.

    Example:
        >>> full(2, True)
        Array([ True,  True], dtype=bool)
    """
    fill_value = _listed(fill_value)
    require_arrays("full", fill_value)
    of = typeof(fill_value)
    if dtype is None:
        return _full(fill_value, checked_shape(shape), of.dtype, of.weak_type, device=device)
    return _full(fill_value, checked_shape(shape), dtypes.requested(dtype, "full"), False, device=device)


def _listed(value: Any) -> Any:
    """The value, made a NumPy array where it is a list."""
    return host_value(value, None) if isinstance(value, list | tuple) else value


@eager("full_like", static=("dtype", "weak_type"), device="device")
def _full_like(a: Any, fill_value: Any, /, dtype: Any, weak_type: bool, device: Any = None) -> Any:
    return bind(elementwise_ops.FULL_LIKE, a, cast(fill_value, dtype, weak_type))


def _like(a: Any, fill_value: Any, dtype: Any, shape: Any, device: Any, name: str) -> Array:
    require_arrays(name, a)
    of = typeof(a)
    if device is None and shape is None and isinstance(a, Array) and context_mesh() is not None and not tracing():
        device = a.sharding if a.committed else None  # where the array is, not on the context mesh
    weak = dtype is None and of.weak_type
    wanted = of.dtype if dtype is None else dtypes.requested(dtype, name)
    if shape is None and device is None:
        return _full_like(a, fill_value, wanted, weak)
    return _full(fill_value, of.shape if shape is None else checked_shape(shape), wanted, weak, device=device)


def zeros_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Array:
    """Zeros of the shape and dtype of ``a``, placed as ``a`` is, unless the arguments say otherwise."""
    return _like(a, 0, dtype, shape, device, "zeros_like")


def ones_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Array:
    """Ones of the shape and dtype of ``a``, placed as ``a`` is, unless the arguments say otherwise."""
    return _like(a, 1, dtype, shape, device, "ones_like")


def empty_like(prototype: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Array:
    """An array of the shape and dtype of ``prototype``, whose values do not matter; see `empty`."""
    return _like(prototype, 0, dtype, shape, device, "empty_like")


def full_like(a: Any, fill_value: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Array:
    """One value in the shape and dtype of ``a``, placed as ``a`` is, unless the arguments say otherwise."""
    return _like(a, _listed(fill_value), dtype, shape, device, "full_like")


# --- counts ------------------------------------------------------------------------------------------------


@eager("arange", static=("start", "step", "size", "dtype"), device="device")
def _arange(start: Any, step: Any, size: int, dtype: Any, device: Any = None) -> Any:
    return bind(IOTA, shape=(size,), dtype=dtype, dimension=0, start=start, step=step)


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None) -> Array:
    """The numbers from ``start`` (0 where only one limit is given) up to, not including, ``stop``.

    Raises:
        ZeroDivisionError: the step is zero.
        ArgumentTypeError, NotAnArrayError: TypeErrors: a limit is no number, or the dtype is bool.
        ComplexOrderError, ScalarLimitError: ValueErrors: a limit is complex, or has dimensions.

    Example:
        >>> arange(4.0)
        Array([0., 1., 2., 3.], dtype=float32)
    """
    given = [start, stop, step]
    _check_limits(given)
    types = [typeof(x) for x in given if x is not None]
    natural = dtypes.promote([(t.dtype, t.weak_type) for t in types])[0]
    wanted = natural if dtype is None else dtypes.requested(dtype, "arange")
    if wanted == dtypes.BOOL:
        raise errors.ArgumentTypeError(
            "iota does not accept dtype bool. Accepted dtypes are subtypes of integer, floating, complexfloating."
        )
    first, last, by = (None if x is None else _concrete(x) for x in given)
    if last is None:
        first, last = 0, first
    by = 1 if by is None else by
    size = max(0, math.ceil((last - first) / by)) if by else 1 // by
    return _arange(first, by, size, wanted, device=device)


def _check_limits(limits: list[Any]) -> None:
    for position, x in enumerate(limits):
        if isinstance(x, list | tuple | dict) or (x is None and position == 0):
            raise errors.ArgumentTypeError(
                f"arange requires ndarray, scalar, or None arguments, got {type(x)} at position {position}."
            )
        if x is not None and dtypes.is_complex(typeof(x).dtype):
            raise errors.ComplexOrderError(
                "Passing complex start/stop/step to jnp.arange is no longer supported starting in JAX v0.10.0.\n"
                "Complex numbers have no order; give limits that are real, and dtype=complex if that is wanted."
            )
        if np.ndim(x):
            raise errors.ScalarLimitError(f"jax.numpy.arange: arguments must be scalars; got {x}")


def _concrete(x: Any) -> Any:
    """A Python number from a scalar of Python, NumPy or cuplace."""
    value = x.item() if hasattr(x, "item") else x
    return int(value) if isinstance(value, bool) else value


@eager("linspace", static=("num", "endpoint", "dtype", "axis"), device="device")
def _linspace(start: Any, stop: Any, /, num: int, endpoint: bool, dtype: Any, axis: int, device: Any = None) -> Any:
    start, stop = promote_inexact(start, stop)
    shape = elementwise_ops.broadcast_shapes("linspace", [start.shape, stop.shape])
    parts = max(num - 1 if endpoint else num, 1)
    counts = bind(IOTA, shape=(num,), dtype=dtypes.real_dtype(start.dtype), dimension=0)
    along = bind(RESHAPE, cast(counts, start.dtype), shape=(num,) + (1,) * len(shape))
    share = bind(elementwise_ops.DIV, along, number(float(parts), along))
    rest = bind(elementwise_ops.SUB, number(1, share), share)
    mixed = bind(elementwise_ops.ADD, bind(elementwise_ops.MUL, start, rest), bind(elementwise_ops.MUL, stop, share))
    if endpoint and num > 1:
        last = bind(elementwise_ops.EQ, along, number(float(num - 1), along))
        mixed = bind(elementwise_ops.SELECT, last, bind(elementwise_ops.FULL_LIKE, mixed, stop), mixed)
    if dtypes.is_integer(dtype):
        mixed = bind(elementwise_ops.FLOOR, mixed)
    at = normalize_axis(axis, mixed.ndim)
    if at:
        mixed = bind(TRANSPOSE, mixed, permutation=(*range(1, at + 1), 0, *range(at + 1, mixed.ndim)))
    return cast(mixed, dtype)


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """``num`` numbers at equal distances from ``start`` to ``stop``, which is among them unless ``endpoint`` is False.

    With ``retstep`` a pair: the numbers and their distance.

    Raises:
        AxisArgumentError: a ValueError: the number is negative, or the axis does not exist.

    Example:
        >>> linspace(0, 1, 3)
        Array([0. , 0.5, 1. ], dtype=float32)
    """
    count = operator.index(num)
    if count < 0:
        raise errors.AxisArgumentError(f"Number of samples, {count}, must be non-negative.")
    require_arrays("linspace", start, stop)
    types = [typeof(x) for x in (start, stop)]
    computing = dtypes.to_inexact(dtypes.promote([(t.dtype, t.weak_type) for t in types])[0])
    wanted = computing if dtype is None else dtypes.requested(dtype, "linspace")
    out = _linspace(start, stop, count, bool(endpoint), wanted, axis, device=device)
    if not retstep:
        return out
    return out, _distance(start, stop, count - 1 if endpoint else count, wanted)


@eager("linspace", static=("parts", "dtype"))
def _distance(start: Any, stop: Any, /, parts: int, dtype: Any) -> Any:
    start, stop = promote_inexact(start, stop)
    span = bind(elementwise_ops.SUB, stop, start)
    step = bind(elementwise_ops.DIV, span, number(float(parts) if parts > 0 else math.nan, span))
    return cast(step, dtypes.to_inexact(dtype))


@eager("eye", static=("shape", "k", "dtype"), device="device")
def _eye(shape: Any, k: int, dtype: Any, device: Any = None) -> Any:
    return bind(EYE, shape=shape, dtype=dtype, k=k)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None, *, device: Any = None) -> Array:
    """Ones on the diagonal ``k``, zeros elsewhere, in ``N`` rows and ``M`` (by default ``N``) columns.

    Raises:
        BroadcastError: a ValueError: a size is negative.
    """
    sizes = integers((N, N if M is None else M))
    if min(sizes) < 0:
        raise errors.BroadcastError(f"negative dimensions are not allowed, got {sizes[0]} and {sizes[1]}")
    return _eye(sizes, operator.index(k), _dtype_or(float, dtype, "eye"), device=device)


def identity(n: int, dtype: Any = None) -> Array:
    """The square matrix with ones on its diagonal."""
    return eye(n, dtype=dtype)
