"""Packing: which uploads of a batch are enqueued together, as one piece of work with one event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Stream
    from cuplace.runtime.buffer import Buffer

Pair: TypeAlias = "tuple[Buffer, np.ndarray[Any, Any]]"
"""Where to, and what."""

SMALL_BYTES = 64 << 10
"""Uploads of at most so many bytes are packed: of larger ones the copy itself takes longer than enqueueing it."""

PACKED_BYTES = 1 << 20
"""What is packed together at most: whoever needs one of them waits for all."""

WORTHWHILE = 16
"""Pairs of a batch that is packed; fewer are mostly the shards of one array, each on a device of its own."""


def packed(pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
    """The pairs in groups, each for one stream. Of a stream their order stays as it is."""
    open_groups: dict[Stream, list[Pair]] = {}
    sizes: dict[Stream, int] = {}
    for pair in pairs:
        buffer = pair[0]
        stream = buffer.block.arena.memory.upload
        group = open_groups.setdefault(stream, [])
        size = sizes.get(stream, 0) + buffer.nbytes
        if group and (buffer.nbytes > SMALL_BYTES or size > PACKED_BYTES):
            yield group
            group = open_groups[stream] = []
            size = buffer.nbytes
        if buffer.nbytes > SMALL_BYTES:
            yield (pair,)
            size = 0
        else:
            group.append(pair)
        sizes[stream] = size
    yield from filter(None, open_groups.values())
