"""jit: a function traced once for each kind of arguments, and run as one program over their devices."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import optree

from cuplace import errors
from cuplace.array.array import Array
from cuplace.array.key import OperandKey
from cuplace.array.pytree import flatten, unflatten
from cuplace.runtime.context import context_key
from cuplace.runtime.guard import armed
from cuplace.staging.arguments import Chosen, argument_names, merged, static_key
from cuplace.staging.asked import (
    UNSPECIFIED,
    check_argument,
    check_fit,
    check_leaves,
    spread_inputs,
    spread_outputs,
)
from cuplace.staging.donation import DonatingBound, usable
from cuplace.staging.guarded import judge_call, moves_nothing
from cuplace.staging.operand import is_scalar, operand_key, quick_key
from cuplace.staging.put import constrain
from cuplace.staging.staged import Bound, CacheInfo, Staged, Traced, keep, path_text
from cuplace.staging.trace import current, lift, recordings

if TYPE_CHECKING:
    from cuplace.placement.sharding import Sharding
    from cuplace.staging.tracer import Tracer


def jit(
    fun: Any = UNSPECIFIED, /, *, in_shardings: Any = UNSPECIFIED, out_shardings: Any = UNSPECIFIED,
    static_argnums: Any = None, static_argnames: Any = None, donate_argnums: Any = None,
    donate_argnames: Any = None, keep_unused: bool = False, inline: bool = False,
) -> Any:  # fmt: skip
    """The function, traced at its first call with arguments of some types, and run as one program.

    Arguments and results are pytrees of arrays and numbers. The program runs where its committed arguments and the
    committed arrays that it captures are; else where ``in_shardings``, the context mesh or ``out_shardings`` say;
    else on the default device. Inside, arrays can be laid out anew on these devices, but not moved to others.

    Args:
        fun: the function. Left out, the call gives a decorator.
        in_shardings: where uncommitted arguments are put: a sharding, a PartitionSpec, None, or a pytree prefix of
            the tuple of arguments.
        out_shardings: where results are put; likewise, a prefix of the result.
        static_argnums: positions of arguments that are no arrays, but hashable values known while tracing.
        static_argnames: the same by name.
        donate_argnums: positions of arguments that are consumed where a result can use their memory.
        donate_argnames: the same by name.
        keep_unused: let arguments that nothing depends on count for the choice of devices.
        inline: accepted for JAX's sake; functions that are called inside others are always inlined.

    Returns:
        A function with the same signature, and with ``cache_info()`` and ``clear_cache()``.

    Raises:
        NotCallableError: a TypeError.
        StaticArgumentError: a ValueError, for an argument that does not exist.
        ShardingLeafError: a TypeError, for something else than shardings.
        Calls raise what the function raises while it is traced, IncompatibleDevicesError (a ValueError) where it
        should run on different devices, and TracedValueError (a TypeError) for arguments and results that are no
        arrays.

    >>> import cuplace, cuplace.numpy as jnp
    >>> double = cuplace.jit(lambda x: x + x)
    >>> double(jnp.arange(3)), double.cache_info().traces
    (Array([0, 2, 4], dtype=int32), 1)
    """
    options = {
        "in_shardings": in_shardings, "out_shardings": out_shardings, "static_argnums": static_argnums,
        "static_argnames": static_argnames, "donate_argnums": donate_argnums, "donate_argnames": donate_argnames,
        "keep_unused": keep_unused,
    }  # fmt: skip
    if fun is UNSPECIFIED:
        return functools.partial(Jitted, **options)
    return Jitted(fun, **options)


class Jitted:
    """A jitted function."""

    def __init__(
        self, fun: Callable[..., Any], *, in_shardings: Any, out_shardings: Any, static_argnums: Any,
        static_argnames: Any, donate_argnums: Any, donate_argnames: Any, keep_unused: bool,
    ) -> None:  # fmt: skip
        if not callable(fun):
            raise errors.NotCallableError(
                f"Expected a callable value, got {fun}\nWrite @cuplace.jit above a function, or cuplace.jit(function)."
            )
        check_leaves("in_shardings", in_shardings)
        check_leaves("out_shardings", out_shardings)
        functools.update_wrapper(self, fun)  # before anything of its own: a jitted function has attributes like these
        self._static = Chosen("static", fun, static_argnums, static_argnames)
        self._donate = Chosen("donate", fun, donate_argnums, donate_argnames)
        both = self._static.names & self._donate.names
        if both:
            raise errors.StaticArgumentError(
                f"static_argnames and donate_argnames cannot intersect. Argument names {set(both)} appear in both "
                "static_argnames and donate_argnames"
            )
        self._fun = fun
        self._in_shardings = in_shardings
        self._out_shardings = out_shardings
        self._keep_unused = keep_unused
        self._staged = Staged(function_name(fun), function_source(fun))
        self._bound: dict[Any, Bound] = {}
        self._quick: dict[Any, Callable[..., Any]] = {}
        self._hits = 0
        self._misses = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs and not recordings:
            key = (context_key(), *[arg._key if type(arg) is Array else type(arg) for arg in args])
            run = self._quick.get(key)
            if run is not None:
                self._hits += 1
                return run(*args)
        return self._call(args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<PjitFunction of {self._fun!r}>"

    def cache_info(self) -> CacheInfo:
        """How many programs were traced, how many executables placed, and how many calls found theirs."""
        return CacheInfo(len(self._staged.programs), len(self._bound), self._hits, self._misses)

    def clear_cache(self) -> None:
        """Forget all programs and executables."""
        self._staged.programs.clear()
        self._bound.clear()
        self._quick.clear()

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        rest, named, static = self._static.split(args, kwargs)
        if current.trace is not None:
            return self._inline(rest, named, static)
        operands, structure = flatten((rest, named))
        static_keys = tuple([(where, static_key(value)) for where, value in static])
        context = context_key()
        key = (structure, tuple(map(quick_key, operands)), static_keys, context.unguarded)
        bound = self._bound.get(key)
        is_new = bound is None or context.levels is not None
        if bound is None:
            self._misses += 1
            bound = self._bind(rest, named, static, static_keys, operands, structure)
            keep(self._bound, key, bound)
        else:
            self._hits += 1
        if armed:
            judge_call(bound.executable, operands)
            if context.levels is not None and not moves_nothing(bound.executable):
                return bound(operands)  # to be judged the next time, too
        if is_new and not kwargs and not static and all(type(arg) is Array or is_scalar(arg) for arg in args):
            keep(self._quick, (context, *map(quick_key, args)), bound.direct)
        return bound(operands)

    # ------------------------------------------------------------------ placing

    def _bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], static: Any, static_keys: Any, operands: list[Any],
        structure: Any,
    ) -> Bound:  # fmt: skip
        names = functools.cache(lambda: argument_names(self._fun, structure))
        keys = [self._key_of(operand, names, i) for i, operand in enumerate(operands)]
        in_shardings = spread_inputs(self._in_shardings, _dynamic(args, static), kwargs, len(operands))
        for i, (sharding, key) in enumerate(zip(in_shardings, keys, strict=True)):
            check_argument(sharding, key)
            if sharding is not None:
                check_fit("arguments", names()[i], sharding, key.type)

        def body(tracers: Sequence[Tracer]) -> Any:
            inner_args, inner_kwargs = unflatten(structure, tracers)
            full_args, full_kwargs = merged(inner_args, inner_kwargs, static)
            return sorted_dicts(self._fun(*full_args, **full_kwargs))

        traced_key = (structure, static_keys)
        bound = self._staged.bind(
            traced_key, operands, names, body, in_shardings, self._asked_outputs, passes=False,
            keep_unused=self._keep_unused,
        )  # fmt: skip
        if not self._donate:
            return bound
        arrays = [type(key) is OperandKey for key in keys]
        donated = usable(bound.program, self._donated_leaves(args, kwargs), arrays)
        return DonatingBound(bound, donated) if donated else bound

    def _key_of(self, operand: Any, names: Callable[[], Sequence[str]], position: int) -> Any:
        try:
            return operand_key(operand)
        except (errors.NotAnArrayError, errors.InvalidValueError, errors.DtypeError):
            raise errors.TracedValueError(
                f"Error interpreting argument to {self._fun} as an abstract array. The problematic value is of type "
                f"{type(operand)} and was passed to the function at path {names()[position]}.\nThis typically means "
                "that a jit-wrapped function was called with a non-array argument, and this argument was not marked "
                "as static using the static_argnums or static_argnames parameters of jax.jit."
            ) from None

    def _asked_outputs(self, traced: Traced) -> list[Sharding | None]:
        shardings = spread_outputs(self._out_shardings, traced.structure)
        for i, sharding in enumerate(shardings):
            if sharding is not None:
                path = "result" + path_text(traced.structure.accessors()[i])
                check_fit("outputs", path, sharding, traced.program.outputs[i].type)
        return shardings

    def _donated_leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int]:
        flags: list[bool] = []
        for i, arg in enumerate(args):
            flags += [i in self._donate.nums] * len(optree.tree_leaves(arg))
        for name in sorted(kwargs):
            flags += [name in self._donate.names] * len(optree.tree_leaves(kwargs[name]))
        return [i for i, flag in enumerate(flags) if flag]

    # ------------------------------------------------------------------ inside another trace

    def _inline(self, args: tuple[Any, ...], kwargs: dict[str, Any], static: Any) -> Any:
        """Run the function in the trace that is going on."""
        leaves, structure = flatten((args, kwargs))
        shardings = spread_inputs(self._in_shardings, _dynamic(args, static), kwargs, len(leaves))
        names = functools.cache(lambda: argument_names(self._fun, structure))
        for i, leaf in enumerate(leaves):
            if not getattr(type(leaf), "_is_tracer", False):
                self._key_of(leaf, names, i)
        lifted = [
            constrain(lift(leaf), sharding, "ARG_SHARDING") for leaf, sharding in zip(leaves, shardings, strict=True)
        ]
        inner_args, inner_kwargs = unflatten(structure, lifted)
        full_args, full_kwargs = merged(inner_args, inner_kwargs, static)
        results, out_structure = flatten(sorted_dicts(self._fun(*full_args, **full_kwargs)))
        asked = spread_outputs(self._out_shardings, out_structure)
        results = [
            constrain(lift(leaf), sharding, "explicit output sharding")
            for leaf, sharding in zip(results, asked, strict=True)
        ]
        return unflatten(out_structure, results)


def _dynamic(args: Sequence[Any], static: Any) -> list[Any]:
    """The positional arguments without static ones."""
    chosen = {where for where, _ in static}
    return [arg for i, arg in enumerate(args) if i not in chosen]


def function_name(fun: Callable[..., Any]) -> str:
    """What errors call a function: its qualified name."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return getattr(fun, "__qualname__", None) or repr(fun)


def function_source(fun: Callable[..., Any]) -> str:
    """``name at FILE:LINE``, where a function has a source."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    code = getattr(inspect.unwrap(fun), "__code__", None)
    if code is None:
        return "<unknown>"
    return f"{getattr(fun, '__name__', '<unnamed>')} at {code.co_filename}:{code.co_firstlineno}"


def sorted_dicts(tree: Any) -> Any:
    """The tree with its dicts in the order of their keys, as JAX returns them."""
    if type(tree) is dict:
        return {key: sorted_dicts(tree[key]) for key in optree.tree_structure(tree, is_leaf=_below(tree)).entries()}
    if type(tree) in (tuple, list):
        return type(tree)([sorted_dicts(item) for item in tree])
    return tree


def _below(tree: Any) -> Callable[[Any], bool]:
    return lambda node: node is not tree
