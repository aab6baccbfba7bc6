"""Uncollected: code that no garbage collection interrupts, and so no destructor that computes.

For the simulator and the race detector, whose steps are many and short, and for work that a waiting thread does. What
is there for speed bears destructors instead: switching collections off is seen by all threads.
"""

from __future__ import annotations

import gc


class Uncollected:
    """Inside of the ``with`` block no garbage is collected, unless somebody calls ``gc.collect``.

    >>> import gc
    >>> with Uncollected():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """

    __slots__ = ("_collects",)

    def __enter__(self) -> None:
        self._collects = gc.isenabled()
        gc.disable()

    def __exit__(self, *exception: object) -> None:
        if self._collects:
            gc.enable()
