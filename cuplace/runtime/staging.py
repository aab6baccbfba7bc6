"""Staging: memory of a GPU that boxes with short rows are packed into on their way to another one. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from cuplace.runtime.strided import contiguous_strides, strided_copy

UNIT = 512
"""Staging memory comes in multiples of so many bytes, as CuPy's pools give it."""

CHUNK_BYTES = 32 << 20
"""What is packed is cut into chunks of at most so many bytes, which bounds the memory for it and lets the steps
overlap."""

IN_FLIGHT = 2
"""Chunks of a copy that are on their way at a time: one is packed while another one travels."""


class Staging(NamedTuple):
    """For both ends of a copy: whether it needs staging memory there, or the memory, an array of bytes; or None."""

    sent: Any
    received: Any


NO_STAGING = Staging(None, None)


class Chunking(NamedTuple):
    """Chunks of so many bytes at most, and how many of them are in flight."""

    nbytes: int
    in_flight: int


@lru_cache(maxsize=4096)
def packed_ends(
    shape: tuple[int, ...], itemsize: int, source_strides: tuple[int, ...], target_strides: tuple[int, ...]
) -> Staging:
    """At which ends a box is packed that travels between two GPUs: nowhere if copy engines do it well, else where it
    is not contiguous.

    >>> packed_ends((8, 4), 4, (64, 4), (16, 4))
    Staging(sent=True, received=False)
    >>> packed_ends((8, 1024), 4, (8192, 4), (8192, 4))
    Staging(sent=False, received=False)
    """
    strided = strided_copy(shape, itemsize, source_strides, target_strides)
    if strided is None or strided.suits_engines:
        return Staging(False, False)
    dense = contiguous_strides(shape, itemsize)
    return Staging(*[not _is_flat(shape, itemsize, strides, dense) for strides in (source_strides, target_strides)])


def _is_flat(shape: tuple[int, ...], itemsize: int, strides: tuple[int, ...], dense: tuple[int, ...]) -> bool:
    strided = strided_copy(shape, itemsize, strides, dense)
    return strided is None or strided.is_flat


def most_staging(nbytes: int) -> int:
    """The bytes beyond which more staging memory for a copy of so many bytes is of no use.

    >>> most_staging(1000), most_staging(1 << 30) == 2 * CHUNK_BYTES
    (1024, True)
    """
    return min(-(-nbytes // UNIT) * UNIT, IN_FLIGHT * CHUNK_BYTES)


def chunking(nbytes: int, *rooms: int) -> Chunking:
    """Into which chunks a copy of so many bytes is cut that has this much staging memory at its ends.

    >>> chunking(1000, 1024), chunking(4096, 2048), chunking(4096, 2048, 512)
    (Chunking(nbytes=1000, in_flight=1), Chunking(nbytes=1024, in_flight=2), Chunking(nbytes=512, in_flight=1))
    """
    room = min(rooms)
    if nbytes <= min(room, CHUNK_BYTES):
        return Chunking(nbytes, 1)
    part = min(room // IN_FLIGHT // UNIT * UNIT, CHUNK_BYTES)
    return Chunking(part, IN_FLIGHT) if part else Chunking(room, 1)
