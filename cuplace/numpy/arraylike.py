"""What may stand for an array: arrays, NumPy arrays and numbers, but no lists, and not None."""

from __future__ import annotations

from typing import Any

from cuplace.staging.eager import not_an_array


def require_arrays(function: str, *values: Any) -> None:
    """Check the operands of a function that looks at them before it is traced.

    Raises:
        ArgumentTypeError: a TypeError, with JAX's text, for None and for lists, tuples and dicts.

    >>> require_arrays("take", 1, [2])
    Traceback (most recent call last):
    cuplace.errors.ArgumentTypeError: take requires ndarray or scalar arguments, got <class 'list'> at position 1.
    Make an array of it first, with cuplace.numpy.array.
    """
    for position, value in enumerate(values):
        if value is None or isinstance(value, list | tuple | dict):
            raise not_an_array(function, value, position)
