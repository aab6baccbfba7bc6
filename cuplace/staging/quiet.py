"""Quiet: computing with NumPy's warnings about overflow and the like off, whatever the calling thread has set."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cuplace.staging.script import function_of


class _Quiet:
    """A context in which NumPy does not warn.

    Entering ``np.errstate`` costs more than a small operation; running in a prepared context costs little.
    """

    __slots__ = ("entered", "run")

    def __init__(self) -> None:
        context = contextvars.Context()
        context.run(lambda: np.seterr(all="ignore"))
        self.run = context.run
        self.entered = False


class _Thread(threading.local):
    def __init__(self) -> None:
        self.quiet = _Quiet()


_thread = _Thread()


def quietly(function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` with warnings off; inside of it they need not be turned off again."""
    quiet = _thread.quiet
    if quiet.entered:
        return function(*args)
    quiet.entered = True
    try:
        return quiet.run(function, *args)
    finally:
        quiet.entered = False


_LINES = (
    "quiet = thread.quiet",
    "if quiet.entered:",  # a finalizer that runs inside a call computes, too
    "    function({operands})",
    "else:",
    "    quiet.entered = True",
    "    try:",
    "        quiet.run(function, {operands})",
    "    finally:",
    "        quiet.entered = False",
)


def quieted(
    function: Callable[..., Any], operands: str = "reads, writes, numbers", names: Mapping[str, Any] | None = None
) -> Callable[..., None]:  # fmt: skip
    """The function ``work(reads, writes, numbers)`` that calls ``function`` with warnings off.

    It does what `quietly` does, in lines of its own: passing operands on through one more call would cost as much as
    the context does.

    Args:
        function: what is called.
        operands: with what, as expressions.
        names: what else the expressions name.

    >>> out = np.empty(1)
    >>> quieted(np.divide, "reads[0], numbers[0], writes[0]")([np.ones(1)], [out], (0,))
    >>> out
    array([inf])
    """
    lines = [line.format(operands=operands) for line in _LINES]
    known = {"thread": _thread, "function": function, **(names or {})}
    return function_of("reads, writes, numbers", lines, known, "call")
