"""The number types of arrays: which there are, what they promote to, and what 32-bit mode narrows.

The promotion lattice is JAX's (described in JEP 9407). Python scalars are *weak*: they stand at the foot of
their kind (``int``, ``float``, ``complex``) and take the width of what they are combined with.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from cuplace import errors
from cuplace.runtime.caller import caller, warn_caller
from cuplace.runtime.config import config

BOOL = np.dtype(bool)
SMALL_FLOATS = tuple(
    np.dtype(getattr(ml_dtypes, name))
    for name in (
        "float8_e3m4",
        "float8_e4m3",
        "float8_e8m0fnu",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float4_e2m1fn",
    )
)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
EXTENSION_FLOATS = frozenset({BFLOAT16, *SMALL_FLOATS})

_NARROW = {
    np.dtype("int64"): np.dtype("int32"),
    np.dtype("uint64"): np.dtype("uint32"),
    np.dtype("float64"): np.dtype("float32"),
    np.dtype("complex128"): np.dtype("complex64"),
}
_PYTHON_KINDS = {bool: BOOL, int: np.dtype("int64"), float: np.dtype("float64"), complex: np.dtype("complex128")}

Node = np.dtype | str
WEAK = {"i": "int", "u": "int", "f": "float", "c": "complex"}
_DEFAULTS = {"int": np.dtype("int64"), "float": np.dtype("float64"), "complex": np.dtype("complex128")}


def _edges() -> dict[Node, tuple[Node, ...]]:
    """For each node of the lattice the nodes right above it; weak kinds are the strings."""
    d = np.dtype
    return {
        BOOL: ("int",),
        "int": (d("uint8"), d("int8")),
        d("uint8"): (d("int16"), d("uint16")),
        d("int8"): (d("int16"),),
        d("uint16"): (d("int32"), d("uint32")),
        d("int16"): (d("int32"),),
        d("uint32"): (d("int64"), d("uint64")),
        d("int32"): (d("int64"),),
        d("uint64"): ("float",),
        d("int64"): ("float",),
        "float": (*SMALL_FLOATS, BFLOAT16, d("float16"), "complex"),
        BFLOAT16: (d("float32"),),
        d("float16"): (d("float32"),),
        d("float32"): (d("float64"), d("complex64")),
        d("float64"): (d("complex128"),),
        "complex": (d("complex64"),),
        d("complex64"): (d("complex128"),),
        d("complex128"): (),
        **dict.fromkeys(SMALL_FLOATS, ()),
    }


@functools.cache
def _above() -> dict[Node, frozenset[Node]]:
    """For each node all nodes at or above it."""
    edges = _edges()
    found: dict[Node, frozenset[Node]] = {}

    def visit(node: Node) -> frozenset[Node]:
        if node not in found:
            found[node] = frozenset({node}).union(*(visit(up) for up in edges[node]))
        return found[node]

    for node in edges:
        visit(node)
    return found


@functools.lru_cache(maxsize=4096)
def _least_upper_bound(nodes: frozenset[Node]) -> Node:
    above = _above()
    common = frozenset.intersection(*(above[node] for node in nodes))
    for node in common:
        if above[node] == common:
            return node
    names = tuple(sorted(str(node) for node in nodes))
    raise errors.TypePromotionError(
        f"Input dtypes {names} have no available implicit dtype promotion path. To avoid unintended promotion, "
        "8-bit floats do not support implicit promotion. If you'd like your inputs to be promoted to another "
        "type, you can do so explicitly using e.g. x.astype('float32')"
    )


# --- which types there are ---------------------------------------------------------------------------------


def is_float(dtype: np.dtype) -> bool:
    """Whether a dtype is a real floating-point type, those of ml_dtypes included."""
    return dtype.kind == "f" or dtype in EXTENSION_FLOATS


def is_complex(dtype: np.dtype) -> bool:
    """Whether a dtype is a complex type."""
    return dtype.kind == "c"


def is_inexact(dtype: np.dtype) -> bool:
    """Whether a dtype is a real or complex floating-point type."""
    return is_float(dtype) or dtype.kind == "c"


def is_integer(dtype: np.dtype) -> bool:
    """Whether a dtype is a signed or unsigned integer type (bool is none)."""
    return dtype.kind in "iu"


def kind(dtype: np.dtype) -> str:
    """NumPy's letter of a dtype (``b i u f c``), with ``f`` for the floats of ml_dtypes, too."""
    return "f" if dtype in EXTENSION_FLOATS else dtype.kind


