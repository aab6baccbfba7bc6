"""Condition: where threads sleep until something has changed, whole wherever an interrupt arrives."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Any

from cuplace.runtime.backends.interrupts import Uninterrupted


class Condition:
    """As `threading.Condition` over a re-entrant lock, which an interrupt at the wrong instruction leaves with a
    lock that nobody holds, or with a sleeper that is gone and takes a notification from one that is there.

    ``with condition:`` takes the lock. All methods are called with it held, once or several times.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._sleepers: deque[Any] = deque()

    def __enter__(self) -> Any:
        return self._lock.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._lock.__exit__(*exception)

    def wait(self) -> None:
        """Let the lock go, sleep until somebody notifies, and take the lock again. It may end earlier, so the caller
        looks again at what it waits for. An interrupt ends it, too, with the lock held."""
        bell = threading.Lock()
        bell.acquire()
        with Uninterrupted(lambda: _ring(bell)):
            self._sleepers.append(bell)
            held = self._lock._release_save()
            bell.acquire()
            self._lock._acquire_restore(held)
            with suppress(ValueError):  # whoever notified has taken it out
                self._sleepers.remove(bell)

    def notify(self, count: int = 1) -> None:
        """Wake so many of those that sleep."""
        while self._sleepers and count > 0:
            bell = self._sleepers[0]
            count -= _ring(bell)
            with suppress(ValueError):
                self._sleepers.remove(bell)

    def notify_all(self) -> None:
        """Wake all that sleep."""
        self.notify(len(self._sleepers))


def _ring(bell: Any) -> bool:
    """Wake whoever sleeps on a bell; whether nobody had done so before."""
    try:
        bell.release()
    except RuntimeError:
        return False
    return True
