"""OperandKey: all that dispatch asks of an array, as one object that is compared by identity."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuplace.array.type import DEFAULT_MEMORY, ArrayType
from cuplace.placement.sharding import NamedSharding, Sharding
from cuplace.placement.value import Interner


class OperandKey:
    """Type, sharding and commitment of an array. Equal keys are one object, so caches find them by identity.

    Attributes:
        type: shape, dtype, weak type and the spec that programs are traced on.
        sharding: where the data is.
        committed: whether the array is attached to that place.
    """

    __slots__ = ("__weakref__", "committed", "sharding", "type")

    type: ArrayType
    sharding: Sharding
    committed: bool

    def __repr__(self) -> str:
        return f"OperandKey({self.type}, {self.sharding}, committed={self.committed})"


def operand_key(type: ArrayType, sharding: Sharding, committed: bool) -> OperandKey:
    """The key of this type, sharding and commitment."""
    return _keys.get((type, sharding, committed), lambda: _make(type, sharding, committed))


def key_of(
    shape: tuple[int, ...], dtype: np.dtype[Any], weak_type: bool, sharding: Sharding, committed: bool
) -> OperandKey:
    """The key of an array of this shape and dtype under `sharding`; its type follows from them.

    Raises:
        RankError: the sharding's spec is longer than the shape.
    """
    return operand_key(type_under(shape, dtype, weak_type, sharding), sharding, committed)


def type_under(shape: tuple[int, ...], dtype: np.dtype[Any], weak_type: bool, sharding: Sharding) -> ArrayType:
    """The type of an array placed by `sharding`.

    Raises:
        RankError: the sharding's spec is longer than the shape.
    """
    kind = sharding.memory_kind or DEFAULT_MEMORY
    if isinstance(sharding, NamedSharding):
        return ArrayType(shape, dtype, weak_type, sharding.spec, sharding.mesh.abstract_mesh, kind)
    return ArrayType(shape, dtype, weak_type, None, None, kind)


_keys: Interner[OperandKey] = Interner()


def _make(type: ArrayType, sharding: Sharding, committed: bool) -> OperandKey:
    key = object.__new__(OperandKey)
    key.type = type
    key.sharding = sharding
    key.committed = committed
    return key
