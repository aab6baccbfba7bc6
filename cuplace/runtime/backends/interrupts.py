"""Uninterrupted: Ctrl-C waits until the work in hand is finished.

A thread that waits runs queued work itself. In the main thread an interrupt could strike in the middle of it: the
work would be half done, and a wait that the user gave up would have spoilt a value that nobody will compute again.
"""

from __future__ import annotations

import threading

# What module `signal` wraps; its wrappers convert to enums, which costs ten times the call.
from _signal import getsignal, signal  # type: ignore[import-not-found]
from collections.abc import Callable
from signal import SIGINT
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


class Uninterrupted:
    """Context manager: an interrupt that arrives inside is delivered at its end. Only the main thread gets any."""

    __slots__ = ("_caught", "_handler")

    def __init__(self) -> None:
        self._handler: Handler | None = None
        self._caught: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        handler: Any = getsignal(SIGINT)
        if callable(handler):  # else the system or another library handles it, and nothing is raised here
            self._handler = handler
            signal(SIGINT, self._catch)

    def __exit__(self, *exception: object) -> None:
        handler, self._handler = self._handler, None
        if handler is None:
            return
        signal(SIGINT, handler)
        if self._caught:
            handler(*self._caught[0])

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self._caught.append((number, frame))
