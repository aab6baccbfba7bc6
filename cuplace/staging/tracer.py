"""Tracer: a value of a function that is being traced. It has a type and no data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from cuplace import errors

if TYPE_CHECKING:
    from cuplace.array.type import ArrayType
    from cuplace.staging.program import Atom
    from cuplace.staging.trace import Trace

_ONLY_CONCRETE = ("committed", "addressable_shards", "global_shards")
_METHODS_ONLY_CONCRETE = ("block_until_ready", "copy_to_host_async", "is_ready")


class Tracer:
    """Stands for an array while a function is traced; arithmetic on it is recorded.

    It has ``shape``, ``dtype``, ``ndim``, ``size``, ``nbytes`` and the operators and methods of arrays. What
    needs data (``float(x)``, ``if x:``, ``np.asarray(x)``) or a placement (``x.sharding``) raises.
    """

    __slots__ = ("__weakref__", "atom", "trace")

    _is_tracer = True
    _key = None  # an operand of no kind that dispatch knows
    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]  # as for arrays: equality is elementwise

    def __init__(self, trace: Trace, atom: Atom) -> None:
        self.trace = trace
        self.atom = atom

    @property
    def type(self) -> ArrayType:
        """Shape, dtype and the rest of what programs are traced on."""
        return self.atom.type

    aval = type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.atom.type.shape

    @property
    def dtype(self) -> np.dtype:
        return self.atom.type.dtype

    @property
    def weak_type(self) -> bool:
        return self.atom.type.weak_type

    @property
    def ndim(self) -> int:
        return len(self.atom.type.shape)

    @property
    def size(self) -> int:
        return self.atom.type.size

    @property
    def itemsize(self) -> int:
        return self.atom.type.itemsize

    @property
    def nbytes(self) -> int:
        return self.atom.type.nbytes

    def __len__(self) -> int:
        if not self.shape:
            raise errors.UnsizedError("len() of unsized object")
        return self.shape[0]

    def __repr__(self) -> str:
        weak = "~" if self.weak_type else ""
        return f"JitTracer({weak}{self.atom.type})"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    # ---------------------------------------------------------------- what needs data

    def __bool__(self) -> bool:
        if self.size != 1:
            raise errors.TruthValueError(self.size)
        raise errors.TracerBoolConversionError(
            f"Attempted boolean conversion of {self._described()}.{self._origin()}\n"
            "Use cuplace.numpy.where(condition, a, b) to choose between values."
        )

    def __float__(self) -> float:
        self._no_scalar("float")

    def __int__(self) -> int:
        self._no_scalar("int")

    def __complex__(self) -> complex:
        self._no_scalar("complex")

    def __index__(self) -> int:
        raise errors.TracerIntegerConversionError(
            f"The __index__() method was called on {self._described()}{self._origin()}\n"
            "Mark the argument as static with static_argnums or static_argnames."
        )

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise errors.TracerArrayConversionError(
            f"The numpy.ndarray conversion method __array__() was called on {self._described()}{self._origin()}\n"
            "Use cuplace.numpy instead of numpy in traced functions."
        )

    def item(self, *args: int) -> NoReturn:
        """Raises ConcretizationTypeError, a TypeError."""
        raise self._not_concrete("This occurred in the item() method of jax.Array")

    def tolist(self) -> NoReturn:
        """Raises ConcretizationTypeError, a TypeError."""
        raise self._not_concrete("This occurred in the tolist() method of jax.Array")

    def devices(self) -> NoReturn:
        """Raises ConcretizationTypeError, a TypeError."""
        raise self._not_concrete(f"The devices() method was called on {self._described()}.")

    def delete(self) -> NoReturn:
        """Raises ConcretizationTypeError, a TypeError."""
        raise self._not_concrete(f"The delete() method was called on {self._described()}.")

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise errors.ItemAssignmentError()

    def __getattr__(self, name: str) -> NoReturn:
        if name == "sharding":
            raise AttributeError(
                f"The 'sharding' attribute is not available on {self._described()}. "
                "To query sharding information on tracers, use `jax.typeof(x)`."
            )
        if name == "at":
            raise errors.NoAtError()
        if name in _ONLY_CONCRETE:
            raise self._not_concrete(f"The '{name}' attribute is not available on {self._described()}.")
        if name in ("is_fully_replicated", "is_fully_addressable"):
            raise self._not_concrete(f"The {name} property was called on {self._described()}.")
        if name in _METHODS_ONLY_CONCRETE:
            raise AttributeError(
                f"The '{name}' method is not available on {self._described()}.{self._origin()}", name=name, obj=self
            )
        raise AttributeError(f"JitTracer has no attribute {name}", name=name, obj=self)

    def leaked(self) -> errors.UnexpectedTracerError:
        """The error for a value that is used outside of its trace."""
        return errors.UnexpectedTracerError(
            "Encountered an unexpected tracer. A function transformed by JAX had a side effect, allowing for a "
            f"reference to an intermediate value with type {self.type} wrapped in a JitTracer to escape the scope of "
            "the transformation.\nJAX transformations require that functions explicitly return their outputs, and "
            "disallow saving intermediate values to global state.\nThe function being traced when the value leaked "
            f"was {self.trace.source} traced for jit."
        )

    def _described(self) -> str:
        return f"traced array with shape {self.atom.type}"

    def _origin(self) -> str:
        names = self.trace.dependencies(self.atom)
        if not names:
            return f"\nThe error occurred while tracing the function {self.trace.source} for jit."
        plural = "s" if len(names) > 1 else ""
        listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        return (
            f"\nThe error occurred while tracing the function {self.trace.source} for jit. This concrete value was "
            f"not available in Python because it depends on the value{plural} of the argument{plural} {listed}."
        )

    def _not_concrete(self, where: str) -> errors.ConcretizationTypeError:
        return errors.ConcretizationTypeError(
            f"Abstract tracer value encountered where concrete value is expected: {self._described()}\n"
            f"{where}{self._origin()}"
        )

    def _no_scalar(self, name: str) -> NoReturn:
        if self.ndim:
            raise errors.ScalarConversionError(self.ndim)
        raise self._not_concrete(
            f"The problem arose with the `{name}` function. If trying to convert the data type of a value, "
            f"try using `x.astype({name})` or `jnp.array(x, {name})` instead."
        )
