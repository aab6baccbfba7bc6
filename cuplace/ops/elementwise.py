"""Operations that compute each element from the elements at the same place of the operands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.type import ArrayType
from cuplace.ops.factors import Factors, Labels, Problem, Rule
from cuplace.ops.op import Cost, Op, OutType, Params, elementwise_cost
from cuplace.ops.shapes import broadcast_shapes, broadcast_value

_KIND_NAMES = {"b": "bool", "i": "integer", "f": "floating", "c": "complexfloating"}
NUMBERS = "ifc"
ANY = "bifc"

DtypeRule = Callable[[np.dtype], np.dtype]


def aligned_labels(shape: tuple[int, ...], out_shape: tuple[int, ...]) -> Labels:
    """The labels of an operand that is broadcast to ``out_shape``: the result's dimensions, aligned right.

    Dimensions of size 1 that are stretched take no part.
    """
    offset = len(out_shape) - len(shape)
    return tuple([offset + i if size == out_shape[offset + i] else None for i, size in enumerate(shape)])


def _factors(types: tuple[ArrayType, ...], params: Params) -> Factors:
    out_shape = broadcast_shapes("", [t.shape for t in types])
    return Factors(tuple(aligned_labels(t.shape, out_shape) for t in types), tuple(range(len(out_shape))))


def elementwise_rule(**texts: Any) -> Rule:
    """The rule of operations whose operands' specs merge, dimension by dimension."""
    return Rule(_factors, **texts)


def _infer(name: str, accepts: str, out_dtype: DtypeRule, types: tuple[ArrayType, ...], params: Params) -> OutType:
    for position, t in enumerate(types):
        _check_dtype(name, accepts, t.dtype, position if len(types) > 1 else None)
    shape = broadcast_shapes(name, [t.shape for t in types])
    return OutType(shape, out_dtype(types[0].dtype), all(t.weak_type for t in types))


def _check_dtype(name: str, accepts: str, dtype: np.dtype, position: int | None) -> None:
    if dtypes.kind(dtype).replace("u", "i") in accepts:
        return
    kinds = ", ".join(_KIND_NAMES[kind] for kind in "ifcb" if kind in accepts)
    place = "" if position is None else f" at position {position}"
    raise errors.ArgumentTypeError(
        f"{name} does not accept dtype {dtype.name}{place}. Accepted dtypes{place} are subtypes of {kinds}.\n"
        "Convert the operand first, with x.astype(dtype)."
    )


def _call_ufunc(ufunc: str | None, xp: Any, *arrays: Any) -> Any:
    return getattr(xp, str(ufunc))(*arrays)


def _weighted_cost(weight: float, types: tuple[ArrayType, ...], out: OutType, params: Params) -> Cost:
    cost = elementwise_cost(types, out, params)
    return Cost(cost.flops * weight, cost.bytes)


def _same(dtype: np.dtype) -> np.dtype:
    return dtype


def _to_bool(dtype: np.dtype) -> np.dtype:
    return dtypes.BOOL


def elementwise(
    name: str,
    ufunc: str | None,
    accepts: str = ANY,
    *,
    out_dtype: DtypeRule = _same,
    compute: Callable[..., Any] | None = None,
    weight: float = 1.0,
) -> Op:
    """A record of an elementwise operation.

    Args:
        name: JAX's name, for error texts.
        ufunc: the function of the array module that computes it, or None where ``compute`` is given.
        accepts: the kinds of dtypes it takes: b(ool) i(nteger) f(loat) c(omplex).
        out_dtype: the result's dtype, of the operands'.
        compute: ``compute(xp, *arrays)``, where no ufunc does.
        weight: floating-point operations an element.
    """
    return Op(
        name=name,
        infer=functools.partial(_infer, name, accepts, out_dtype),
        rule=elementwise_rule(),
        compute=compute or functools.partial(_call_ufunc, ufunc),
        ufunc=ufunc,
        elementwise=True,
        cost=functools.partial(_weighted_cost, weight),
    )


def _floor_divide(xp: Any, x: Any, y: Any) -> Any:
    """Like NumPy's, except that integers divided by zero give what they give in JAX: a quotient with all bits
    set, floored where a remainder is left."""
    out = xp.floor_divide(x, y)
    if x.dtype.kind == "u":
        return xp.where(y == 0, x.dtype.type(np.iinfo(x.dtype).max), out)
    if x.dtype.kind == "i":
        return xp.where(y == 0, xp.where(x == 0, x.dtype.type(-1), x.dtype.type(-2)), out)
    return out


def _integer_power(xp: Any, x: Any, y: Any) -> Any:
    """Wraps around as the dtype does. A negative exponent, which has no integer result, counts as 0."""
    return xp.power(x, y if y.dtype.kind == "u" else xp.maximum(y, y.dtype.type(0)))


def _part(part: str, xp: Any, x: Any) -> Any:
    return getattr(x, part)


ADD = elementwise("add", "add")
SUB = elementwise("sub", "subtract", NUMBERS)
MUL = elementwise("mul", "multiply")
DIV = elementwise("div", "divide", "fc")
FLOOR_DIVIDE = elementwise("floor_divide", None, "if", compute=_floor_divide, weight=2.0)
REM = elementwise("rem", "remainder", "if", weight=2.0)
POW = elementwise("pow", "power", "fc", weight=20.0)
INTEGER_POW = elementwise("integer_pow", None, "i", compute=_integer_power, weight=10.0)
ATAN2 = elementwise("atan2", "arctan2", "f", weight=20.0)
MAX = elementwise("max", "maximum")
MIN = elementwise("min", "minimum")

