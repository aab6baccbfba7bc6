"""Operands: what functions may be called with, and the key under which dispatch remembers each kind.

There are three kinds: arrays, whose key they carry with them; host arrays (NumPy's), uploaded at the call; and
numbers, passed by value at the call, never part of a program.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.array import Array
from cuplace.array.key import OperandKey
from cuplace.array.type import ArrayType, typeof
from cuplace.ops.convert import convert
from cuplace.placement.value import Interner
from cuplace.runtime.config import config
from cuplace.staging.program import Literal
from cuplace.staging.tracer import Tracer

PYTHON_NUMBERS = (bool, int, float, complex)


class HostKey:
    """The key of a NumPy array: the type that it has once uploaded. Equal keys are one object."""

    __slots__ = ("__weakref__", "source", "type")

    def __init__(self, type: ArrayType, source: np.dtype) -> None:
        self.type = type
        self.source = source


class ScalarKey:
    """The key of a number: its Python or NumPy type, and the type that it has in a program."""

    __slots__ = ("__weakref__", "kind", "type")

    def __init__(self, kind: type, type: ArrayType) -> None:
        self.kind = kind
        self.type = type


Key = OperandKey | HostKey | ScalarKey

_host_keys: Interner[HostKey] = Interner()


def is_scalar(value: Any) -> bool:
    """Whether a value is a number of Python or NumPy."""
    return isinstance(value, (*PYTHON_NUMBERS, np.generic))


def operand_key(value: Any) -> Key:
    """The key of an operand.

    Raises:
        NotAnArrayError, DtypeError: TypeErrors, for what is no array and no number.
        MaskedArrayError: a ValueError, for NumPy's masked arrays.
        UnexpectedTracerError: a TypeError, for a traced value whose trace is over.
    """
    if type(value) is Array:
        return value._key
    if is_scalar(value):
        return _scalar_key(_number_type(value), config.enable_x64)
    if type(value) is Tracer:
        raise value.leaked()
    if isinstance(value, np.ma.MaskedArray):
        raise errors.MaskedArrayError()
    if isinstance(value, np.ndarray):
        of = typeof(value)
        source = value.dtype
        return _host_keys.get((of, source), lambda: HostKey(of, source))
    raise errors.NotAnArrayError(value)


def quick_key(value: Any) -> Any:
    """What stands for ``operand_key(value)`` in caches: cheap, and at least as fine."""
    kind = type(value)
    if kind is Array:
        return value._key
    return (kind, value.dtype, value.shape) if isinstance(value, np.ndarray) else kind


def _number_type(value: Any) -> type:
    """The type that decides about a number; subclasses (an IntEnum, say) count as what they derive from."""
    kind = type(value)
    if kind in PYTHON_NUMBERS or isinstance(value, np.generic):
        return kind
    return next(base for base in PYTHON_NUMBERS if isinstance(value, base))


@lru_cache(maxsize=256)
def _scalar_key(kind: type, x64: bool) -> ScalarKey:
    return ScalarKey(kind, typeof(kind(0)))


def captured_host_value(value: Any) -> np.ndarray:
    """A NumPy array that a traced function captured, as of now, in a type that arrays can have."""
    if not isinstance(value, np.ndarray):
        raise errors.NotAnArrayError(value)
    copy = np.array(dtypes.narrow(value))
    copy.flags.writeable = False
    return copy


def literal(value: Any, dtype: np.dtype | None = None, weak_type: bool | None = None) -> Literal:
    """The literal of a number, converted to ``dtype`` where one is given.

    Raises:
        IntegerRangeError: an OverflowError, for numbers that the 32-bit types cannot hold.
    """
    own = typeof(value)
    value = scalar_converter(_number_type(value), own.dtype)(value)
    if dtype is not None and dtype != own.dtype:
        value = _cast(value, dtype)
    weak = own.weak_type if weak_type is None else weak_type
    return Literal(value, ArrayType((), own.dtype if dtype is None else dtype, weak))


def scalar_converter(kind: type, dtype: np.dtype) -> Callable[[Any], Any]:
    """What turns numbers of a Python or NumPy type into scalars of ``dtype``, as conversion in a program does.

    The function raises IntegerRangeError, an OverflowError, for integers that do not fit into the program's type.
    """
    make = dtype.type
    if kind is bool or (kind is float and dtype.kind in "fV") or (kind is complex and dtype.kind == "c"):
        return make
    own = dtypes.canonicalize(np.dtype(kind))
    if kind in (int, np.int64, np.uint64) and own.kind in "iu":
        limits = np.iinfo(own)
        low, high = int(limits.min), int(limits.max)

        def checked(value: Any) -> Any:
            if not low <= value <= high:
                typeof(int(value))  # raises, with the text of all numbers that do not fit
                raise errors.IntegerRangeError(f"{value} does not fit into {own.name}")
            return make(value) if dtype == own else _cast(own.type(value), dtype)

        return checked
    return lambda value: _cast(own.type(value), dtype)


def _cast(value: Any, dtype: np.dtype) -> Any:
    with np.errstate(all="ignore"):
        return convert(np, np.asarray(value), dtype)[()]
