"""Choices of elements: ``x[index]``, `take`, `where` and `nonzero`.

Static indices (integers, slices, None, Ellipsis) and one integer or bool array among them. Integers that are
known must be in range; positions in arrays count from the end where negative, and are clamped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.array import Array
from cuplace.array.put import put_unasked
from cuplace.array.type import typeof
from cuplace.numpy.arraylike import require_arrays
from cuplace.numpy.promotion import promote, to_bool
from cuplace.ops.elementwise import SELECT, SPREAD_SELECT
from cuplace.ops.indexing import FULL, GETITEM, TAKE, Index, integers_apart, normalize_index
from cuplace.ops.reshape import RESHAPE
from cuplace.ops.shapes import broadcast_shapes, normalize_axis
from cuplace.placement.sharding import NamedSharding, Sharding
from cuplace.placement.spec import PartitionSpec
from cuplace.runtime.context import context_mesh
from cuplace.staging.eager import eager
from cuplace.staging.trace import bind


@eager("gather", static=("index",), labels={"operand": "args[0]"})
def _getitem(operand: Any, index: Any, i: Any = None, j: Any = None, k: Any = None) -> Any:
    return bind(GETITEM, operand, *[integer for integer in (i, j, k) if integer is not None], index=index)


def _part(x: Any, index: Index) -> Any:
    """The part that an index in normal form picks. Indices that differ in integers only share a program."""
    if set(index) <= {FULL}:
        return x
    shared, integers = integers_apart(index)
    return _getitem(x, shared, *integers)


@eager("gather", static=("axis", "fill"), labels={"operand": "args[0]", "positions": "args[1]"})
def _take(operand: Any, positions: Any, /, axis: int, fill: bool) -> Any:
    return bind(TAKE, operand, positions, axis=axis, fill=fill)


@eager("gather", static=("axis", "merged"), labels={"operand": "args[0]", "positions": "args[1]"})
def _take_merged(operand: Any, positions: Any, /, axis: int, merged: int) -> Any:
    """Take from ``merged`` dimensions at ``axis``, flattened into one."""
    shape = operand.shape
    size = int(np.prod(shape[axis : axis + merged], dtype=np.int64))
    flat = bind(RESHAPE, operand, shape=(*shape[:axis], size, *shape[axis + merged :]))
    return bind(TAKE, flat, positions, axis=axis, fill=False)


def getitem(x: Any, index: Any) -> Array:
    """``x[index]``: the part of an array that an index picks.

    Args:
        x: an array.
        index: integers, slices, None and Ellipsis, and at most one array of integers or bools.

    Raises:
        ArrayIndexError: an IndexError: an integer is out of range, or there are too many.
        IndexTypeError: a TypeError: an item of another type, or a list.
        NonConcreteBooleanIndexError: an IndexError: a bool array that is being traced.
        ShardingTypeError: a TypeError: a dimension that is not taken whole is sharded over Explicit axes.

    Example:
        >>> import cuplace.numpy as jnp
        >>> getitem(jnp.arange(6).reshape(2, 3), (-1, slice(None, None, 2)))
        Array([3, 5], dtype=int32)
    """
    items = index if isinstance(index, tuple) else (index,)
    arrays = [i for i, item in enumerate(items) if _is_array(item)]
    if not arrays:
        return _part(x, normalize_index(index, x.shape))
    if len(arrays) > 1 or any(_is_integer(item) for item in items):
        raise errors.IndexTypeError(
            "Indexing with several arrays, or with an array and integers, is not there yet.\n"
            "Index in steps, or reshape first and use one array of positions."
        )
    return _by_array(x, items, arrays[0])


def _is_array(item: Any) -> bool:
    if isinstance(item, str):
        raise errors.IndexTypeError(f"JAX does not support string indexing; got idx={item!r}")
    if isinstance(item, list):
        raise errors.IndexTypeError(
            "Using a non-tuple sequence for multidimensional indexing is not allowed; use `arr[array(seq)]` instead "
            "of `arr[seq]`. See https://github.com/jax-ml/jax/issues/4564 for more information."
        )
    return isinstance(item, bool | np.bool_ | np.ndarray | Array)


def _is_integer(item: Any) -> bool:
    return not isinstance(item, slice) and item is not None and item is not Ellipsis and not _is_array(item)


def _by_array(x: Any, items: tuple[Any, ...], at: int) -> Array:
    """Take what the static items pick, then what the one array among them picks."""
    positions, covered = _positions(items[at])
    taken = sum(isinstance(item, slice) for item in items) + covered
    if taken > x.ndim:
        raise errors.ArrayIndexError(f"Too many indices: array is {x.ndim}-dimensional, but {taken} were indexed")
    if Ellipsis not in [item for item in items if not _is_array(item)]:
        items = (*items, Ellipsis)
    whole = [slice(None)] * (x.ndim - taken)
    before = _spread(items[:at], whole)
    after = _spread(items[at + 1 :], whole)
    first = sum(item is not None for item in before)
    _check_mask(items[at], x.shape[first : first + covered], at)
    part = _part(x, normalize_index((*before, *[slice(None)] * covered, *after), x.shape))
    if covered != 1:
        return _take_merged(part, positions, len(before), covered)
    return _take(part, positions, len(before), False)


def _check_mask(index: Any, shape: tuple[int, ...], at: int) -> None:
    if typeof(index).dtype.kind == "b" and np.shape(index) != shape:
        raise errors.ArrayIndexError(
            f"boolean index did not match shape of indexed array in index {at}: got {np.shape(index)}, expected {shape}"
        )


def _spread(items: tuple[Any, ...], whole: list[slice]) -> list[Any]:
    """The items with the Ellipsis spelt out."""
    return [part for item in items for part in (whole if item is Ellipsis else [item])]


def _positions(index: Any) -> tuple[Any, int]:
    """Positions for `take`, and how many dimensions the index covers; masks are read on the host."""
    dtype = typeof(index).dtype
    if dtype.kind in "iu":
        return index, 1
    if dtype.kind != "b":
        raise errors.IndexTypeError(f"Indexer must have integer or boolean type, got indexer with type {dtype.name}")
    if getattr(index, "_is_tracer", False):
        raise errors.NonConcreteBooleanIndexError(
            f"Array boolean indices must be concrete; got {typeof(index)}\n"
            "The shape of a result cannot depend on traced values: use cuplace.numpy.where."
        )
    mask = np.asarray(index)
    return np.flatnonzero(mask).astype(np.int32), mask.ndim


def take(a: Any, indices: Any, axis: int | None = None, out: None = None, mode: str | None = None) -> Array:
    """The elements at these positions along an axis, or of the flattened array.

    Args:
        a: an array.
        indices: an integer array of any shape; its dimensions replace the axis.
        axis: the axis, or None.
        out: not supported.
        mode: what positions out of range give: 'fill' (the default: NaN, or the smallest integer) or 'clip'.

    Raises:
        ShardingTypeError: a TypeError: the axis is sharded over Explicit mesh axes.
        IndexTypeError: a TypeError: the indices are no integers.
        ModeArgumentError: a ValueError: there is no such mode.
        NotImplementedError: for NumPy's modes 'raise' and 'wrap'.
    """
    require_arrays("take", a, indices)
    if mode in ("raise", "wrap"):
        raise NotImplementedError(
            f"The {mode!r} mode to jnp.take is not supported.\nUse one of the modes 'fill' and 'clip'."
        )
    if mode not in (None, "fill", "clip"):
        raise errors.ModeArgumentError(f"Invalid mode {mode!r} for np.take\nUse one of the modes 'fill' and 'clip'.")
    if typeof(indices).dtype.kind not in "iu":
        raise errors.IndexTypeError(f"take requires integer indices, got {typeof(indices).dtype.name}")
    of = typeof(a)
    if axis is None:
        return _take_merged(a, indices, 0, of.ndim) if mode == "clip" else _take(_flat(a), indices, 0, True)
    return _take(a, indices, normalize_axis(axis, of.ndim), mode != "clip")


@eager("ravel")
def _flat(a: Any, /) -> Any:
    return bind(RESHAPE, a, shape=(a.size,))


# --- where -------------------------------------------------------------------------------------------------


@eager("_where")
def _where(condition: Any, x: Any, y: Any, /) -> Any:
    shapes = [x.shape, y.shape] if condition.ndim == 0 else [condition.shape, x.shape, y.shape]
    try:
        broadcast_shapes("_where", shapes)
    except errors.IncompatibleShapesError:
        raise errors.BroadcastError(f"Incompatible shapes for broadcasting: shapes={shapes}") from None
    # JAX broadcasts operands of different shapes first, which lays them out alike; those of one shape must be so.
    op = SELECT if len(set(shapes)) == 1 else SPREAD_SELECT
    return bind(op, to_bool(condition), *promote(x, y))


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """The elements of ``x`` where ``condition`` holds, else those of ``y``; all three are broadcast.

    With ``condition`` alone, what `nonzero` gives.

    Raises:
        ArgumentTypeError: a TypeError, where one of ``x`` and ``y`` is missing.
        BroadcastError: a ValueError, for shapes that do not fit.

    Example:
        >>> where(True, 1, 2.0)
        Array(1., dtype=float32, weak_type=True)
    """
    if x is None and y is None:
        return nonzero(condition)
    require_arrays("where", condition, x, y)
    return _where(condition, x, y)


def nonzero(a: Any) -> tuple[Array, ...]:
    """The positions of the elements that differ from zero, an int32 array for each dimension.

    How many there are depends on the values, so that this reads them on the host, and waits for them. The positions
    of a committed array are committed to its devices, whole on each of them.

    Raises:
        TracerArrayConversionError: a TypeError, for a traced value, which has no data.
        ValueError: NumPy's, for an array without dimensions.
    """
    require_arrays("nonzero", a)
    found = np.nonzero(np.asarray(a))
    place = _whole_beside(a)
    return tuple([put_unasked(positions.astype(dtypes.default_dtype("int")), place) for positions in found])


def _whole_beside(x: Any) -> Sharding | None:
    """Where values that were read from an array go, whole on each device; None where they are not committed."""
    if isinstance(x, Array) and x.committed:
        sharding = x.sharding
        return sharding.update(spec=PartitionSpec()) if isinstance(sharding, NamedSharding) else sharding
    mesh = context_mesh()
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())
