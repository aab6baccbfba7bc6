"""Functions that change shapes and the order of elements.

Specs follow: dimensions keep their mesh axes where they go. Where they cannot (a reshape that cuts through
shards, joined arrays that are sharded differently), Explicit axes raise ShardingTypeError and Auto axes gather.

    >>> import cuplace.numpy as jnp
    >>> jnp.stack([jnp.arange(2), jnp.ones(2)])
    Array([[0., 1.],
           [1., 1.]], dtype=float32)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.array import Array
from cuplace.numpy.arraylike import require_arrays
from cuplace.numpy.layout import out_sharding as wanted_sharding
from cuplace.numpy.promotion import cast, promote
from cuplace.ops.elementwise import COPY
from cuplace.ops.manipulation import BROADCAST, CONCATENATE, REVERSE, SPLIT_PART, STACK, TRANSPOSE
from cuplace.ops.reshape import RESHAPE
from cuplace.ops.shapes import checked_shape, hashable_axis, integers, normalize_axes, normalize_axis
from cuplace.placement.sharding import NamedSharding
from cuplace.staging.eager import eager
from cuplace.staging.trace import bind
from cuplace.staging.tracer import Tracer


def _reshaped(x: Tracer, shape: tuple[int, ...], sharding: NamedSharding | None = None) -> Tracer:
    if shape == x.shape and sharding is None:
        return x
    return bind(RESHAPE, x, shape=shape, out_sharding=sharding)


def _new(x: Tracer, of: Tracer) -> Tracer:
    """The result of a function that makes a new array, where nothing was to be done."""
    return bind(COPY, x) if x is of else x


# --- reshape -----------------------------------------------------------------------------------------------


def filled_shape(shape: tuple[int, ...], old: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with -1 replaced by the size that is left for it.

    Raises:
        IncompatibleShapesError: a TypeError, where no size is left, or two -1 are given.
    """
    size, known = math.prod(old), math.prod(n for n in shape if n != -1)
    if shape.count(-1) > 1:
        raise errors.IncompatibleShapesError(f"can only specify one unknown axis size with a `-1` value, got {shape}")
    if any(n < -1 for n in shape):
        raise errors.IncompatibleShapesError(f"reshape new_sizes must all be positive, got {shape}.")
    if -1 not in shape:
        return shape
    if known == 0 or size % known:
        raise errors.IncompatibleShapesError(
            f"cannot reshape array of shape {old} (size {size}) into shape {shape} because the product of specified "
            f"axis sizes ({known}) does not evenly divide {size}"
        )
    return tuple([size // known if n == -1 else n for n in shape])


@eager("reshape", static=("shape", "order", "sharding"))
def _reshape(a: Any, /, shape: Any, order: str, sharding: Any) -> Any:
    new = filled_shape(shape, a.shape)
    if order == "C":
        return _new(_reshaped(a, new, sharding), a)
    if order == "A":
        raise NotImplementedError("np.reshape order=A is not implemented.\nUse one of the orders 'C' and 'F'.")
    if order != "F":
        raise errors.OrderArgumentError(
            f"Unexpected value for 'order' argument: {order}.\nUse one of the orders 'C' and 'F'."
        )
    turned = bind(TRANSPOSE, a, permutation=tuple(range(a.ndim))[::-1])
    turned = bind(RESHAPE, turned, shape=new[::-1])
    return bind(TRANSPOSE, turned, permutation=tuple(range(len(new)))[::-1], out_sharding=sharding)


def reshape(a: Any, shape: Any, order: str = "C", *, copy: bool | None = None, out_sharding: Any = None) -> Array:
    """The elements of ``a`` in another shape, in which one size may be -1.

    Args:
        a: an array.
        shape: an integer or a sequence of integers.
        order: 'C' (the last index changes fastest) or 'F' (the first does).
        copy: accepted for JAX's sake; arrays never change, so copies cannot be told from originals.
        out_sharding: a NamedSharding, or a spec on the context mesh, of the result.

    Raises:
        IncompatibleShapesError: a TypeError, where the shapes hold different numbers of elements.
        ShardingTypeError: a TypeError, where the result's sharding is left open.
        OrderArgumentError: a ValueError, for an order that does not exist.

    Example:
        >>> import cuplace.numpy as jnp
        >>> reshape(jnp.arange(6), (2, -1)).shape
        (2, 3)
    """
    return _reshape(a, integers(shape), order, wanted_sharding(out_sharding))


def ravel(a: Any, order: str = "C", *, out_sharding: Any = None) -> Array:
    """The elements in one dimension; see `reshape`."""
    return reshape(a, (-1,), order, out_sharding=out_sharding)


@eager("squeeze", static=("axis",))
def _squeeze(a: Any, /, axis: Any) -> Any:
    axes = [i for i, n in enumerate(a.shape) if n == 1] if axis is None else normalize_axes(axis, a.ndim)
    if any(a.shape[i] != 1 for i in axes):
        raise errors.AxisArgumentError(
            "cannot select an axis to squeeze out which has size not equal to one, "
            f"got shape={a.shape} and dimensions={tuple(axes)}"
        )
    return _new(_reshaped(a, tuple([n for i, n in enumerate(a.shape) if i not in axes])), a)


def squeeze(a: Any, axis: Any = None) -> Array:
    """Without the dimensions of size 1, or without those named. Raises ValueError for a dimension of another size."""
    return _squeeze(a, hashable_axis(axis))


@eager("expand_dims", static=("axis",))
def _expand_dims(a: Any, /, axis: Any) -> Any:
    count = len(axis) if isinstance(axis, tuple) else 1
    axes = normalize_axes(axis, a.ndim + count)
    sizes = iter(a.shape)
    return _new(_reshaped(a, tuple([1 if i in axes else next(sizes) for i in range(a.ndim + count)])), a)


def expand_dims(a: Any, axis: Any) -> Array:
    """With new dimensions of size 1, at these positions of the result."""
    return _expand_dims(a, hashable_axis(axis))


# --- order of dimensions -----------------------------------------------------------------------------------


@eager("transpose", static=("axes",))
def _transpose(a: Any, /, axes: Any) -> Any:
    if axes is None:
        return bind(TRANSPOSE, a, permutation=tuple(range(a.ndim))[::-1])
    return bind(TRANSPOSE, a, permutation=tuple([normalize_axis(axis, a.ndim) for axis in axes]))


def transpose(a: Any, axes: Sequence[int] | None = None) -> Array:
    """The dimensions in another order: reversed, or dimension ``axes[i]`` at position ``i``.

    Raises:
        IncompatibleShapesError: a TypeError, where ``axes`` is no permutation of the dimensions.
        AxisArgumentError: a ValueError, where a dimension does not exist.
    """
    return _transpose(a, None if axes is None else integers(axes))


permute_dims = transpose


def matrix_transpose(x: Any, /) -> Array:
    """The last two dimensions exchanged. Raises AxisArgumentError, a ValueError, where there are fewer."""
    require_arrays("matrix_transpose", x)
    ndim = np.ndim(x)
    if ndim < 2:
        raise errors.AxisArgumentError(f"x must be at least two-dimensional for matrix_transpose; got ndim={ndim}")
    return swapaxes(x, -1, -2)


@eager("swapaxes", static=("axis1", "axis2"))
def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """Two dimensions exchanged. Raises ValueError where one does not exist."""
    i, j = normalize_axis(axis1, a.ndim), normalize_axis(axis2, a.ndim)
    order = list(range(a.ndim))
    order[i], order[j] = order[j], order[i]
    return bind(TRANSPOSE, a, permutation=tuple(order))


@eager("moveaxis", static=("source", "destination"))
def _moveaxis(a: Any, /, source: Any, destination: Any) -> Any:
    sources, targets = normalize_axes(source, a.ndim), normalize_axes(destination, a.ndim)
    if len(sources) != len(targets):
        raise errors.AxisArgumentError(f"Inconsistent number of elements: {len(sources)} vs {len(targets)}")
    order = [i for i in range(a.ndim) if i not in sources]
    for target, source_axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, source_axis)
    return bind(TRANSPOSE, a, permutation=tuple(order))


def moveaxis(a: Any, source: Any, destination: Any) -> Array:
    """Dimensions moved to other positions; the rest keeps its order.

    Raises:
        AxisArgumentError: a ValueError, where a dimension does not exist, or the numbers of positions differ.
    """
    return _moveaxis(a, integers(source), integers(destination))


# --- broadcasting ------------------------------------------------------------------------------------------


@eager("broadcast_to", static=("shape", "sharding"))
def _broadcast_to(array: Any, /, shape: Any, sharding: Any) -> Any:
    return bind(BROADCAST, array, shape=shape, out_sharding=sharding)


def broadcast_to(array: Any, shape: Any, *, out_sharding: Any = None) -> Array:
    """The array repeated along new leading dimensions and dimensions of size 1.

    Raises:
        BroadcastError: a ValueError, where the shapes do not fit.
    """
    return _broadcast_to(array, checked_shape(shape), wanted_sharding(out_sharding))


# --- joins -------------------------------------------------------------------------------------------------


def _parts(arrays: Any, name: str) -> tuple[Any, ...]:
    """The arrays to be joined; an array stands for its parts along the first dimension."""
    if hasattr(arrays, "ndim"):
        return tuple([arrays[i] for i in range(arrays.shape[0])]) if arrays.ndim else ()
    found = tuple(arrays)
    if not found:
        raise errors.StackError(f"Need at least one array to {name}.")
    return found


def _joined_dtype(arrays: Sequence[Tracer], dtype: np.dtype | None) -> list[Tracer]:
    return promote(*arrays) if dtype is None else [cast(x, dtype) for x in arrays]


@eager("concatenate", static=("axis", "dtype"), sequences=("arrays",), labels={"arrays": "args"})
def _concatenate(arrays: Any, axis: Any, dtype: Any) -> Any:
    if axis is None:
        arrays = [_reshaped(x, (x.size,)) for x in arrays]
    rank = max(x.ndim for x in arrays)
    if rank == 0:
        raise errors.StackError("Zero-dimensional arrays cannot be concatenated.")
    along = normalize_axis(axis or 0, rank)
    return bind(CONCATENATE, *_joined_dtype(arrays, dtype), axis=along)


def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Array:
    """The arrays one after the other along a dimension that they have; None flattens them first.

    Raises:
        IncompatibleShapesError: a TypeError, where other dimensions differ, or the numbers of dimensions.
        StackError: a ValueError, for no arrays, and for scalars.
        ShardingTypeError: a TypeError, where arrays on a mesh of Explicit axes are sharded differently.

    Example:
        >>> import cuplace.numpy as jnp
        >>> concatenate([jnp.arange(2), jnp.zeros(1)])
        Array([0., 1., 0.], dtype=float32)
    """
    wanted = dtypes.requested_or_none(dtype, "concatenate")
    return _concatenate(_parts(arrays, "concatenate"), axis, wanted)


concat = concatenate


@eager("stack", static=("axis", "dtype"), sequences=("arrays",), labels={"arrays": "args"})
def _stack(arrays: Any, axis: int, dtype: Any) -> Any:
    return bind(STACK, *_joined_dtype(arrays, dtype), axis=axis)


def stack(arrays: Any, axis: int = 0, out: None = None, dtype: Any = None) -> Array:
    """The arrays side by side along a new dimension.

    Raises:
        StackError: a ValueError, for no arrays, and for arrays of different shapes.
        ShardingTypeError: a TypeError, where arrays on a mesh of Explicit axes are sharded differently.
    """
    wanted = dtypes.requested_or_none(dtype, "stack")
    parts = _parts(arrays, "stack")
    return _stack(parts, normalize_axis(axis, np.ndim(parts[0]) + 1) if parts else axis, wanted)


def hstack(tup: Any, dtype: Any = None) -> Array:
    """The arrays one after the other along the second dimension, or the first where they have only one."""
    arrays = [_at_least_1d(x) for x in _parts(tup, "hstack")]
    return concatenate(arrays, axis=0 if arrays[0].ndim == 1 else 1, dtype=dtype)


def vstack(tup: Any, dtype: Any = None) -> Array:
    """The arrays one after the other along the first dimension; 1-D arrays are rows."""
    return concatenate([_at_least_2d(x) for x in _parts(tup, "vstack")], axis=0, dtype=dtype)


def _at_least_1d(x: Any) -> Any:
    return x if np.ndim(x) else reshape(x, (1,))


def _at_least_2d(x: Any) -> Any:
    return x if np.ndim(x) >= 2 else reshape(x, (1, -1))


# --- reversal and splitting --------------------------------------------------------------------------------


@eager("flip", static=("axis",))
def _flip(m: Any, /, axis: Any) -> Any:
    return bind(REVERSE, m, axes=normalize_axes(axis, m.ndim))


def flip(m: Any, axis: Any = None) -> Array:
    """The elements in reverse order along all dimensions, or along those named."""
    return _flip(m, hashable_axis(axis))


@eager("split", static=("borders", "axis"))
def _split(ary: Any, /, borders: Any, axis: int) -> Any:
    along = normalize_axis(axis, ary.ndim)
    size = ary.shape[along]
    if isinstance(borders, int):
        if borders < 0:
            raise errors.BroadcastError(f"The number of parts must be 1 or more, got {borders}.")
        if size % borders:
            raise errors.BroadcastError(f"array split does not result in an equal division: rest is {size % borders}")
        borders = tuple(range(0, size, size // borders))[1:] if size else (0,) * (borders - 1)
    edges = [0, *[slice(None, n).indices(size)[1] for n in borders], size]
    return [bind(SPLIT_PART, ary, axis=along, start=start, stop=max(start, stop)) for start, stop in pairwise(edges)]


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """The array cut along a dimension: into equal parts (an integer), or before these indices.

    Raises:
        BroadcastError: a ValueError, where the dimension has no equal parts of that number.
        ZeroDivisionError: where the number of parts is 0.
    """
    borders = indices_or_sections
    return _split(ary, integers(borders) if np.ndim(borders) else operator.index(borders), axis)


@eager("copy", static=("order",))
def copy(a: Any, order: str | None = None) -> Any:
    """A copy of the array, placed as it is; ``order`` is accepted for NumPy's sake."""
    return bind(COPY, a)


@eager("astype", static=("dtype",))
def _astype(x: Any, /, dtype: Any) -> Any:
    return bind(COPY, x) if x.dtype == dtype and not x.weak_type else cast(x, dtype)


def astype(x: Any, dtype: Any, /, *, copy: bool = False, device: Any = None) -> Array:
    """The values in another dtype, placed as they are, or on ``device``.

    Raises:
        DtypeError, TypeError: for what is no dtype that arrays can have.

    Example:
        >>> astype(2.5, "int32")
        Array(2, dtype=int32)
    """
    wanted = dtypes.requested(float if dtype is None else dtype, "astype")
    same = isinstance(x, Array) and x.dtype == wanted and not x.weak_type and not copy
    out = x if same else _astype(x, wanted)
    if device is None:
        return out
    from cuplace.array.put import device_put

    return device_put(out, device)
