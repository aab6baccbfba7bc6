"""Dtypes by name (``float32``, callable), questions about dtypes, and questions about shapes.

>>> import cuplace.numpy as jnp
>>> jnp.float32(3), jnp.zeros(1, jnp.int8).dtype == jnp.int8
(Array(3., dtype=float32), True)
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from cuplace.array import dtypes
from cuplace.array.array import Array
from cuplace.array.type import typeof
from cuplace.numpy.conversion import asarray


class ScalarMeta(type):
    """The class of ``float32`` and the other dtype names: equal to NumPy's dtypes and usable in their place."""

    dtype: np.dtype

    def __hash__(cls) -> int:
        return hash(cls.dtype.type)

    def __eq__(cls, other: object) -> bool:
        if isinstance(other, ScalarMeta):
            return cls is other
        try:
            return bool(cls.dtype == np.dtype(other))  # type: ignore[call-overload]
        except TypeError:
            return False

    def __call__(cls, x: Any) -> Array:  # type: ignore[override]
        """An array of this dtype with the value, or values, of ``x``."""
        return asarray(x, dtype=cls.dtype)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.dtype.type)

    def __repr__(cls) -> str:
        return f"<class 'cuplace.numpy.{cls.__name__}'>"


def _scalar(name: str, dtype: Any) -> ScalarMeta:
    members = {"dtype": np.dtype(dtype), "__doc__": f"The dtype {name}; called, it makes arrays of it."}
    return ScalarMeta(name, (), members)


bool_ = _scalar("bool", np.bool_)
int8, int16, int32, int64 = (_scalar(f"int{n}", f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_scalar(f"uint{n}", f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (_scalar(f"float{n}", f"float{n}") for n in (16, 32, 64))
complex64, complex128 = (_scalar(f"complex{n}", f"complex{n}") for n in (64, 128))
bfloat16 = _scalar("bfloat16", ml_dtypes.bfloat16)
float8_e3m4 = _scalar("float8_e3m4", ml_dtypes.float8_e3m4)
float8_e4m3 = _scalar("float8_e4m3", ml_dtypes.float8_e4m3)
float8_e8m0fnu = _scalar("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu)
float8_e4m3b11fnuz = _scalar("float8_e4m3b11fnuz", ml_dtypes.float8_e4m3b11fnuz)
float8_e4m3fn = _scalar("float8_e4m3fn", ml_dtypes.float8_e4m3fn)
float8_e4m3fnuz = _scalar("float8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz)
float8_e5m2 = _scalar("float8_e5m2", ml_dtypes.float8_e5m2)
float8_e5m2fnuz = _scalar("float8_e5m2fnuz", ml_dtypes.float8_e5m2fnuz)
float4_e2m1fn = _scalar("float4_e2m1fn", ml_dtypes.float4_e2m1fn)
int_, uint, float_, complex_ = int64, uint64, float64, complex128

_ABSTRACT = {
    np.generic: "biufc",
    np.number: "iufc",
    np.integer: "iu",
    np.signedinteger: "i",
    np.unsignedinteger: "u",
    np.inexact: "fc",
    np.floating: "f",
    np.complexfloating: "c",
}


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Whether a dtype is another one, or is of a kind (``integer``, ``floating``, ``inexact``, ``number``, ...).

    The floats of ml_dtypes are of the kind ``floating``.

    Example:
        >>> issubdtype(bfloat16, np.floating)
        True
    """
    if arg1 in _ABSTRACT:
        return issubclass(arg1, arg2) if arg2 in _ABSTRACT else False
    first = dtypes.as_dtype(arg1)
    kinds = _ABSTRACT.get(arg2) if isinstance(arg2, type) and not isinstance(arg2, ScalarMeta) else None
    return first == dtypes.as_dtype(arg2) if kinds is None else dtypes.kind(first) in kinds


def finfo(dtype: Any) -> Any:
    """The limits of a floating-point dtype. Raises ValueError for other dtypes."""
    return ml_dtypes.finfo(_dtype_of(dtype))


def iinfo(dtype: Any) -> np.iinfo:
    """The limits of an integer dtype. Raises ValueError for other dtypes."""
    return np.iinfo(_dtype_of(dtype))


def _dtype_of(x: Any) -> np.dtype:
    return dtypes.as_dtype(x)


def promote_types(a: Any, b: Any) -> np.dtype:
    """The dtype to which two dtypes promote; the Python types ``int``, ``float`` and ``complex`` are weak.

    Raises:
        TypePromotionError: a ValueError, for 8-bit floats with other floats.

    Example:
        >>> promote_types("int32", "float16")
        dtype('float16')
    """
    return dtypes.join(_promoting(a), _promoting(b))


def result_type(*args: Any) -> np.dtype:
    """The dtype of a combination of arrays, numbers and dtypes.

    Example:
        >>> result_type("int8", 1.0)
        dtype('float32')
    """
    if not args:
        raise ValueError("at least one array or dtype is required")
    return dtypes.promote([_promoting(x) for x in args])[0]


def _promoting(x: Any) -> tuple[np.dtype, bool]:
    if isinstance(x, type) and x in (int, float, complex):
        return dtypes.default_dtype(x.__name__), True
    if isinstance(x, str | type | np.dtype):
        return dtypes.checked_dtype(dtypes.as_dtype(x)), False
    of = typeof(x)
    return of.dtype, of.weak_type


def shape(a: Any) -> tuple[int, ...]:
    """The size of each dimension; lists count as arrays."""
    return tuple(np.shape(a)) if isinstance(a, list | tuple) else typeof(a).shape


def ndim(a: Any) -> int:
    """The number of dimensions; lists count as arrays."""
    return len(shape(a))


def size(a: Any, axis: int | None = None) -> int:
    """The number of elements, or the size of one dimension; lists count as arrays."""
    sizes = shape(a)
    return int(np.prod(sizes, dtype=np.int64)) if axis is None else sizes[axis]


def iscomplexobj(x: Any) -> bool:
    """Whether an array, or a number, is of a complex dtype."""
    return bool(np.iscomplexobj(x)) if isinstance(x, list | tuple) else dtypes.is_complex(typeof(x).dtype)


def isscalar(element: Any) -> bool:
    """Whether something is a number, or an array without dimensions."""
    if isinstance(element, Array | np.ndarray):
        return element.ndim == 0
    return bool(np.isscalar(element)) and not isinstance(element, str | bytes)
