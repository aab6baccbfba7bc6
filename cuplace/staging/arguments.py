"""Arguments of jitted functions: which are static, which are donated, and what errors call each of them."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Any

from cuplace import errors
from cuplace.staging.staged import path_text

Nums = tuple[int, ...]
Names = tuple[str, ...]


class Chosen:
    """Arguments chosen by position and by name, as ``static_argnums`` and ``static_argnames`` do.

    Each is chosen both ways where the function's signature tells: an argument chosen by position is also meant when
    it is passed by keyword, and the other way round.
    """

    def __init__(self, kind: str, function: Callable[..., Any], nums: Any, names: Any) -> None:
        """``kind`` is ``static`` or ``donate``.

        Raises:
            StaticArgumentError: a ValueError; there is no such argument.
            TypeError: a position is no integer, a name no string.
        """
        given_nums = _integers(nums)
        given_names = _strings(names)
        parameters = _parameters(function)
        if parameters is not None:
            _check(kind, parameters, given_nums, given_names)
            count = len(_positional(parameters))
            given_nums = tuple([n + count if n < 0 else n for n in given_nums])
        self.nums = frozenset(given_nums)
        self.names = frozenset(given_names)
        if parameters is not None:
            positional = _positional(parameters)
            self.names |= {positional[n] for n in self.nums if n < len(positional)}
            self.nums |= {i for i, name in enumerate(positional) if name in self.names}

    def __bool__(self) -> bool:
        return bool(self.nums or self.names)

    def split(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], tuple[tuple[Any, Any], ...]]:
        """The other arguments, positional (None in the place of chosen ones) and by keyword, and the chosen ones."""
        chosen = [(i, arg) for i, arg in enumerate(args) if i in self.nums]
        chosen += [(name, kwargs[name]) for name in sorted(kwargs) if name in self.names]
        rest = tuple([None if i in self.nums else arg for i, arg in enumerate(args)])
        return rest, {name: value for name, value in kwargs.items() if name not in self.names}, tuple(chosen)


def merged(
    args: Sequence[Any], kwargs: Mapping[str, Any], chosen: Iterable[tuple[Any, Any]]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments with the chosen ones put back in their places."""
    full_args, full_kwargs = list(args), dict(kwargs)
    for where, value in chosen:
        if isinstance(where, int):
            full_args[where] = value
        else:
            full_kwargs[where] = value
    return full_args, full_kwargs


def static_key(value: Any) -> Any:
    """A static argument as part of a key: two of different types never match.

    Raises:
        StaticArgumentError: a ValueError; the value is not hashable.
    """
    try:
        hash(value)
    except TypeError as error:
        raise errors.StaticArgumentError(
            "Non-hashable static arguments are not supported. An error occurred while trying to hash an object of "
            f"type {type(value)}, {value}. The error was:\nTypeError: {error}\n"
            "Pass something that does not change: a tuple in the place of a list, or the array as an argument that is "
            "not static."
        ) from None
    return type(value), value


def argument_names(function: Callable[..., Any], structure: Any) -> list[str]:
    """The names of the leaves of ``(args, kwargs)``: ``x``, ``t['p'][0]``, ``args[1]``."""
    parameters = _parameters(function)
    positional = _positional(parameters) if parameters is not None else []
    rest = next((p.name for p in parameters or () if p.kind is Parameter.VAR_POSITIONAL), "args")
    keywords = next((p.name for p in parameters or () if p.kind is Parameter.VAR_KEYWORD), "kwargs")
    named = {p.name for p in parameters or ()} - {rest, keywords}
    return [_name(accessor, positional, rest, keywords, named) for accessor in structure.accessors()]


def _name(accessor: Any, positional: Sequence[str], rest: str, keywords: str, named: set[str]) -> str:
    group, which = accessor[0].entry, accessor[1].entry
    if group == 0:
        root = positional[which] if which < len(positional) else f"{rest}[{which - len(positional)}]"
        if not positional and rest == "args":
            root = f"args[{which}]"
    else:
        root = which if which in named else f"{keywords}[{which!r}]"
    return root + path_text(accessor[2:])


def _parameters(function: Callable[..., Any]) -> list[Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def _positional(parameters: Sequence[Parameter]) -> list[str]:
    return [p.name for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]


def _integers(nums: Any) -> Nums:
    if nums is None:
        return ()
    if isinstance(nums, Sequence) and not isinstance(nums, str):
        return tuple([operator.index(n) for n in nums])
    return (operator.index(nums),)


def _strings(names: Any) -> Names:
    if names is None:
        return ()
    given = (names,) if isinstance(names, str) else tuple(names)
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"names of arguments are strings, got {name!r} of type {type(name).__name__}")
    return given


def _check(kind: str, parameters: Sequence[Parameter], nums: Nums, names: Names) -> None:
    kinds = {p.kind for p in parameters}
    count = len(_positional(parameters))
    if Parameter.VAR_POSITIONAL not in kinds and any(not -count <= n < count for n in nums):
        raise errors.StaticArgumentError(
            f"Jitted function has {kind}_argnums={nums}, but only accepts {count} positional arguments."
        )
    unknown = set(names) - {p.name for p in parameters}
    if unknown and Parameter.VAR_KEYWORD not in kinds:
        raise errors.StaticArgumentError(
            f"Jitted function has invalid argnames {unknown} in {kind}_argnames. Function does not take these args."
        )
