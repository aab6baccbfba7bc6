"""Operations that combine the elements along some axes: sums and the like, positions of extremes, running sums."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from cuplace import errors
from cuplace.array.type import ArrayType
from cuplace.ops.factors import Factors, Kind, Problem, Rule
from cuplace.ops.op import Op, OutType, Params

# --- reductions to one value -------------------------------------------------------------------------------


def _reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple([1 if i in axes else size for i, size in enumerate(shape)])
    return tuple([size for i, size in enumerate(shape) if i not in axes])


def _reduce_infer(has_identity: bool, name: str, types: tuple[ArrayType, ...], params: Params) -> OutType:
    (x,) = types
    if not has_identity and any(x.shape[axis] == 0 for axis in params["axes"]):
        raise errors.EmptyReductionError(f"zero-size array to reduction operation {name} which has no identity")
    return OutType(_reduced_shape(x.shape, params["axes"], params["keepdims"]), x.dtype, x.weak_type)


def _reduce_factors(combine: str, kind: Kind, types: tuple[ArrayType, ...], params: Params) -> Factors:
    axes, ndim = params["axes"], types[0].ndim
    if params["keepdims"]:
        out = tuple([None if i in axes else i for i in range(ndim)])
    else:
        out = tuple([i for i in range(ndim) if i not in axes])
    return Factors((tuple(range(ndim)),), out, dict.fromkeys(axes, kind), combine)


def _reduce(function: str, xp: Any, x: Any, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    return getattr(xp, function)(x, axis=axes, keepdims=keepdims)


def _accumulate(function: str, xp: Any, x: Any, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    return getattr(xp, function)(x, axis=axes, keepdims=keepdims, dtype=x.dtype)


def _reduce_into(
    function: str, typed: bool, xp: Any, out: Any, x: Any, *, axes: tuple[int, ...], keepdims: bool
) -> None:
    options = {"dtype": x.dtype} if typed else {}
    getattr(xp, function)(x, axis=axes, keepdims=keepdims, out=out, **options)


def _reduction(name: str, function: str, *, identity: bool = True, typed: bool = False) -> Op:
    """A record of a reduction. ``typed``: the function of the array module needs to be told the result's dtype."""
    short = name.removeprefix("reduce_")
    return Op(
        name=name,
        infer=functools.partial(_reduce_infer, identity, short),
        rule=Rule(functools.partial(_reduce_factors, short, Kind.REDUCE)),
        compute=functools.partial(_accumulate if typed else _reduce, function),
        into=functools.partial(_reduce_into, function, typed),
    )


REDUCE_SUM = _reduction("reduce_sum", "sum", typed=True)
REDUCE_PROD = _reduction("reduce_prod", "prod", typed=True)
REDUCE_MAX = _reduction("reduce_max", "max", identity=False)
REDUCE_MIN = _reduction("reduce_min", "min", identity=False)
REDUCE_AND = _reduction("reduce_and", "all")
REDUCE_OR = _reduction("reduce_or", "any")
"""Params of all: ``axes`` (a tuple, counted from the front) and ``keepdims``. The result has the operand's dtype;
REDUCE_AND and REDUCE_OR take bool arrays."""

COMBINERS: dict[str, Op] = {
    "sum": REDUCE_SUM,
    "prod": REDUCE_PROD,
    "max": REDUCE_MAX,
    "min": REDUCE_MIN,
    "and": REDUCE_AND,
    "or": REDUCE_OR,
}
"""How partial results are combined: the record that reduces them along a new leading axis, with
``axes=(0,), keepdims=False``."""


# --- positions of extremes ---------------------------------------------------------------------------------


def _position_infer(name: str, types: tuple[ArrayType, ...], params: Params) -> OutType:
    (x,) = types
    if x.shape[params["axis"]] == 0:
        raise errors.EmptyReductionError(f"attempt to get {name} of an empty sequence")
    return OutType(_reduced_shape(x.shape, (params["axis"],), False), params["dtype"])


def _position_factors(types: tuple[ArrayType, ...], params: Params) -> Factors:
    # The position of an extreme cannot be combined from positions alone, so the axis is gathered.
    return _reduce_factors("", Kind.GATHER, types, {"axes": (params["axis"],), "keepdims": False})


def _position(function: str, xp: Any, x: Any, *, axis: int, dtype: np.dtype) -> Any:
    return getattr(xp, function)(x, axis=axis).astype(dtype)


def _position_op(name: str) -> Op:
    return Op(
        name=name,
        infer=functools.partial(_position_infer, name),
        rule=Rule(_position_factors),
        compute=functools.partial(_position, name),
    )


ARGMAX = _position_op("argmax")
ARGMIN = _position_op("argmin")
"""Params: ``axis`` and ``dtype`` (of the positions). The first of equal extremes, or of NaNs, counts."""


# --- operations along one axis that keep it ----------------------------------------------------------------


def _along_infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    return OutType(types[0].shape, types[0].dtype, types[0].weak_type)


def _along_factors(types: tuple[ArrayType, ...], params: Params) -> Factors:
    labels = tuple(range(types[0].ndim))
    return Factors((labels,), labels, {params["axis"]: Kind.WHOLE})


def _running_text(problem: Problem) -> str:
    kind = problem.types[problem.operand]
    return (
        f"Input should be unsharded over the axis being reduced. Got input type={kind} and axis={problem.dim}\n"
        "Gather the axis first, with reshard."
    )


def _sorting_text(problem: Problem) -> str:
    sharding = f"NamedSharding(mesh={problem.types[0].mesh}, spec={problem.specs[0]})"
    return (
        f"Arguments to sort must be unsharded over the sorting dimension. Got arg sharding={sharding} "
        f"and sorting dimension={problem.dim}\nGather the dimension first, with reshard."
    )


def _running(function: str, xp: Any, x: Any, *, axis: int) -> Any:
    return getattr(xp, function)(x, axis=axis, dtype=x.dtype)


def _running_op(name: str) -> Op:
    return Op(
        name=name,
        infer=_along_infer,
        rule=Rule(_along_factors, whole=_running_text),
        compute=functools.partial(_running, name),
    )


CUMSUM = _running_op("cumsum")
CUMPROD = _running_op("cumprod")
"""Params: ``axis``. The result has the operand's dtype."""


def _sort(xp: Any, x: Any, *, axis: int) -> Any:
    return xp.sort(x, axis=axis)


def _argsort(xp: Any, x: Any, *, axis: int, dtype: np.dtype) -> Any:
    return xp.argsort(x, axis=axis, kind="stable").astype(dtype)


def _argsort_infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    return OutType(types[0].shape, params["dtype"])


SORT = Op("sort", _along_infer, Rule(_along_factors, whole=_sorting_text), _sort)
ARGSORT = Op("argsort", _argsort_infer, Rule(_along_factors, whole=_sorting_text), _argsort)
"""Params: ``axis`` and, for ARGSORT, ``dtype`` of the positions. Sorting is stable, NaNs come last."""
