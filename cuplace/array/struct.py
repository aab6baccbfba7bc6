"""ShapeDtypeStruct: the type of an array that is not there, as a user writes it down."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from cuplace.array.dtypes import as_dtype
from cuplace.errors import OutShapeError
from cuplace.placement.sharding import Sharding
from cuplace.placement.value import Value


class ShapeDtypeStruct(Value):
    """Shape and dtype of an array and, where it matters, its sharding.

    Raises:
        OutShapeError: a TypeError, for what is no shape, no dtype or no sharding.

    >>> import numpy as np
    >>> ShapeDtypeStruct((2, 3), np.float32)
    ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """

    __slots__ = ("dtype", "shape", "sharding")

    shape: tuple[int, ...]
    dtype: np.dtype
    sharding: Sharding | None

    def __init__(self, shape: Sequence[int], dtype: Any, *, sharding: Sharding | None = None) -> None:
        if dtype is None:
            raise OutShapeError("ShapeDtypeStruct: dtype must be specified.")
        if sharding is not None and not isinstance(sharding, Sharding):
            raise OutShapeError(f"ShapeDtypeStruct: sharding must be a Sharding or None, got {sharding!r}.")
        try:
            sizes = tuple([operator.index(size) for size in shape])
        except TypeError:
            raise OutShapeError(f"ShapeDtypeStruct: shape must be a tuple of integers, got {shape!r}.") from None
        self._set(shape=sizes, dtype=as_dtype(dtype), sharding=sharding)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShapeDtypeStruct):
            return NotImplemented
        return (self.shape, self.dtype, self.sharding) == (other.shape, other.dtype, other.sharding)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.sharding))

    def __repr__(self) -> str:
        where = "" if self.sharding is None else f", sharding={self.sharding}"
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name}{where})"

    def __reduce__(self) -> Any:
        return _restored, (self.shape, self.dtype, self.sharding)


def _restored(shape: tuple[int, ...], dtype: np.dtype, sharding: Sharding | None) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(shape, dtype, sharding=sharding)
