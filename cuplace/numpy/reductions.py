"""Functions that combine elements along axes: sums, means, extremes, their positions, running sums, sorting.

``axis`` is an integer, a tuple of integers, or None for all axes; ``keepdims`` keeps reduced axes with size 1.
A sharded axis may be reduced: each device reduces its part, and the parts are combined. Small types are summed
in larger ones: integers and bools in int32 or uint32, float16 and bfloat16 in float32. All functions raise

- ValueError: an axis is out of range or named twice;
- TypeError: the operand is no array.

    >>> import cuplace.numpy as jnp
    >>> jnp.sum(jnp.arange(6).reshape(2, 3), axis=1)
    Array([ 3, 12], dtype=int32)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.array import Array
from cuplace.numpy.elementwise import isclose
from cuplace.numpy.promotion import cast, number, promote, to_bool
from cuplace.ops import elementwise as elementwise_ops
from cuplace.ops import reductions as ops
from cuplace.ops.manipulation import REVERSE
from cuplace.ops.op import Op
from cuplace.ops.reshape import RESHAPE
from cuplace.ops.shapes import hashable_axis, normalize_axes, normalize_axis
from cuplace.staging.eager import eager
from cuplace.staging.trace import bind, lift
from cuplace.staging.tracer import Tracer

Axis = int | tuple[int, ...] | None


def _no_out(name: str, out: Any) -> None:
    if out is not None:
        raise NotImplementedError(f"The 'out' argument to jnp.{name} is not supported.")


# --- sums and products -------------------------------------------------------------------------------------


def _sum_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of a sum: at least as wide as the default integer type, for integers and bools."""
    if dtype == dtypes.BOOL:
        return dtypes.default_dtype("int")
    wide = dtypes.default_dtype("int")
    if dtype.kind == "i":
        return wide if dtype.itemsize < wide.itemsize else dtype
    if dtype.kind == "u":
        unsigned = np.dtype(f"u{wide.itemsize}")
        return unsigned if dtype.itemsize < unsigned.itemsize else dtype
    return dtype


def _reduce(op: Op, x: Tracer, axis: Axis, keepdims: bool) -> Tracer:
    """Reduce; narrow floats are accumulated in float32."""
    narrow = dtypes.is_float(x.dtype) and x.dtype.itemsize < 4 and op in (ops.REDUCE_SUM, ops.REDUCE_PROD)
    wide = cast(x, np.dtype("float32"), x.weak_type) if narrow else x
    out = bind(op, wide, axes=normalize_axes(axis, x.ndim), keepdims=keepdims)
    return cast(out, x.dtype, x.weak_type)


def _masked(x: Tracer, where: Tracer | None, identity: Any) -> Tracer:
    """The elements that count, with the identity of the reduction in place of the others."""
    if where is None:
        return x
    return bind(elementwise_ops.SELECT, to_bool(where), x, number(identity, x))


def _accumulation(op: Op, join: Op, identity: int, name: str) -> Any:
    @eager(name, static=("axis", "dtype", "keepdims"))
    def accumulate(a: Any, /, axis: Any, dtype: Any, keepdims: bool, initial: Any = None, where: Any = None) -> Any:
        x = cast(a, dtype or _sum_dtype(a.dtype))
        out = _reduce(op, _masked(x, where, identity), axis, keepdims)
        return out if initial is None else bind(join, out, cast(initial, out.dtype))

    return accumulate


_sum = _accumulation(ops.REDUCE_SUM, elementwise_ops.ADD, 0, "sum")
_prod = _accumulation(ops.REDUCE_PROD, elementwise_ops.MUL, 1, "prod")


def sum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Array:
    """The sum over axes, of the elements where ``where`` holds, plus ``initial``.

    Integers and bools are summed in int32 (uint32 where unsigned), unless ``dtype`` says otherwise.

    Example:
        >>> sum(True)
        Array(1, dtype=int32)
    """
    _no_out("sum", out)
    return _sum(a, hashable_axis(axis), dtypes.requested_or_none(dtype, "sum"), bool(keepdims), initial, where)