def is_supported(dtype: np.dtype) -> bool:
    """Whether arrays of a dtype can be held (64-bit types included, which 32-bit mode narrows)."""
    return dtype in _above()


def checked_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype itself.

    Raises:
        DtypeError: a TypeError, for objects, strings, dates and foreign byte orders.
    """
    if not is_supported(dtype) or not dtype.isnative:
        shown = dtype.name if dtype.isnative else dtype.str
        raise errors.DtypeError(
            f"Dtype {shown} is not a valid JAX array type. Only arrays of numeric types are supported by JAX.\n"
            "Convert the array first, for example with x.astype('float32')."
        )
    return dtype


def short_name(dtype: np.dtype) -> str:
    """The name in short form.

    >>> short_name(np.dtype("float32")), short_name(BFLOAT16), short_name(np.dtype("uint8"))
    ('f32', 'bf16', 'u8')
    """
    name = dtype.name
    for long, short in (("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        name = name.replace(long, short)
    return name


# --- 32-bit mode -------------------------------------------------------------------------------------------


def canonicalize(dtype: Any) -> np.dtype:
    """The dtype that arrays of this dtype have: with ``enable_x64`` off, 64-bit types become 32-bit ones.

    >>> canonicalize(np.int64)
    dtype('int32')
    """
    dtype = np.dtype(dtype)
    return dtype if config.enable_x64 else _NARROW.get(dtype, dtype)


def default_dtype(weak: str) -> np.dtype:
    """The dtype of a weak kind ('int', 'float', 'complex') that nothing widened or narrowed."""
    return canonicalize(_DEFAULTS[weak])


def requested(dtype: Any, where: str) -> np.dtype:
    """The dtype that a user asked for with ``dtype=``, as arrays can have it.

    Raises:
        DtypeError: a TypeError, where arrays cannot have it.
        TypeError: NumPy's own, for something that names no dtype.

    Warns:
        UserWarning: JAX's, where a 64-bit type is asked for by name while they are off.
    """
    if isinstance(dtype, type) and dtype in _PYTHON_KINDS:
        return canonicalize(_PYTHON_KINDS[dtype])
    asked = as_dtype(dtype)
    if not is_supported(asked):
        raise errors.DtypeError(f"JAX only supports number, bool, and string dtypes, got dtype {dtype} in {where}")
    given = canonicalize(checked_dtype(asked))
    if given != asked:
        warn_caller(
            f"Explicitly requested dtype {asked.name} requested in {where} is not available, and will be "
            f"truncated to dtype {given.name}. To enable more dtypes, set the jax_enable_x64 configuration "
            "option or the JAX_ENABLE_X64 shell environment variable.\n"
            "In cuplace: config.update('enable_x64', True), or CUPLACE_ENABLE_X64=1.",
            UserWarning,
        )
    return given


def requested_or_none(dtype: Any, where: str) -> np.dtype | None:
    """What `requested` gives; None where the user asked for nothing."""
    return None if dtype is None else requested(dtype, where)


def as_dtype(dtype: Any) -> np.dtype:
    """A NumPy dtype from whatever names one: a dtype, its name, a scalar type of NumPy, or of cuplace.numpy."""
    own = getattr(dtype, "dtype", None)
    return np.dtype(own if isinstance(own, np.dtype) else dtype)


_warned: set[tuple[str, int, int]] = set()


def narrow(array: np.ndarray) -> np.ndarray:
    """A NumPy array as arrays can hold it, of `held_dtype`. Raises and warns as that does."""
    dtype = held_dtype(array)
    return array if dtype == array.dtype else array.astype(dtype)


def held_dtype(array: np.ndarray) -> np.dtype:
    """The dtype that arrays hold a NumPy array's values in: with ``enable_x64`` off, 64-bit types are narrowed.

    Raises:
        DtypeError: a TypeError, for a dtype that arrays cannot have.
        IntegerRangeError: an OverflowError, where an integer does not fit.

    Warns:
        NarrowingWarning: once for each line of the caller that passes 64-bit values.
    """
    dtype = checked_dtype(array.dtype)
    target = canonicalize(dtype)
    if target != dtype:
        if dtype.kind in "iu" and array.size:
            _check_range(array, target)
        _warn_narrowing(dtype, target, "NumPy values")
    return target


def narrowed(dtype: np.dtype) -> np.dtype:
    """The dtype that values on a GPU are cast to before arrays hold them. Warns as `held_dtype` does."""
    target = canonicalize(dtype)
    if target != dtype:
        _warn_narrowing(dtype, target, "Values")
    return target


def _check_range(array: np.ndarray, target: np.dtype) -> None:
    limits = np.iinfo(target)
    low, high = int(array.min()), int(array.max())
    if low < limits.min or high > limits.max:
        worst = low if low < limits.min else high
        raise errors.IntegerRangeError(
            f"NumPy {array.dtype.name} value {worst} does not fit into {target.name}, to which it is narrowed.\n"
            "Turn 64-bit types on with config.update('enable_x64', True), or convert the array yourself "
            f"with x.astype('{target.name}')."
        )


def _warn_narrowing(dtype: np.dtype, target: np.dtype, what: str) -> None:
    line = caller()
    site = ("", 0, 0) if line is None else (line.code.co_filename, line.code.co_firstlineno, line.instruction)
    if site in _warned:
        return
    _warned.add(site)
    warn_caller(
        f"{what} of dtype {dtype.name} are narrowed to {target.name}, since 64-bit types are off. Turn them "
        f"on with config.update('enable_x64', True), or pass {target.name} values. (Told once for this line.)",
        errors.NarrowingWarning,
    )


# --- promotion ---------------------------------------------------------------------------------------------


def scalar_type(value: Any) -> tuple[np.dtype, bool]:
    """The dtype of a Python scalar, and whether it is weak (all are but ``bool``).

    Raises:
        IntegerRangeError: an OverflowError, for an int that the default integer type cannot hold.
    """
    if isinstance(value, bool):
        return BOOL, False
    if isinstance(value, int):
        dtype = default_dtype("int")
        limits = np.iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise errors.IntegerRangeError(
                f"Python int {value} too large to convert to {dtype.name}"
                + ("" if config.enable_x64 else "\nTurn 64-bit types on with config.update('enable_x64', True).")
            )
        return dtype, True
    return default_dtype("float" if isinstance(value, float) else "complex"), True


def promote(types: Iterable[tuple[np.dtype, bool]]) -> tuple[np.dtype, bool]:
    """The dtype and weakness of the combination of values of these dtypes and weaknesses.

    >>> promote([(np.dtype("int8"), False), (np.dtype("int32"), True)])
    (dtype('int8'), False)

    Raises:
        TypePromotionError: a ValueError, for 8-bit floats with other floats.
    """
    return _promote(tuple(types), config.enable_x64)


@functools.lru_cache(maxsize=4096)
def _promote(types: tuple[tuple[np.dtype, bool], ...], wide: bool) -> tuple[np.dtype, bool]:
    types = tuple([(canonicalize(dtype), weak) for dtype, weak in types])
    all_weak = all(weak for _, weak in types)
    dtypes = {dtype for dtype, _ in types}
    if len(dtypes) == 1:
        return dtypes.pop(), all_weak
    nodes: frozenset[Node] = frozenset(
        WEAK.get(kind(dtype), dtype) if weak and not all_weak else dtype for dtype, weak in types
    )
    bound = _least_upper_bound(nodes)
    if isinstance(bound, str):
        return default_dtype(bound), True
    return canonicalize(bound), all_weak and bound != BOOL


def join(a: tuple[np.dtype, bool], b: tuple[np.dtype, bool]) -> np.dtype:
    """The dtype to which two dtypes promote, each with its weakness, in JAX's ``promote_types``.

    64-bit types that are named, and the weak kinds, keep 64 bits even where arrays cannot have them.
    """
    if a == b and not a[1]:
        return a[0]
    bound = _least_upper_bound(frozenset(WEAK.get(kind(dtype), dtype) if weak else dtype for dtype, weak in (a, b)))
    if isinstance(bound, str):
        return _DEFAULTS[bound]
    named_wide = any(not weak and canonicalize(dtype) != dtype for dtype, weak in (a, b))
    return bound if named_wide else canonicalize(bound)


def to_inexact(dtype: np.dtype) -> np.dtype:
    """The dtype in which functions like ``sin`` compute: floats and complex numbers as they are, else float32."""
    return dtype if is_inexact(dtype) else default_dtype("float")


def real_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of the real part: float32 for complex64, and so on; other dtypes as they are."""
    return np.dtype({8: "float32", 16: "float64"}[dtype.itemsize]) if dtype.kind == "c" else dtype
