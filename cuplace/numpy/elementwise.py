"""Functions of each element: arithmetic, comparisons, logic, bits, and the functions of mathematics.

Arrays, NumPy arrays and numbers are accepted and broadcast against each other; operands are promoted by JAX's
rules. The result is where the committed operands are, sharded as they are. All functions raise

- TypeError: an operand is no array, or has a dtype that the function does not take;
- ValueError or TypeError: shapes cannot be broadcast (ValueError where ranks differ, as in JAX);
- ValueError: operands are committed to different devices or meshes;
- ShardingTypeError: the Explicit axes of the operands contradict each other.

    >>> import cuplace.numpy as jnp
    >>> jnp.add(jnp.arange(3), 0.5)
    Array([0.5, 1.5, 2.5], dtype=float32, weak_type=True)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.array import Array
from cuplace.numpy.promotion import cast, number, promote, promote_inexact, promote_numeric, to_bool
from cuplace.ops import elementwise as ops
from cuplace.ops.op import Op
from cuplace.staging.eager import eager
from cuplace.staging.trace import bind
from cuplace.staging.tracer import Tracer

Promotion = Callable[..., list[Tracer]]
Unary = Callable[[Any], Array]
Binary = Callable[[Any, Any], Array]


def _named(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def _unary(name: str, op: Op, doc: str, promotion: Promotion = promote_inexact) -> Unary:
    def body(x: Any, /) -> Any:
        return bind(op, *promotion(x))

    return eager(name)(_named(body, name, doc))


def _binary(name: str, op: Op, doc: str, promotion: Promotion = promote, traced_as: str | None = None) -> Binary:
    def body(x: Any, y: Any, /) -> Any:
        return bind(op, *promotion(x, y))

    return eager(traced_as or name)(_named(body, name, doc))


def _numbered_binary(
    name: str, op: Op, doc: str, promotion: Promotion = promote, traced_as: str | None = None
) -> Binary:
    """Like `_binary`, for the functions whose parameters JAX calls x1 and x2 (errors print these names)."""

    def body(x1: Any, x2: Any, /) -> Any:
        return bind(op, *promotion(x1, x2))

    return eager(traced_as or name)(_named(body, name, doc))


# --- arithmetic --------------------------------------------------------------------------------------------

add = _binary("add", ops.ADD, "x + y; for bools, logical or.")
subtract = _binary("subtract", ops.SUB, "x - y. Bools are refused.")
multiply = _binary("multiply", ops.MUL, "x * y; for bools, logical and.")
divide = true_divide = _numbered_binary(
    "true_divide", ops.DIV, "x1 / x2 in floating point: integers become float32.", promote_inexact
)


def _promote_real(x: Tracer, y: Tracer) -> list[Tracer]:
    operands = promote_numeric(x, y)
    if dtypes.is_complex(operands[0].dtype):
        raise errors.ArgumentTypeError(
            "floor_divide does not support complex-valued inputs\n"
            "Complex numbers have no order, hence no floor: divide, and round real and imaginary part."
        )
    return operands


floor_divide = _numbered_binary(
    "floor_divide", ops.FLOOR_DIVIDE, "The largest integer not above x1 / x2, in the operands' dtype.", _promote_real
)
remainder = mod = _numbered_binary(
    "remainder", ops.REM, "x1 - floor_divide(x1, x2) * x2; it has the sign of x2.", promote_numeric
)
arctan2 = _numbered_binary("arctan2", ops.ATAN2, "The angle of the point (x2, x1), in radians.", promote_inexact)
maximum = _binary("maximum", ops.MAX, "The larger of x and y; NaN where one is NaN.")
minimum = _binary("minimum", ops.MIN, "The smaller of x and y; NaN where one is NaN.")
negative = _unary("negative", ops.NEG, "-x. Bools are refused.", promote)
sign = _unary("sign", ops.SIGN, "-1, 0 or 1 by the sign of x; x / abs(x) for complex x. Bools are refused.", promote)
square = _unary("square", ops.SQUARE, "x * x; bools become int32.", promote_numeric)
reciprocal = _unary("reciprocal", ops.RECIPROCAL, "1 / x; integers become float32.")


@eager("positive")
def positive(x: Any, /) -> Any:
    """A copy of x."""
    return bind(ops.COPY, x)


@eager("absolute")
def absolute(x: Any, /) -> Any:
    """The absolute value of x; real for complex x. Bools and unsigned integers stay as they are."""
    return bind(ops.COPY, x) if x.dtype.kind in "bu" else bind(ops.ABS, x)


abs = absolute


@eager("_power")
def _power(x1: Any, x2: Any, /) -> Any:
    x, y = promote_numeric(x1, x2)
    if dtypes.is_integer(x.dtype):
        out = bind(ops.INTEGER_POW, x, y)
        return cast(out, out.dtype)
    out = bind(ops.POW, x, y)
    # JAX does not promote a whole exponent with the base, so that its weakness alone does not make the result weak.
    return cast(out, out.dtype, out.weak_type and (x2.weak_type or not dtypes.is_integer(x2.dtype)))


@eager("_power", static=("n",))
def _static_power(x1: Any, n: int) -> Any:
    """x1 to a whole power, by few multiplications."""
    (x,) = promote_numeric(x1)
    if n < 0 and dtypes.is_integer(x.dtype):
        raise errors.ArgumentTypeError(
            f"Integers cannot be raised to negative powers, got integer_pow({x.type}, {n})\n"
            "Raise a float: x.astype('float32') ** n, or x ** float(n)."
        )
    if n in _FEW_PRODUCTS:
        return _repeated(x, n)
    if dtypes.is_integer(x.dtype):
        return bind(ops.INTEGER_POW, x, number(n, x))
    return bind(ops.POW, x, number(float(n), x))


_FEW_PRODUCTS = (-2, -1, 1, 2, 3, 4, 8)


def _repeated(x: Tracer, n: int) -> Tracer:
    if n < 0:
        return bind(ops.RECIPROCAL, _repeated(x, -n))
    if n == 1:
        return bind(ops.COPY, x)
    if n % 2:
        return bind(ops.MUL, _repeated(x, n - 1), x)
    return bind(ops.SQUARE, x if n == 2 else _repeated(x, n // 2))


def power(x1: Any, x2: Any, /) -> Array:
    """x1 to the power of x2. Integers wrap around; their negative powers are refused where they are known.

    Raises:
        ArgumentTypeError: a TypeError, for a negative Python int as exponent of integers.

    Example:
        >>> power(2, 10)
        Array(1024, dtype=int32, weak_type=True)
    """
    if not isinstance(x2, int | np.integer):
        return _power(x1, x2)
    return square(x1) if x2 == 2 else _static_power(x1, int(x2))


# --- comparisons and logic ---------------------------------------------------------------------------------

equal = _binary("equal", ops.EQ, "x == y, as bools.")
not_equal = _binary("not_equal", ops.NE, "x != y, as bools.")
less = _binary("less", ops.LT, "x < y, as bools; complex numbers are ordered by real, then imaginary part.")
less_equal = _binary("less_equal", ops.LE, "x <= y, as bools.")
greater = _binary("greater", ops.GT, "x > y, as bools.")
greater_equal = _binary("greater_equal", ops.GE, "x >= y, as bools.")


def _truths(*operands: Tracer) -> list[Tracer]:
    return [to_bool(x) for x in operands]


logical_and = _binary("logical_and", ops.AND, "Whether both x and y differ from zero.", _truths)
logical_or = _binary("logical_or", ops.OR, "Whether x or y differs from zero.", _truths)
logical_xor = _binary("logical_xor", ops.XOR, "Whether exactly one of x and y differs from zero.", _truths)
logical_not = _unary("logical_not", ops.NOT, "Whether x is zero.", _truths)

bitwise_and = _binary("bitwise_and", ops.AND, "The bits set in both x and y; integers and bools only.")
bitwise_or = _binary("bitwise_or", ops.OR, "The bits set in x or y; integers and bools only.")
bitwise_xor = _binary("bitwise_xor", ops.XOR, "The bits set in exactly one of x and y; integers and bools only.")
bitwise_not = bitwise_invert = invert = _unary(
    "invert", ops.NOT, "The bits of x inverted; integers and bools only.", promote
)
left_shift = bitwise_left_shift = _binary(
    "left_shift", ops.SHIFT_LEFT, "x shifted left by y bits; 0 where y is out of range.", promote_numeric
)
right_shift = bitwise_right_shift = _binary(
    "right_shift", ops.SHIFT_RIGHT, "x shifted right by y bits, keeping the sign.", promote_numeric
)


def _classify(name: str, op: Op, exact: Op, doc: str, strong: str = "") -> Unary:
    """A question about floats that integers answer all alike: as x != x (never), or x == x (always), does.

    ``strong`` are the kinds of numbers for which JAX's answer is never weak.
    """

    def body(x: Any, /) -> Any:
        answer = bind(op, x) if dtypes.is_inexact(x.dtype) else bind(exact, x, x)
        return cast(answer, answer.dtype) if dtypes.kind(x.dtype) in strong else answer

    return eager(name)(_named(body, name, doc))


isnan = _classify("isnan", ops.IS_NAN, ops.NE, "Whether x is NaN.")
isinf = _classify("isinf", ops.IS_INF, ops.NE, "Whether x is infinite.", "biufc")
isfinite = _classify("isfinite", ops.IS_FINITE, ops.EQ, "Whether x is neither infinite nor NaN.", "biu")


# --- functions of mathematics ------------------------------------------------------------------------------

exp = _unary("exp", ops.EXP, "e to the power of x.")


@eager("exp2")
def exp2(x: Any, /) -> Any:
    """2 to the power of x."""
    (x,) = promote_inexact(x)
    if dtypes.is_complex(x.dtype):
        return bind(ops.EXP, bind(ops.MUL, x, number(math.log(2), x)))
    return bind(ops.EXP2, x)


expm1 = _unary("expm1", ops.EXPM1, "exp(x) - 1, exact for small x.")
log = _unary("log", ops.LOG, "The natural logarithm.")
log1p = _unary("log1p", ops.LOG1P, "log(1 + x), exact for small x.")


def _logarithm(name: str, op: Op, doc: str) -> Unary:
    """A logarithm to a base, which JAX divides by in a dtype that is not weak, so that the result is not either."""

    def body(x: Any, /) -> Any:
        (x,) = promote_inexact(x)
        return cast(bind(op, x), x.dtype)

    return eager(name)(_named(body, name, doc))


log2 = _logarithm("log2", ops.LOG2, "The logarithm to the base 2.")
log10 = _logarithm("log10", ops.LOG10, "The logarithm to the base 10.")
sqrt = _unary("sqrt", ops.SQRT, "The square root.")
sin = _unary("sin", ops.SIN, "The sine of x radians.")
cos = _unary("cos", ops.COS, "The cosine of x radians.")
tan = _unary("tan", ops.TAN, "The tangent of x radians.")
arcsin = asin = _unary("arcsin", ops.ASIN, "The angle, in radians, whose sine is x.")
arccos = acos = _unary("arccos", ops.ACOS, "The angle, in radians, whose cosine is x.")
arctan = atan = _unary("arctan", ops.ATAN, "The angle, in radians, whose tangent is x.")
atan2 = arctan2
sinh = _unary("sinh", ops.SINH, "The hyperbolic sine.")
cosh = _unary("cosh", ops.COSH, "The hyperbolic cosine.")
tanh = _unary("tanh", ops.TANH, "The hyperbolic tangent.")


def _rounding(name: str, op: Op, doc: str) -> Unary:
    def body(x: Any, /) -> Any:
        return bind(ops.COPY if x.dtype.kind in "biu" else op, x)

    return eager(name)(_named(body, name, doc))


floor = _rounding("floor", ops.FLOOR, "The largest whole number not above x. Integers stay as they are.")
ceil = _rounding("ceil", ops.CEIL, "The smallest whole number not below x. Integers stay as they are.")
trunc = _rounding("trunc", ops.TRUNC, "x without its fraction. Integers stay as they are.")


@eager("round", static=("decimals",))
def _round(a: Any, /, decimals: int) -> Any:
    if dtypes.is_integer(a.dtype) or a.dtype == dtypes.BOOL:
        if decimals < 0:
            raise NotImplementedError("integer np.round not implemented for decimals < 0")
        return bind(ops.COPY, a)
    if decimals == 0:
        return bind(ops.ROUND, a)
    factor = number(10.0**decimals, a)
    return bind(ops.DIV, bind(ops.ROUND, bind(ops.MUL, a, factor)), factor)


def round(a: Any, decimals: int = 0, out: None = None) -> Array:
    """Round to a number of decimals; halves go to the even neighbour. Integers stay as they are.

    Raises:
        NotImplementedError: for integers, where ``decimals`` is negative, and where ``out`` is given.
        TypeError: ``decimals`` is no integer.

    Example:
        >>> round(2.5)
        Array(2., dtype=float32, weak_type=True)
    """
    if out is not None:
        raise NotImplementedError("The 'out' argument to jnp.round is not supported.")
    return _round(a, operator.index(decimals))


around = round


# --- complex numbers ---------------------------------------------------------------------------------------


@eager("real")
def real(val: Any, /) -> Any:
    """The real part; real values as they are."""
    return bind(ops.REAL, val) if dtypes.is_complex(val.dtype) else bind(ops.COPY, val)


@eager("imag")
def imag(val: Any, /) -> Any:
    """The imaginary part; zeros for real values."""
    if dtypes.is_complex(val.dtype):
        return bind(ops.IMAG, val)
    return bind(ops.FULL_LIKE, val, number(0, val))


@eager("conjugate")
def conjugate(x: Any, /) -> Any:
    """The complex conjugate; real values as they are."""
    return bind(ops.CONJ, x) if dtypes.is_complex(x.dtype) else bind(ops.COPY, x)


conj = conjugate


# --- choices -----------------------------------------------------------------------------------------------


@eager("clip")
def clip(arr: Any, /, min: Any = None, max: Any = None) -> Any:
    """``arr`` with values below ``min`` or above ``max`` replaced by these; None is no limit.

    Raises:
        ComplexOrderError: a ValueError, for complex numbers.

    Example:
        >>> clip(5, 0, 3)
        Array(3, dtype=int32, weak_type=True)
    """
    if any(x is not None and dtypes.is_complex(x.dtype) for x in (arr, min, max)):
        raise errors.ComplexOrderError(
            "Clip received a complex value either through the input or the min/max keywords. Complex values have no "
            "ordering and cannot be clipped. Please convert to a real value or array by taking the real or "
            "imaginary components via jax.numpy.real/imag respectively."
        )
    out = arr
    if min is not None:
        out = bind(ops.MAX, *promote(min, out))
    if max is not None:
        out = bind(ops.MIN, *promote(max, out))
    return bind(ops.COPY, out) if out is arr else out


@eager("isclose", static=("rtol", "atol", "equal_nan"))
def isclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """Whether ``abs(a - b) <= atol + rtol * abs(b)``, or both are the same infinity (or both NaN, if asked)."""
    a, b = promote_inexact(a, b)
    margin = bind(ops.ABS, b)
    margin = bind(ops.ADD, bind(ops.MUL, margin, number(rtol, margin)), number(atol, margin))
    near = bind(ops.LE, bind(ops.ABS, bind(ops.SUB, a, b)), margin)
    near = bind(ops.AND, near, bind(ops.IS_FINITE, b))
    near = bind(ops.OR, near, bind(ops.EQ, a, b))
    if equal_nan:
        near = bind(ops.OR, near, bind(ops.AND, bind(ops.IS_NAN, a), bind(ops.IS_NAN, b)))
    return cast(near, near.dtype)
