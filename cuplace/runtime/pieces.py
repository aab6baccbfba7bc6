"""Cutting a box into pieces of bounded size, and copying on the host with several threads. Knows nothing of CUDA."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt

Host = npt.NDArray[Any]
Index = tuple[slice | EllipsisType, ...]

_PARALLEL_BYTES = 4 << 20  # below it, handing parts to other threads costs more than they save
_MOST_THREADS = 8  # enough to fill the memory bus of the machines that GPUs stand in


def pieces(shape: tuple[int, ...], itemsize: int, limit: int) -> Iterator[Index]:
    """Cut a box into parts of at most ``limit`` bytes (or one element), each contiguous in a C-contiguous array.

    They come in C order, so that their bytes one after the other are those of the array. Indexing with one always
    gives an array, also where there are no dimensions.

    >>> list(pieces((3, 4), 1, 8))
    [(slice(0, 2, None), Ellipsis), (slice(2, 3, None), Ellipsis)]
    """
    if 0 in shape:
        return
    if math.prod(shape) * itemsize <= limit or not shape:
        yield (...,)
        return
    inner = math.prod(shape[1:]) * itemsize
    rows = limit // inner
    if rows:
        for start in range(0, shape[0], rows):
            yield (slice(start, min(start + rows, shape[0])), ...)
        return
    for i in range(shape[0]):
        for rest in pieces(shape[1:], itemsize, limit):
            yield (slice(i, i + 1), *rest)


def copy_host(target: Host, source: Host) -> None:
    """``target[...] = source``, cast as needed, with several threads where that pays."""
    if target.nbytes < _PARALLEL_BYTES or _threads() == 1:
        np.copyto(target, source, casting="unsafe")
        return
    source = np.broadcast_to(source, target.shape)
    parts = list(pieces(target.shape, target.itemsize, max(target.nbytes // _threads(), 1 << 20)))
    list(_pool().map(lambda part: np.copyto(target[part], source[part], casting="unsafe"), parts))


@cache
def _threads() -> int:
    return min(len(os.sched_getaffinity(0)), _MOST_THREADS)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_threads(), thread_name_prefix="cuplace-copy")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
