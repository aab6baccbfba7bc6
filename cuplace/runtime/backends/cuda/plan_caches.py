"""Plans of cuFFT, kept apart by lane.

A plan has scratch memory of its own, and CuPy keeps plans by thread and GPU. Partitions of one GPU run at the same
time, so a plan that they shared would be a race: where a lane is current, CuPy's functions find the plans of that lane.
"""

from __future__ import annotations

import threading
from collections.abc import MutableMapping
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import cupy
from cupy.fft import _fft

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.lane import Lane

_find_shared = _fft.get_plan_cache  # CuPy's own
_lanes: WeakValueDictionary[int, Lane] = WeakValueDictionary()  # by handle


class _OfThread(threading.local):
    """The caches of one thread, as CuPy has them: a plan is not made for several at once."""

    def __init__(self) -> None:
        self.caches: MutableMapping[Lane, Any] = WeakKeyDictionary()


_mine = _OfThread()


def keep_apart(lane: Lane) -> None:
    """From now on plans that are made while ``lane`` is current are for it alone."""
    _lanes[lane.ptr] = lane
    _replace()


def find() -> Any:
    """The cache for the current stream, in the place of CuPy's function."""
    lane = _lanes.get(int(cupy.cuda.get_current_stream().ptr))
    if lane is None:
        return _find_shared()
    found = _mine.caches.get(lane)
    if found is None:
        found = _mine.caches[lane] = type(_find_shared())(dev=lane.gpu.ordinal)
    return found


@cache
def _replace() -> None:
    _fft.get_plan_cache = find