AND = elementwise("and", "bitwise_and", "bi")
OR = elementwise("or", "bitwise_or", "bi")
XOR = elementwise("xor", "bitwise_xor", "bi")
NOT = elementwise("not", "invert", "bi")
SHIFT_LEFT = elementwise("shift_left", "left_shift", "i")
SHIFT_RIGHT = elementwise("shift_right_arithmetic", "right_shift", "i")

EQ = elementwise("eq", "equal", out_dtype=_to_bool)
NE = elementwise("ne", "not_equal", out_dtype=_to_bool)
LT = elementwise("lt", "less", out_dtype=_to_bool)
LE = elementwise("le", "less_equal", out_dtype=_to_bool)
GT = elementwise("gt", "greater", out_dtype=_to_bool)
GE = elementwise("ge", "greater_equal", out_dtype=_to_bool)
IS_NAN = elementwise("is_nan", "isnan", "fc", out_dtype=_to_bool)
IS_INF = elementwise("is_inf", "isinf", "fc", out_dtype=_to_bool)
IS_FINITE = elementwise("is_finite", "isfinite", "fc", out_dtype=_to_bool)

NEG = elementwise("neg", "negative", NUMBERS)
ABS = elementwise("abs", "absolute", NUMBERS, out_dtype=dtypes.real_dtype)
SIGN = elementwise("sign", "sign", NUMBERS)
FLOOR = elementwise("floor", "floor", "f")
CEIL = elementwise("ceil", "ceil", "f")
ROUND = elementwise("round", "rint", "fc")
TRUNC = elementwise("trunc", "trunc", "f")
SQUARE = elementwise("square", "square", NUMBERS)
SQRT = elementwise("sqrt", "sqrt", "fc", weight=4.0)
RECIPROCAL = elementwise("reciprocal", "reciprocal", "fc")
EXP = elementwise("exp", "exp", "fc", weight=10.0)
EXP2 = elementwise("exp2", "exp2", "f", weight=10.0)
EXPM1 = elementwise("expm1", "expm1", "fc", weight=10.0)
LOG = elementwise("log", "log", "fc", weight=10.0)
LOG1P = elementwise("log1p", "log1p", "fc", weight=10.0)
LOG2 = elementwise("log2", "log2", "fc", weight=10.0)
LOG10 = elementwise("log10", "log10", "fc", weight=10.0)
SIN = elementwise("sin", "sin", "fc", weight=15.0)
COS = elementwise("cos", "cos", "fc", weight=15.0)
TAN = elementwise("tan", "tan", "fc", weight=20.0)
ASIN = elementwise("asin", "arcsin", "fc", weight=20.0)
ACOS = elementwise("acos", "arccos", "fc", weight=20.0)
ATAN = elementwise("atan", "arctan", "fc", weight=20.0)
SINH = elementwise("sinh", "sinh", "fc", weight=20.0)
COSH = elementwise("cosh", "cosh", "fc", weight=20.0)
TANH = elementwise("tanh", "tanh", "fc", weight=20.0)
CONJ = elementwise("conj", "conjugate", "c")
REAL = elementwise("real", None, "c", out_dtype=dtypes.real_dtype, compute=functools.partial(_part, "real"))
IMAG = elementwise("imag", None, "c", out_dtype=dtypes.real_dtype, compute=functools.partial(_part, "imag"))


# --- copies and constants of an array's shape --------------------------------------------------------------


def _copy(xp: Any, x: Any) -> Any:
    return x


def _full_like_infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    like, value = types
    if broadcast_shapes("full_like", [like.shape, value.shape]) != like.shape:
        raise errors.BroadcastError(
            f"Incompatible types for broadcasting: input type={value} and requested type={like.short()}"
        )
    return OutType(like.shape, value.dtype, value.weak_type)


def _full_like(xp: Any, like: Any, value: Any) -> Any:
    return broadcast_value(xp, value, like.shape)


COPY = elementwise("copy", None, compute=_copy)
FULL_LIKE = Op("full_like", _full_like_infer, elementwise_rule(), _full_like, elementwise=True)
"""Operands: an array, of which only shape and placement count, and a value that is broadcast to them."""


# --- select ------------------------------------------------------------------------------------------------


def _select_infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    _, on_true, on_false = types
    shape = broadcast_shapes("select", [t.shape for t in types])
    return OutType(shape, on_true.dtype, on_true.weak_type and on_false.weak_type)


def _select(xp: Any, which: Any, on_true: Any, on_false: Any) -> Any:
    return xp.where(which, on_true, on_false)


def _select_text(problem: Problem) -> str:
    shown = [f"NamedSharding(mesh={t.mesh}, spec={spec})" for t, spec in zip(problem.types, problem.specs, strict=True)]
    which, on_true, on_false = shown
    _, spec_true, spec_false = problem.specs
    if spec_true != spec_false and problem.types[1].mesh is not None and problem.types[2].mesh is not None:
        return (
            f"select cases must have the same shardings, got [{on_false}, {on_true}].\n"
            "Lay them out alike first: y = reshard(y, x.sharding)"
        )
    case = on_true if problem.types[1].mesh is not None else on_false
    return (
        "select `which` must be scalar or have the same sharding as cases, got `which` sharding "
        f"{which} but case sharding {case}.\nLay it out as the cases are first: which = reshard(which, x.sharding)"
    )


SELECT = Op(
    name="select",
    infer=_select_infer,
    rule=Rule(_factors, same=True, conflict=_select_text),
    compute=_select,
    elementwise=True,
)
"""``where(which, on_true, on_false)``; operands: a bool array and two of one dtype."""

SPREAD_SELECT = Op("select_n", _select_infer, elementwise_rule(), _select, elementwise=True)
"""Like SELECT, for operands that are broadcast against each other, which lays them out alike: their specs merge."""
