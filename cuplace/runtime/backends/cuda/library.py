"""The array module of the cuda platform: CuPy, with one door for what its libraries compute."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import cupy

from cuplace.runtime.backends.cuda import hooks

FUNCTIONS = frozenset({
    "argsort", "dot", "einsum", "inner", "lexsort", "matmul", "outer", "sort", "tensordot", "unique", "vdot",
})  # fmt: skip
"""Functions of CuPy that cuBLAS or Thrust compute."""

MODULES = frozenset({"fft", "linalg"})
"""Modules of CuPy whose functions cuFFT, cuBLAS and cuSOLVER compute."""


class ArrayModule:
    """CuPy's functions by name; those of libraries go through ``hooks.library`` where a test has set it.

    The handles that CuPy keeps for the libraries follow the current stream, which is the one that work runs on.
    """

    def __init__(self, module: ModuleType = cupy, prefix: str = "") -> None:
        self._module = module
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        # Reached once for each name: then it is an attribute.
        value = getattr(self._module, name)
        if self._prefix or name in FUNCTIONS:
            value = _through_hook(self._prefix + name, value) if callable(value) else value
        elif name in MODULES:
            value = ArrayModule(value, name + ".")
        setattr(self, name, value)
        return value

    def __repr__(self) -> str:
        return f"ArrayModule({self._module.__name__})"


def _through_hook(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if hooks.library is None:
            return function(*args, **kwargs)
        return hooks.library(name, function, args, kwargs)

    return call
