"""OpenBLAS and its like run on one thread inside strands: the strands are the parallelism."""

from __future__ import annotations

import threading
from typing import Any


class SingleThreadedBlas:
    """A context manager, entered by any number of workers at once: the first one in limits the libraries that
    NumPy has loaded to one thread, the last one out gives them back what they had."""

    def __init__(self) -> None:
        from threadpoolctl import ThreadpoolController

        self._libraries: list[Any] = [
            library for library in ThreadpoolController().lib_controllers if library.user_api == "blas"
        ]
        self._lock = threading.Lock()
        self._inside = 0
        self._before: list[int] = []

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = [library.num_threads for library in self._libraries]
                for library in self._libraries:
                    library.set_num_threads(1)

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                for library, count in zip(self._libraries, self._before, strict=True):
                    library.set_num_threads(count)
