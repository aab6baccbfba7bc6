"""OpenBLAS and its like run on one thread inside strands: the strands are the parallelism."""

from __future__ import annotations

import threading
from typing import Any


class SingleThreadedBlas:
    """A context manager, entered by any number of workers at once: the first one in limits the libraries that
    NumPy has loaded to one thread, the last one out gives them back what they had.

    Libraries over OpenMP count threads for each calling thread, so there each worker has a limit of its own.
    """

    def __init__(self) -> None:
        from threadpoolctl import ThreadpoolController

        libraries = [library for library in ThreadpoolController().lib_controllers if library.user_api == "blas"]
        self._shared = [library for library in libraries if not _is_per_thread(library)]
        self._per_thread = [library for library in libraries if _is_per_thread(library)]
        self._lock = threading.RLock()  # re-entrant: a destructor that computes may run under it
        self._inside = 0
        self._before: list[int] = []
        self._mine = threading.local()

    def __enter__(self) -> None:
        if self._per_thread:
            self._mine.before = _limit(self._per_thread)
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = _limit(self._shared)

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                _restore(self._shared, self._before)
        if self._per_thread:
            _restore(self._per_thread, self._mine.before)


def _is_per_thread(library: Any) -> bool:
    return getattr(library, "threading_layer", None) == "openmp"


def _limit(libraries: list[Any]) -> list[int]:
    """Let the libraries use one thread; how many they used before."""
    before = [library.num_threads for library in libraries]
    _restore(libraries, [1] * len(libraries))
    return before


def _restore(libraries: list[Any], counts: list[int]) -> None:
    for library, count in zip(libraries, counts, strict=True):
        # In recent versions of threadpoolctl `set_num_threads` does nothing in any thread but the first one that
        # called it. Here the first one in and the last one out may be any workers; the lock keeps them apart.
        getattr(library, "_real_set_num_threads", library.set_num_threads)(count)
