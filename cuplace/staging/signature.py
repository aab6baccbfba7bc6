"""Signature: which argument goes to which parameter; quick where a call is right, Python's error where it is not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

_MISSING = object()


class Signature:
    """The parameters of a function.

    Attributes:
        names: of all parameters, in order, that of ``*args`` among them. There is no ``**kwargs``.
        rest: the name of ``*args``, or None.
        required: the parameters that every call gives a value, ``*args`` aside.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._full = inspect.signature(function)
        parameters = list(self._full.parameters.values())
        self.names = tuple([p.name for p in parameters])
        self._positional = tuple(
            [p.name for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
        )
        self._by_name = frozenset(
            [p.name for p in parameters if p.kind in (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
        )
        self.rest = next((p.name for p in parameters if p.kind is Parameter.VAR_POSITIONAL), None)
        self.required = frozenset([p.name for p in parameters if p.default is Parameter.empty]) - {self.rest}
        self._keyword_only = tuple([p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY])
        self._defaults = {p.name: _MISSING if p.default is Parameter.empty else p.default for p in parameters}
        if self.rest is not None:
            self._defaults[self.rest] = ()

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The value of each parameter, in the order of the parameters.

        Raises:
            TypeError: Python's own, for a call that does not fit.
        """
        values = dict(self._defaults)
        count = len(self._positional)
        values.update(zip(self._positional, args, strict=False))
        fits = len(args) <= count or self.rest is not None
        if self.rest is not None:
            values[self.rest] = args[count:]
        for name, value in kwargs.items():
            fits = fits and name in self._by_name and name not in self._positional[: len(args)]
            values[name] = value
        if not fits or any(value is _MISSING for value in values.values()):
            self._full.bind(*args, **kwargs)
            raise TypeError(f"call does not fit the signature {self._full}")
        return values

    def call(self, function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        """``function`` called with these values of its parameters."""
        args = [values[name] for name in self._positional]
        if self.rest is not None:
            args += values[self.rest]
        return function(*args, **{name: values[name] for name in self._keyword_only})
