"""frozen: static values as keys of caches, equal only where a program traced for one is right for the other."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np


def frozen(value: Any) -> Hashable:
    """A hashable stand-in for a value. Unlike values themselves, ``1``, ``1.0`` and ``True`` differ.

    Raises:
        TypeError: Python's own, for a value that is not hashable and none of the known containers.
    """
    kind = type(value)
    if kind in (int, str, bool, type(None)):
        return kind, value
    if kind is tuple or kind is list:
        return kind, tuple([frozen(item) for item in value])
    if kind is slice:
        return kind, frozen(value.start), frozen(value.stop), frozen(value.step)
    if kind is dict:
        return kind, tuple([(key, frozen(item)) for key, item in value.items()])
    if isinstance(value, np.ndarray):
        return kind, value.dtype, value.shape, value.tobytes()
    if kind is float or kind is complex:
        return kind, repr(value)  # tells -0.0 from 0.0, and finds nan again
    hash(value)
    return kind, value
