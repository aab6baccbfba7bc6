"""Fetching: reading values on the host ahead of their use, many arrays at once, or one array piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.array.array import Array
from cuplace.array.interop import values_of
from cuplace.errors import NotAnArrayError, PieceBytesError
from cuplace.runtime.caller import caller
from cuplace.runtime.config import config
from cuplace.runtime.guard import armed
from cuplace.transfer.fetch import Fetching, Wanted, begin_fetches
from cuplace.transfer.guarded import judge_fetch

if TYPE_CHECKING:
    from cuplace.placement.layout import Layout
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line

PIECE_BYTES = 192 << 20
"""What `iter_host` holds at most where the caller does not say."""

_PIECES = 3  # what the caller still has, what comes next, and what is on its way


def read_all(arrays: Sequence[Array]) -> list[np.ndarray]:
    """The values of all the arrays; all copies that ``staging_bytes`` of host memory hold begin before any is waited
    for.

    Raises:
        DeletedArrayError: a RuntimeError, where an array has been deleted. Nothing has been enqueued then.
        TransferGuardError: a RuntimeError; likewise.
        The original error of the work that should have made the values.
    """
    for array in arrays:
        array._live()
        if armed:
            judge_fetch(array.shape, array.dtype, array.sharding, True)
    if len(arrays) == 1 and arrays[0].is_fully_replicated:
        return [values_of(arrays[0])]  # nothing else is there to be copied meanwhile
    line, room = caller(), config.staging_bytes
    begun, values = 0, []
    for i, array in enumerate(arrays):
        first = begun
        while begun < len(arrays) and arrays[begun].nbytes <= room:
            room -= arrays[begun].nbytes
            begun += 1
        begin_reading(arrays[first:begun], line)
        values.append(_read(array))
        if i < begun:
            room += array.nbytes
        else:
            begun += 1  # too large to be copied ahead
    return values


def begin_reading(arrays: Sequence[Array], line: Line | None) -> None:
    """Let the values of arrays be copied to pinned memory, where the host will look for them; waits for nothing.

    Where there is no host memory for that, nothing happens: values are then copied when they are read.

    Raises:
        DeletedArrayError: a RuntimeError, where an array has been deleted.
    """
    begun: dict[int, tuple[Array, list[Wanted]]] = {}
    for array in arrays:
        buffers = array._live()
        if array._host is None and id(array) not in begun:
            holders = array.sharding.layout(array.shape).holders.values()
            begun[id(array)] = array, [Wanted(buffers[shards[0]]) for shards in holders]
    try:
        arriving = iter(begin_fetches([one for _, wanted in begun.values() for one in wanted], line))
    except MemoryError:
        return
    for array, wanted in begun.values():
        targets = [next(arriving) for _ in wanted]
        if any(targets):
            array._host = Fetching(targets)


def _read(array: Array) -> np.ndarray:
    """The values. Pinned memory that they came in is given back: what is kept for long should not be pinned."""
    fetching = array._host
    values = values_of(array)
    if type(fetching) is Fetching and len(fetching.buffers) == 1:
        values = np.array(values)
        values.flags.writeable = False
        array._host = values
    return values


def iter_host(x: Array, max_bytes: int = PIECE_BYTES) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    """The values of `x` on the host, piece by piece; each piece is copied while the one before it is worked on.

    For arrays that are larger than the memory of the host should hold at a time. Pieces of one shard follow one
    another; they do not overlap, and cover the array. An array without elements has no pieces.

    Args:
        x: an array.
        max_bytes: host memory that is used at most: for the piece that the loop has, for the next one, and for the
            one after it, which is on its way. The memory of a piece is used again when nothing refers to it, so
            keep a copy of what is to be kept.

    Returns:
        An iterator of the index of a piece in the whole array, a tuple of slices, and its values, a read-only NumPy
        array. Closing it (`iterator.close()`), or dropping it, gives all memory back.

    Raises:
        PieceBytesError: a ValueError, where `max_bytes` does not hold three elements.
        DeletedArrayError: a RuntimeError, where the array has been deleted. Deleting it later does not matter.
        NotAnArrayError: a TypeError, for what is no array.
        TransferGuardError: a RuntimeError, where a guard forbids also explicit transfers to the host.

    >>> import numpy as np, cuplace
    >>> x = cuplace.device_put(np.arange(6, dtype="int32"))
    >>> for index, values in cuplace.iter_host(x, max_bytes=48):
    ...     print(index, values)
    (slice(0, 4, None),) [0 1 2 3]
    (slice(4, 6, None),) [4 5]
    """
    if type(x) is not Array:
        if isinstance(x, Array):
            np.asarray(x)  # a traced value, which raises
        raise NotAnArrayError(x)
    buffers = x._live()
    most = max_bytes // (_PIECES * x.itemsize)
    if most < 1:
        raise PieceBytesError(max_bytes, _PIECES * x.itemsize)
    if armed:
        judge_fetch(x.shape, x.dtype, x.sharding, True)
    return _pieces(buffers, x.sharding.layout(x.shape), most, caller())


def _pieces(buffers: Sequence[Buffer], layout: Layout, most: int, line: Line | None) -> Iterator[Any]:
    scheduler = buffers[0].device.scheduler
    wanted = (
        (piece, Wanted(buffers[shards[0]], None if piece == box else piece.within(box)))
        for box, shards in layout.holders.items()
        for piece in box.pieces(most)
    )
    begun = ((piece, one, begin_fetches([one], line)[0]) for piece, one in wanted)
    coming = next(begun, None)
    while coming is not None:
        piece, (buffer, part), arriving = coming
        coming = next(begun, None)
        values = scheduler.download(arriving or buffer)
        if arriving is None and part is not None:
            values = values[part]
        del arriving
        yield piece.slices(), values
        del values
