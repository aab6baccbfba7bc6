"""Eager functions: programs of one call, traced once for each kind of operands and run at once.

A public function is written as the body of a traced function and made eager by a decorator:

    @eager("add")
    def add(x, y, /):
        x, y = promote(x, y)
        return bind(ADD, x, y)

    @eager("sum", static=("axis", "keepdims"))
    def sum(a, axis=None, keepdims=False): ...

    @eager("concatenate", static=("axis",), sequences=("arrays",), labels={"arrays": "args"})
    def concatenate(arrays, axis=0): ...

    @eager("zeros", static=("shape", "dtype"), device="device")
    def zeros(shape, dtype=None, *, device=None): ...

The body sees only values of a trace (``Tracer``) for its array parameters and plain Python values for the static
ones. None stays None, but is refused for parameters without a default. Called while a function is being traced, the
body is simply run; called with arrays and numbers, it is traced, placed and executed. The parameter named by
``device`` is not given to the body (it gets None): it says where the results shall be, as ``out_shardings`` of
``jit`` does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from cuplace import errors
from cuplace.array.array import Array
from cuplace.array.put import read_target
from cuplace.array.pytree import flatten, map_leaves, unflatten
from cuplace.placement.sharding import SingleDeviceSharding
from cuplace.runtime.context import context_key, set_mesh
from cuplace.runtime.device import Device
from cuplace.runtime.guard import armed
from cuplace.staging.frozen import frozen
from cuplace.staging.guarded import judge_call, moves_nothing
from cuplace.staging.operand import is_scalar, quick_key
from cuplace.staging.put import constrain
from cuplace.staging.quick import Direct
from cuplace.staging.signature import Signature
from cuplace.staging.staged import Bound, Staged, keep, path_text
from cuplace.staging.trace import current, lift, recordings
from cuplace.staging.tracer import Tracer

if TYPE_CHECKING:
    from cuplace.placement.sharding import Sharding


_CONTAINERS = (list, tuple, dict)


def eager(
    name: str, *, static: tuple[str, ...] = (), sequences: tuple[str, ...] = (),
    labels: Mapping[str, str] | None = None, device: str | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Make a function of traced values a public function of arrays.

    Args:
        name: what errors and timelines call it.
        static: parameters whose values (hashable) the trace may depend on.
        sequences: parameters that are lists or tuples of arrays; ``*args`` always are.
        labels: parameter names as errors shall print them, where they differ.
        device: the parameter that places the results.
    """

    def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
        return _public(Eager(name, body, static, sequences, labels or {}, device))

    return decorate


