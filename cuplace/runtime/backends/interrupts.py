"""Uninterrupted: what handlers of signals raise waits until the work in hand is finished.

Ctrl-C raises in the middle of whatever the main thread does, and so do other handlers of the user's: one that ends a
test that takes too long, one that turns a request to end into SystemExit. Queued work that a waiting thread runs
itself would be half done, and a wait that the user gave up would have spoilt a value that nobody computes again.
"""

from __future__ import annotations

import os
import signal as names
import threading

# What module `signal` wraps; its wrappers convert to enums, which costs ten times the call.
from _signal import getsignal, signal  # type: ignore[import-not-found]
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

SIGNALS = tuple(
    int(getattr(names, name))
    for name in ("SIGINT", "SIGALRM", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF")
    if hasattr(names, name)
)
"""Signals whose handlers may raise in a program that goes on afterwards."""

_main = threading.main_thread().ident
_outermost: Uninterrupted | None = None


class Uninterrupted:
    """Context manager: signals that arrive inside reach their handlers at its end. Only the main thread gets any.

    ``ring`` is called when one arrives, so that a sleep inside can end.
    """

    __slots__ = ("_caught", "_handlers", "_ring")

    def __init__(self, ring: Callable[[], object] | None = None) -> None:
        self._handlers: list[tuple[int, Handler]] | None = None
        self._caught: list[tuple[int, FrameType | None]] = []
        self._ring = ring

    def __enter__(self) -> None:
        global _outermost
        if threading.get_ident() != _main or _outermost is not None:
            return
        # Where it is not callable, the system or another library handles it, and nothing is raised here.
        found = [(number, handler) for number in SIGNALS if callable(handler := getsignal(number))]
        try:
            for number, _ in found:
                signal(number, self._catch)
            self._handlers = found
            _outermost = self
        except BaseException:  # of a handler that was not replaced yet
            self._give_back(found)
            raise

    def __exit__(self, *exception: object) -> None:
        global _outermost
        handlers, self._handlers = self._handlers, None
        if handlers is None:
            return
        _outermost = None
        self._give_back(handlers)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self._caught.append((number, frame))
        if self._ring is not None:
            self._ring()

    def _give_back(self, handlers: list[tuple[int, Handler]]) -> None:
        left, raised = list(handlers), None
        while left:
            try:
                while left:
                    number, handler = left[-1]
                    if getsignal(number) == self._catch:  # else work inside has set another one
                        signal(number, handler)
                    left.pop()
            except BaseException as error:  # of a handler that is back already, and at once called
                raised = error
        try:
            if raised is not None:
                raise raised
        finally:
            if self._caught:
                self._deliver(dict(handlers))

    def _deliver(self, handlers: dict[int, Handler]) -> None:
        number, frame = self._caught.pop(0)
        try:
            handlers[number](number, frame)
        finally:
            if self._caught:
                self._deliver(handlers)


def is_interrupt(error: BaseException) -> bool:
    """Whether a handler of signals has raised ``error``, and not the work in which it did."""
    if not isinstance(error, Exception):
        return True
    codes = {_code(getsignal(number)) for number in SIGNALS} - {None}
    traceback: TracebackType | None = error.__traceback__
    while codes and traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False


def _code(handler: Any) -> object:
    """The code of a handler that is a function or a method."""
    return getattr(getattr(handler, "__func__", handler), "__code__", None)


def _start_anew_in_child() -> None:
    global _main, _outermost
    _main, _outermost = threading.get_ident(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew_in_child)
