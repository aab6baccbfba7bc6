"""Uncollected: code that no garbage collection interrupts, and so no destructor that computes.

For the simulator and the race detector, whose steps are many and short, for work that a waiting thread does, and for
locks that whoever enqueues takes after the scheduler's: a destructor under such a lock would take them the other way
round. What is there for speed bears destructors instead: switching collections off is seen by all threads.
"""

from __future__ import annotations

import gc
import threading

_lock = threading.RLock()  # re-entrant: a handler of a signal may come by here, too
_depth = 0
_collected = False  # before the first of those that are inside now


class Uncollected:
    """Inside of the ``with`` block no garbage is collected in any thread, unless somebody calls ``gc.collect``.

    >>> import gc
    >>> with Uncollected():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """

    __slots__ = ()

    def __enter__(self) -> None:
        stop_collecting()

    def __exit__(self, *exception: object) -> None:
        collect_again()


def stop_collecting() -> None:
    """What the block does at its start. It makes no object, which could collect: no ``with``, which binds methods."""
    global _depth, _collected
    try:
        _lock.acquire()
        if not _depth:
            _collected = gc.isenabled()
        gc.disable()
        _depth += 1
    finally:
        _let_go()


def collect_again() -> None:
    """The end of that: collections are as before, once all threads have come here."""
    global _depth
    try:
        _lock.acquire()
        _depth -= 1
        if not _depth and _collected:
            gc.enable()
    finally:
        _let_go()


def _let_go() -> None:
    if _lock._is_owned():  # type: ignore[attr-defined]  # else an interrupt came instead of the lock
        _lock.release()
