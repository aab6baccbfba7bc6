"""Operators and methods of arrays, and of values that are being traced: functions of `cuplace.numpy`, attached.

>>> import cuplace.numpy as jnp
>>> x = jnp.arange(4)
>>> (x + 1).reshape(2, 2).sum(axis=0)
Array([4, 6], dtype=int32)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cuplace import errors
from cuplace.array.array import Array
from cuplace.numpy import elementwise as e
from cuplace.numpy import products, reductions, selection, shaping
from cuplace.ops.shapes import integers
from cuplace.staging.eager import operator_of, unary_operator_of
from cuplace.staging.tracer import Tracer

_REFUSED = (list, tuple, set, dict)

Method = Callable[..., Any]


def _takes(other: Any) -> bool:
    return isinstance(other, Array | int | float | complex | np.ndarray | np.generic)


def _checked(symbol: str, self: Any, other: Any, swapped: bool) -> bool:
    """Whether the other operand is one of ours.

    Raises:
        ArgumentTypeError: a TypeError, for lists and the like, also where Python would find another meaning (``==``).
    """
    if isinstance(other, _REFUSED):
        names = [type(self).__name__, type(other).__name__]
        left, right = reversed(names) if swapped else names
        raise errors.ArgumentTypeError(
            f"unsupported operand type(s) for {symbol}: {left!r} and {right!r}\n"
            "Make an array of it first, with cuplace.numpy.array."
        )
    return _takes(other)


def _binary(symbol: str, function: Method, swapped: bool = False) -> Method:
    def takes(self: Any, other: Any) -> bool:
        return _checked(symbol, self, other, swapped)

    if hasattr(function, "eager"):
        return operator_of(function, takes, swapped)

    def operator(self: Any, other: Any) -> Any:
        if not takes(self, other):
            return NotImplemented
        return function(other, self) if swapped else function(self, other)

    return operator


def _divmod(x: Any, y: Any) -> tuple[Any, Any]:
    return e.floor_divide(x, y), e.remainder(x, y)


_ARITHMETIC: dict[str, tuple[str, Method]] = {
    "add": ("+", e.add),
    "sub": ("-", e.subtract),
    "mul": ("*", e.multiply),
    "truediv": ("/", e.true_divide),
    "floordiv": ("//", e.floor_divide),
    "mod": ("%", e.remainder),
    "divmod": ("divmod()", _divmod),
    "pow": ("** or pow()", e.power),
    "matmul": ("@", products.plain_matmul),
    "and": ("&", e.bitwise_and),
    "or": ("|", e.bitwise_or),
    "xor": ("^", e.bitwise_xor),
    "lshift": ("<<", e.left_shift),
    "rshift": (">>", e.right_shift),
}
_COMPARISONS: dict[str, tuple[str, Method]] = {
    "eq": ("==", e.equal),
    "ne": ("!=", e.not_equal),
    "lt": ("<", e.less),
    "le": ("<=", e.less_equal),
    "gt": (">", e.greater),
    "ge": (">=", e.greater_equal),
}
_UNARY: dict[str, Method] = {"neg": e.negative, "pos": e.positive, "abs": e.absolute, "invert": e.invert}


def _operators() -> dict[str, Method]:
    found: dict[str, Method] = {}
    for name, (symbol, function) in _ARITHMETIC.items():
        found[f"__{name}__"] = _binary(symbol, function)
        found[f"__r{name}__"] = _binary(symbol, function, swapped=True)
    for name, (symbol, function) in _COMPARISONS.items():
        found[f"__{name}__"] = _binary(symbol, function)
    for name, function in _UNARY.items():
        found[f"__{name}__"] = unary_operator_of(function)
    return found


# --- methods -----------------------------------------------------------------------------------------------


def _getitem(self: Any, index: Any) -> Any:
    return selection.getitem(self, index)


def _tracer_rows(self: Any) -> Any:
    """Iterate over the first dimension, whose size is known while tracing."""
    if not self.shape:
        raise errors.UnsizedError("iteration over a 0-d array")
    return iter([self[i] for i in range(self.shape[0])])


def _round(self: Any, ndigits: int | None = None) -> Any:
    """Python's ``round``: without a number of digits, whole numbers in an integer type."""
    return shaping.astype(e.round(self), int) if ndigits is None else e.round(self, ndigits)


def _reshape(self: Any, *shape: Any, order: str = "C", out_sharding: Any = None) -> Any:
    """The elements in another shape: ``x.reshape(2, -1)`` or ``x.reshape((2, -1))``; see `cuplace.numpy.reshape`."""
    new = shape[0] if len(shape) == 1 else shape
    unchanged = out_sharding is None and order == "C" and integers(new) == self.shape
    return self if unchanged else shaping.reshape(self, new, order, out_sharding=out_sharding)


def _transpose(self: Any, *axes: Any) -> Any:
    """The dimensions in another order, reversed where none is given; see `cuplace.numpy.transpose`."""
    if not axes or axes == (None,):
        return shaping.transpose(self)
    return shaping.transpose(self, axes[0] if len(axes) == 1 else axes)


def _clip(self: Any, min: Any = None, max: Any = None) -> Any:
    """Values below ``min`` or above ``max`` replaced by these; see `cuplace.numpy.clip`."""
    return e.clip(self, min, max)


def _astype(self: Any, dtype: Any, copy: bool = False, device: Any = None) -> Any:
    """The values in another dtype, placed as they are; see `cuplace.numpy.astype`."""
    return shaping.astype(self, dtype, copy=copy, device=device)


def _method(function: Method) -> Method:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__ = method.__qualname__ = function.__name__
    method.__doc__ = function.__doc__
    return method


_METHODS: dict[str, Any] = {
    "__getitem__": _getitem,
    "__round__": _round,
    "reshape": _reshape,
    "transpose": _transpose,
    "clip": _clip,
    "astype": _astype,
    "flatten": _method(shaping.ravel),
    "conj": _method(e.conjugate),
    "T": property(_method(shaping.transpose), doc="The dimensions in reverse order."),
    "mT": property(_method(shaping.matrix_transpose), doc="The last two dimensions exchanged."),
    "real": property(_method(e.real), doc="The real part."),
    "imag": property(_method(e.imag), doc="The imaginary part; zeros for real values."),
}
for _function in (
    shaping.ravel, shaping.squeeze, shaping.swapaxes, shaping.copy, e.conjugate, e.round, products.dot, selection.take,
    reductions.sum, reductions.prod, reductions.mean, reductions.var, reductions.std, reductions.max, reductions.min,
    reductions.any, reductions.all, reductions.argmax, reductions.argmin, reductions.cumsum, reductions.cumprod,
    reductions.sort, reductions.argsort,
):  # fmt: skip
    _METHODS[_function.__name__] = _method(_function)


def attach() -> None:
    """Give arrays and traced values their operators and methods."""
    for kind in (Array, Tracer):
        for name, member in {**_operators(), **_METHODS}.items():
            setattr(kind, name, member)
        kind.__hash__ = None  # type: ignore[assignment]  # as long as == compares elements
    Tracer.__iter__ = _tracer_rows  # type: ignore[attr-defined]


attach()