def _public(function: Eager) -> Callable[..., Any]:
    """The function that users call. The lookups of ``Eager.quick`` are written out here: this is the hot path."""
    quick = function.quick.get
    call = function.call

    @functools.wraps(function.body)
    def public(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and not recordings:
            run = None
            if len(args) == 2:
                x, y = args
                key_x = x._key if type(x) is Array else type(x)
                run = quick((key_x, y._key if type(y) is Array else type(y), context_key()))
            elif len(args) == 1:
                (x,) = args
                run = quick((x._key if type(x) is Array else type(x), context_key()))
            if run is not None:
                return run(*args)
        return call(args, kwargs)

    public.eager = function  # type: ignore[attr-defined]
    return public


def not_an_array(name: str, value: Any, position: int) -> errors.ArgumentTypeError:
    """The error for a list, or None, where the function ``name`` wants an array."""
    return errors.ArgumentTypeError(
        f"{name} requires ndarray or scalar arguments, got {type(value)} at position {position}.\n"
        "Make an array of it first, with cuplace.numpy.array."
    )


def operator_of(function: Callable[..., Any], takes: Callable[[Any, Any], bool], swapped: bool) -> Callable[..., Any]:
    """The operator of Python, as a method of arrays and traced values, that an eager function of two operands is.

    Args:
        function: made by `eager`.
        takes: ``takes(self, other)``: whether the other operand is one that arrays are combined with; else the
            operator returns NotImplemented. Asked only for operands of a kind not seen before.
        swapped: whether it is the operator of the right operand (``__radd__``).
    """
    quick = function.eager.quick.get  # type: ignore[attr-defined]
    call = function.eager.call  # type: ignore[attr-defined]

    def operator(self: Any, other: Any) -> Any:
        if not recordings:
            run = quick((self._key, other._key if type(other) is Array else type(other), context_key()))
            if run is not None:
                return run(self, other)
        return call((self, other), {}) if takes(self, other) else NotImplemented

    def swapped_operator(self: Any, other: Any) -> Any:
        if not recordings:
            run = quick((other._key if type(other) is Array else type(other), self._key, context_key()))
            if run is not None:
                return run(other, self)
        return call((other, self), {}) if takes(self, other) else NotImplemented

    return swapped_operator if swapped else operator


def unary_operator_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The operator of Python that an eager function of one operand is."""
    quick = function.eager.quick.get  # type: ignore[attr-defined]
    call = function.eager.call  # type: ignore[attr-defined]

    def operator(self: Any) -> Any:
        if not recordings:
            run = quick((self._key, context_key()))
            if run is not None:
                return run(self)
        return call((self,), {})

    return operator


class Eager:
    """One eager function.

    Attributes:
        quick: functions that run calls of one or two operands and one result, by the operands' keys (numbers:
            their types) and the context.
    """

    def __init__(
        self, name: str, body: Callable[..., Any], static: Sequence[str], sequences: Sequence[str],
        labels: Mapping[str, str], device: str | None,
    ) -> None:  # fmt: skip
        self.name = name
        self.body = body
        self.quick: dict[Any, Direct] = {}
        self._signature = Signature(body)
        self._staged = Staged(name, name)
        self._bound: dict[Hashable, Bound] = {}
        self._known: dict[Hashable, tuple[Callable[..., Any], tuple[int | str, ...]]] = {}
        self._fixed = frozenset((*static, device))
        self._arrays = tuple([n for n in self._signature.names if n not in static and n != device])
        self._sequences = frozenset((*sequences, self._signature.rest))
        self._static = tuple(static)
        self._labels = labels
        self._device = device

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The road that every call can take."""
        if current.trace is not None:
            return self._inline(self._signature.bind(args, kwargs))
        spelled = self._spelled(args, kwargs)
        found = self._known.get(spelled)
        if found is not None:
            run, picks = found
            return run(*[args[pick] if isinstance(pick, int) else kwargs[pick] for pick in picks])
        return self._look_up(args, kwargs, spelled)

    def _spelled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
        """The key of a call as it is written, without finding out which argument goes where; None where there is
        none."""
        fixed = self._fixed
        if len(args) > len(self._signature.names):
            return None
        parts: list[Any] = [context_key()]
        try:
            for name, arg in zip(self._signature.names, args, strict=False):
                parts.append(frozen(arg) if name in fixed else arg._key if type(arg) is Array else type(arg))
            for name, arg in kwargs.items():
                parts.append(name)
                parts.append(frozen(arg) if name in fixed else arg._key if type(arg) is Array else type(arg))
        except TypeError:
            return None
        return tuple(parts)

    def _look_up(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], spelled: Hashable) -> Any:
        values = self._signature.bind(args, kwargs)
        self._check(values)
        operands, structure = flatten(tuple([values[name] for name in self._arrays]))
        statics = tuple([frozen(values[name]) for name in self._static])
        target = self._target(values)
        context = context_key()
        key = (structure, tuple(map(quick_key, operands)), statics, target, context.unguarded)
        bound = self._bound.get(key)
        if bound is None:
            with nullcontext() if target is None else set_mesh(None):  # where the results go has been said
                bound = self._bind(operands, structure, values, statics, target)
            keep(self._bound, key, bound)
        if armed:
            judge_call(bound.executable, operands)
            if context.levels is not None and not moves_nothing(bound.executable):
                return bound(operands)  # to be judged the next time, too
        if spelled is not None and self._signature.rest is None:
            self._remember(args, kwargs, spelled, bound)
        return bound(operands)

    def _remember(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], spelled: Hashable, bound: Bound
    ) -> None:
        """Let the next call of this kind take a quicker road, where all its operands are arrays and numbers."""
        given = {**dict(zip(self._signature.names, args, strict=False)), **kwargs}
        position = {name: i for i, name in enumerate(self._signature.names[: len(args)])}
        operands = [name for name in self._arrays if given.get(name) is not None]
        if len(operands) < len(bound.program.inputs):  # some come from defaults
            return
        if not all(type(given[name]) is Array or is_scalar(given[name]) for name in operands):
            return
        keep(self._known, spelled, (bound.direct, tuple([position.get(name, name) for name in operands])))
        plain = not kwargs and len(args) <= 2 and operands == list(self._signature.names[: len(args)])
        if plain and bound.is_single:
            keep(self.quick, (*map(quick_key, args), context_key()), bound.direct)

    def _bind(
        self, operands: list[Any], structure: Any, values: Mapping[str, Any], statics: Hashable, target: Sharding | None
    ) -> Bound:
        def body(tracers: Sequence[Tracer]) -> Any:
            given = dict(values)
            given.update(zip(self._arrays, unflatten(structure, tracers), strict=True))
            return self._run_body(given)

        return self._staged.bind(
            (structure, statics), operands, lambda: self._names(structure), body,
            out_shardings=None if target is None else lambda traced: [target] * len(traced.program.outputs),
        )  # fmt: skip

    def _names(self, structure: Any) -> list[str]:
        """The operands' names, as errors print them."""
        names = []
        for accessor in structure.accessors():
            name = self._arrays[accessor[0].entry]
            names.append(self._labels.get(name, name) + path_text(accessor[1:]))
        return names

    def _check(self, values: Mapping[str, Any]) -> None:
        for position, name in enumerate(self._arrays):
            value = values[name]
            if name in self._sequences:
                self._check_items(value)
            elif isinstance(value, _CONTAINERS) or (value is None and name in self._signature.required):
                raise not_an_array(self.name, value, position)

    def _check_items(self, values: Any) -> None:
        for position, value in enumerate(values):
            if value is None or isinstance(value, _CONTAINERS):
                raise not_an_array(self.name, value, position)

    def _target(self, values: Mapping[str, Any]) -> Sharding | None:
        if self._device is None:
            return None
        target = read_target(values[self._device])
        return SingleDeviceSharding(target) if isinstance(target, Device) else target

    # ------------------------------------------------------------------ tracing

    def _inline(self, values: Mapping[str, Any]) -> Any:
        """Run the body in the trace that is going on."""
        self._check(values)
        given = dict(values)
        for name in self._arrays:
            value = values[name]
            if name in self._sequences:
                given[name] = map_leaves(lift, value)
            elif value is not None:
                given[name] = lift(value)
        result = self._run_body(given)
        target = self._target(values)
        if target is None:
            return result
        return map_leaves(lambda leaf: constrain(leaf, target, "device_put inside jit"), result)

    def _run_body(self, given: dict[str, Any]) -> Any:
        if self._device is not None:
            given[self._device] = None
        return self._signature.call(self.body, given)