def prod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Array:
    """The product over axes, of the elements where ``where`` holds, times ``initial``; dtypes as in `sum`."""
    _no_out("prod", out)
    return _prod(a, hashable_axis(axis), dtypes.requested_or_none(dtype, "prod"), bool(keepdims), initial, where)


# --- extremes ----------------------------------------------------------------------------------------------


def _extreme(op: Op, join: Op, name: str) -> Any:
    @eager(name, static=("axis", "keepdims"))
    def extreme(a: Any, /, axis: Any, keepdims: bool, initial: Any = None, where: Any = None) -> Any:
        if where is not None and initial is None:
            raise errors.EmptyReductionError(
                f"reduction operation {name} does not have an identity, so to use a where mask one has to "
                "specify 'initial'"
            )
        if initial is None:
            return _reduce(op, cast(a, a.dtype), axis, keepdims)
        start = cast(initial, a.dtype)
        x = cast(a, a.dtype) if where is None else bind(elementwise_ops.SELECT, to_bool(where), a, start)
        axes = normalize_axes(axis, x.ndim)
        if math.prod(x.shape[i] for i in axes) == 0:
            filled = bind(ops.REDUCE_SUM, x, axes=axes, keepdims=keepdims)
            return bind(elementwise_ops.FULL_LIKE, filled, start)
        return bind(join, _reduce(op, x, axis, keepdims), start)

    return extreme


_max = _extreme(ops.REDUCE_MAX, elementwise_ops.MAX, "max")
_min = _extreme(ops.REDUCE_MIN, elementwise_ops.MIN, "min")


