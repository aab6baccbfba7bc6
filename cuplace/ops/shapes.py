"""Shapes of results: broadcasting, axes, and the errors that JAX gives for shapes that do not fit."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from cuplace import errors

Shape = tuple[int, ...]


def broadcast_shapes(name: str, shapes: Sequence[Shape]) -> Shape:
    """The shape of an elementwise result.

    >>> broadcast_shapes("add", [(3, 1), (4,)])
    (3, 4)

    Raises:
        IncompatibleShapesError: a TypeError, for shapes of equal rank that do not fit (as JAX).
        BroadcastError: a ValueError, for shapes of different ranks that do not fit (as JAX).
    """
    if len(set(shapes)) == 1:
        return shapes[0]
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            raise _misfit(name, shapes)
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def broadcast_value(xp: Any, x: Any, shape: Shape) -> Any:
    """An array of ``shape`` with the values of ``x``, an array or a scalar; a view where the module has scalars."""
    if xp is not np and not isinstance(x, xp.ndarray):
        return xp.full(shape, x, x.dtype)  # modules other than NumPy broadcast only arrays of their own
    return xp.broadcast_to(x, shape)


def _misfit(name: str, shapes: Sequence[Shape]) -> Exception:
    solid = [shape for shape in shapes if shape]
    if len({len(shape) for shape in solid}) > 1:
        return errors.BroadcastError(f"Incompatible shapes for broadcasting: shapes={list(solid)}")
    listed = ", ".join(map(str, solid))
    return errors.IncompatibleShapesError(f"{name} got incompatible shapes for broadcasting: {listed}.")


def normalize_axis(axis: Any, ndim: int) -> int:
    """An axis counted from the front.

    Raises:
        AxisArgumentError: a ValueError, for an axis that does not exist.
        AxisArgumentTypeError: a TypeError, for something that is no integer.
    """
    try:
        index = operator.index(axis)
    except TypeError:
        raise errors.AxisArgumentTypeError(axis, ndim) from None
    if not -ndim <= index < ndim:
        raise errors.AxisArgumentError(f"axis {index} is out of bounds for array of dimension {ndim}")
    return index % ndim


def normalize_axes(axes: Any, ndim: int) -> tuple[int, ...]:
    """Axes counted from the front: of None all, of an integer that one.

    Raises:
        AxisArgumentError: a ValueError, for an axis that does not exist or is named twice.
        AxisArgumentTypeError: a TypeError, for something that is neither an integer nor a sequence of them.
    """
    if axes is None:
        return tuple(range(ndim))
    given = tuple(axes) if isinstance(axes, list | tuple) else (axes,)
    found = tuple([normalize_axis(axis, ndim) for axis in given])
    if len(set(found)) != len(found):
        raise errors.AxisArgumentError(f"duplicate value in 'axis': {given}")
    return found


def hashable_axis(axis: Any) -> Any:
    """An ``axis`` argument as a value that caches can hold: a list becomes a tuple."""
    return tuple(axis) if isinstance(axis, list) else axis


def checked_shape(shape: Any) -> Shape:
    """A shape from what a user may give for one: an integer, or a sequence of integers.

    Raises:
        ShapeTypeError: a TypeError, for anything else, and for negative sizes (as JAX).
    """
    sizes = integers(shape)
    if any(size < 0 for size in sizes):
        raise errors.ShapeTypeError(f"broadcast_in_dim shape must have every element be nonnegative, got {sizes}.")
    return sizes


def integers(values: Any) -> tuple[int, ...]:
    """A tuple of ints from an integer or a sequence of integers. Raises ShapeTypeError for anything else."""
    given = tuple(values) if isinstance(values, list | tuple) or getattr(values, "ndim", 0) == 1 else (values,)
    try:
        return tuple([operator.index(size) for size in given])
    except TypeError:
        traced = any(getattr(type(size), "_is_tracer", False) for size in given)
        raise errors.ShapeTypeError(
            f"Shapes must be 1D sequences of concrete values of integer type, got {given}."
            + ("\nMake the argument that it comes from static: jit(f, static_argnums=...)." if traced else "")
        ) from None