def max(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Array:
    """The largest element along axes, NaN where there is one; ``initial`` counts as one more element.

    Raises:
        EmptyReductionError: a ValueError, of no elements without ``initial``.
    """
    _no_out("max", out)
    return _max(a, hashable_axis(axis), bool(keepdims), initial, where)


def min(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Array:
    """The smallest element along axes, NaN where there is one; ``initial`` counts as one more element.

    Raises:
        EmptyReductionError: a ValueError, of no elements without ``initial``.
    """
    _no_out("min", out)
    return _min(a, hashable_axis(axis), bool(keepdims), initial, where)


amax, amin = max, min


def _position(op: Op, name: str) -> Any:
    @eager(name, static=("axis", "keepdims"))
    def position(a: Any, /, axis: Any, keepdims: bool) -> Any:
        x = bind(RESHAPE, a, shape=(a.size,)) if axis is None and a.ndim != 1 else a
        along = normalize_axis(0 if axis is None else axis, x.ndim)
        found = bind(op, x, axis=along, dtype=dtypes.default_dtype("int"))
        if not keepdims:
            return found
        shape = (1,) * a.ndim if axis is None else (*a.shape[:along], 1, *a.shape[along + 1 :])
        return bind(RESHAPE, found, shape=shape)

    return position


_argmax = _position(ops.ARGMAX, "argmax")
_argmin = _position(ops.ARGMIN, "argmin")


def argmax(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
    """The position of the first largest element along an axis, or in the flattened array; int32."""
    _no_out("argmax", out)
    return _argmax(a, axis, bool(keepdims))


def argmin(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
    """The position of the first smallest element along an axis, or in the flattened array; int32."""
    _no_out("argmin", out)
    return _argmin(a, axis, bool(keepdims))


# --- truths ------------------------------------------------------------------------------------------------


def _quantifier(op: Op, neutral: bool, name: str) -> Any:
    @eager(name, static=("axis", "keepdims"))
    def quantify(a: Any, /, axis: Any, keepdims: bool, where: Any = None) -> Any:
        return _reduce(op, _masked(cast(a, dtypes.BOOL), where, neutral), axis, keepdims)

    return quantify


_any = _quantifier(ops.REDUCE_OR, False, "any")
_all = _quantifier(ops.REDUCE_AND, True, "all")


def any(a: Any, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Array:
    """Whether some element along axes differs from zero."""
    _no_out("any", out)
    return _any(a, hashable_axis(axis), bool(keepdims), where)


def all(a: Any, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Array:
    """Whether all elements along axes differ from zero."""
    _no_out("all", out)
    return _all(a, hashable_axis(axis), bool(keepdims), where)


# --- means and variances -----------------------------------------------------------------------------------


def _computing_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which a mean is computed; narrow floats in float32."""
    inexact = dtypes.to_inexact(dtype)
    return np.dtype("float32") if dtypes.is_float(inexact) and inexact.itemsize < 4 else inexact


def _count(x: Tracer, axis: Axis, keepdims: bool, where: Tracer | None) -> Tracer:
    """How many elements a mean is taken of, in x's dtype."""
    axes = normalize_axes(axis, x.ndim)
    if where is None:
        return number(float(math.prod(x.shape[i] for i in axes)), x)
    ones = bind(elementwise_ops.FULL_LIKE, x, number(1, x))
    return bind(ops.REDUCE_SUM, _masked(ones, where, 0), axes=axes, keepdims=keepdims)


def _average(x: Tracer, axis: Axis, keepdims: bool, where: Tracer | None) -> Tracer:
    total = bind(ops.REDUCE_SUM, _masked(x, where, 0), axes=normalize_axes(axis, x.ndim), keepdims=keepdims)
    return bind(elementwise_ops.DIV, total, _count(x, axis, keepdims, where))


def _whole_average(x: Tracer, axis: Axis, keepdims: bool, where: Tracer | None) -> Tracer:
    """The mean in an integer dtype: a sum that wraps around, and a quotient without its fraction."""
    total = bind(ops.REDUCE_SUM, _masked(x, where, 0), axes=normalize_axes(axis, x.ndim), keepdims=keepdims)
    share = bind(elementwise_ops.FLOOR_DIVIDE, bind(elementwise_ops.ABS, total), _count(x, axis, keepdims, where))
    return bind(elementwise_ops.MUL, bind(elementwise_ops.SIGN, total), share)


@eager("mean", static=("axis", "dtype", "keepdims"))
def _mean(a: Any, /, axis: Any, dtype: Any, keepdims: bool, where: Any = None) -> Any:
    wanted = dtype or dtypes.to_inexact(a.dtype)
    if dtypes.is_integer(wanted):
        return _whole_average(cast(a, wanted), axis, keepdims, where)
    x = cast(a, _computing_dtype(wanted))
    return cast(_average(x, axis, keepdims, where), wanted)


def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None
) -> Array:
    """The mean over axes, in floating point, or in ``dtype``; NaN of no elements.

    Example:
        >>> mean(3)
        Array(3., dtype=float32)
    """
    _no_out("mean", out)
    return _mean(a, hashable_axis(axis), dtypes.requested_or_none(dtype, "mean"), bool(keepdims), where)


def _variance(a: Tracer, axis: Any, dtype: Any, ddof: float, keepdims: bool, where: Tracer | None) -> Tracer:
    computing = _computing_dtype(dtype or a.dtype)
    x = cast(a, computing)
    centred = bind(elementwise_ops.SUB, x, _average(x, axis, True, where))
    if dtypes.is_complex(computing):
        squares = bind(
            elementwise_ops.ADD,
            bind(elementwise_ops.SQUARE, bind(elementwise_ops.REAL, centred)),
            bind(elementwise_ops.SQUARE, bind(elementwise_ops.IMAG, centred)),
        )
    else:
        squares = bind(elementwise_ops.SQUARE, centred)
    total = bind(ops.REDUCE_SUM, _masked(squares, where, 0), axes=normalize_axes(axis, a.ndim), keepdims=keepdims)
    count = bind(elementwise_ops.SUB, _count(squares, axis, keepdims, where), number(ddof, total))
    return bind(elementwise_ops.DIV, total, count)


def _requested_inexact(dtype: Any, name: str) -> np.dtype | None:
    wanted = dtypes.requested_or_none(dtype, name)
    if wanted is not None and not dtypes.is_inexact(wanted):
        raise errors.InexactDtypeError(
            f"dtype argument to jnp.{name} must be inexact; got {wanted.name}\n"
            f"Convert the result instead, with {name}(x).astype({wanted.name!r})."
        )
    return wanted


def _variance_dtype(a: Tracer, dtype: Any) -> np.dtype:
    return dtypes.real_dtype(dtype or dtypes.to_inexact(a.dtype))


@eager("var", static=("axis", "dtype", "ddof", "keepdims"))
def _var(a: Any, /, axis: Any, dtype: Any, ddof: float, keepdims: bool, where: Any = None) -> Any:
    return cast(_variance(a, axis, dtype, ddof, keepdims, where), _variance_dtype(a, dtype))


@eager("std", static=("axis", "dtype", "ddof", "keepdims"))
def _std(a: Any, /, axis: Any, dtype: Any, ddof: float, keepdims: bool, where: Any = None) -> Any:
    spread = bind(elementwise_ops.SQRT, _variance(a, axis, dtype, ddof, keepdims, where))
    return cast(spread, _variance_dtype(a, dtype))


def _spread_options(
    name: str, axis: Any, dtype: Any, ddof: float, correction: float | None, keepdims: Any
) -> tuple[Any, Any, float, bool]:
    """Axis, dtype, ddof and keepdims of `var` and `std`, as their traced bodies take them."""
    ddof = ddof if correction is None else correction
    return hashable_axis(axis), _requested_inexact(dtype, name), ddof, bool(keepdims)


def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    correction: float | None = None,
) -> Array:
    """The variance over axes: squared distances from the mean, summed and divided by their number minus ``ddof``.

    ``correction`` is another name of ``ddof`` (the Array API's). The result is real, also of complex numbers.

    Raises:
        InexactDtypeError: a ValueError, where ``dtype`` is an integer type or bool.
    """
    _no_out("var", out)
    return _var(a, *_spread_options("var", axis, dtype, ddof, correction, keepdims), where)


def std(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    correction: float | None = None,
) -> Array:
    """The standard deviation over axes: the square root of `var`. Raises what `var` raises."""
    _no_out("std", out)
    return _std(a, *_spread_options("std", axis, dtype, ddof, correction, keepdims), where)


# --- along one axis ----------------------------------------------------------------------------------------


def _running(op: Op, name: str) -> Any:
    @eager(name, static=("axis", "dtype"))
    def run(a: Any, /, axis: Any, dtype: Any) -> Any:
        if axis is None:
            _check_flat(a, name)
        x = bind(RESHAPE, a, shape=(a.size,)) if a.ndim == 0 or (axis is None and a.ndim != 1) else a
        along = normalize_axis(0 if axis is None else axis, x.ndim)
        wanted = dtype or (dtypes.default_dtype("int") if a.dtype == dtypes.BOOL else a.dtype)
        computing = _computing_dtype(wanted) if dtypes.is_float(wanted) else wanted
        return cast(bind(op, cast(x, computing), axis=along), wanted)

    return run


def _check_flat(a: Tracer, name: str) -> None:
    """JAX asks for a gathered operand where it is flattened first."""
    if "@" in str(a.type):
        raise errors.ShardingTypeError(
            f"The input should be fully replicated when axis is not specified to {name}. Got input type={a.type}\n"
            "Gather it first, with reshard, or give an axis that is not sharded."
        )


_cumsum = _running(ops.CUMSUM, "cumsum")
_cumprod = _running(ops.CUMPROD, "cumprod")


def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """Running sums along an axis, or of the flattened array, in the operand's dtype (bools in int32).

    Raises:
        ShardingTypeError: a TypeError, where the axis is sharded over Explicit mesh axes.
    """
    _no_out("cumsum", out)
    return _cumsum(a, axis, dtypes.requested_or_none(dtype, "cumsum"))


def cumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """Running products along an axis, or of the flattened array; see `cumsum`."""
    _no_out("cumprod", out)
    return _cumprod(a, axis, dtypes.requested_or_none(dtype, "cumprod"))


@eager("sort", static=("axis", "descending"))
def _sort(a: Any, /, axis: Any, descending: bool) -> Any:
    x = bind(RESHAPE, a, shape=(a.size,)) if axis is None else a
    along = normalize_axis(0 if axis is None else axis, x.ndim)
    out = bind(ops.SORT, x, axis=along)
    return bind(REVERSE, out, axes=(along,)) if descending else out


@eager("argsort", static=("axis", "descending", "dtype"))
def _argsort(a: Any, /, axis: Any, descending: bool, dtype: Any) -> Any:
    x = bind(RESHAPE, a, shape=(a.size,)) if axis is None else a
    along = normalize_axis(0 if axis is None else axis, x.ndim)
    integer = dtypes.default_dtype("int")
    if not descending:
        return cast(bind(ops.ARGSORT, x, axis=along, dtype=integer), dtype or integer)
    # Equal elements keep their order: the reverse is sorted, and its positions counted from the end.
    found = bind(ops.ARGSORT, bind(REVERSE, x, axes=(along,)), axis=along, dtype=integer)
    turned = bind(REVERSE, found, axes=(along,))
    return cast(bind(elementwise_ops.SUB, number(x.shape[along] - 1, turned), turned), dtype or integer)


def sort(
    a: Any, axis: int | None = -1, *, kind: None = None, order: None = None, stable: bool = True,
    descending: bool = False,
) -> Array:  # fmt: skip
    """The elements in ascending, or descending, order along an axis; NaNs count as largest. None flattens first.

    ``stable`` is accepted for the Array API's sake: sorting is always stable.

    Raises:
        ShardingTypeError: a TypeError, where the axis is sharded over Explicit mesh axes.
        NotImplementedError: ``kind`` or ``order`` is given.
    """
    _no_kind("sort", kind, order)
    return _sort(a, axis, bool(descending))


def argsort(
    a: Any, axis: int | None = -1, *, kind: None = None, order: None = None, stable: bool = True,
    descending: bool = False, dtype: Any = None,
) -> Array:  # fmt: skip
    """The positions that sort the elements along an axis; int32, or ``dtype``. See `sort`.

    Example:
        >>> import cuplace.numpy as jnp
        >>> argsort(jnp.array([2, 3, 2]), descending=True)
        Array([1, 0, 2], dtype=int32)
    """
    _no_kind("argsort", kind, order)
    return _argsort(a, axis, bool(descending), dtypes.requested_or_none(dtype, "argsort"))


def _no_kind(name: str, kind: None, order: None) -> None:
    if kind is not None or order is not None:
        raise NotImplementedError(f"jnp.{name} takes neither 'kind' nor 'order': sorting is always stable.")


@eager("allclose", static=("rtol", "atol", "equal_nan"))
def allclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """Whether all elements are close, as `isclose` says; a bool array without dimensions."""
    near = isclose(a, b, rtol, atol, equal_nan)
    return _reduce(ops.REDUCE_AND, near, None, False)


@eager("array_equal", static=("equal_nan",))
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Whether two arrays have one shape and equal elements (NaNs, if asked); a bool array without dimensions."""
    if a1.shape != a2.shape:
        return lift(False)
    same = bind(elementwise_ops.EQ, *promote(a1, a2))
    if equal_nan and dtypes.is_inexact(a1.dtype) and dtypes.is_inexact(a2.dtype):
        both = bind(elementwise_ops.AND, bind(elementwise_ops.IS_NAN, a1), bind(elementwise_ops.IS_NAN, a2))
        same = bind(elementwise_ops.OR, same, both)
    return _reduce(ops.REDUCE_AND, cast(same, same.dtype), None, False)
