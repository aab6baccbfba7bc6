"""What was copied, taken from the calls that streams got: pointers and strides, mapped back to boxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

from cuplace.placement.box import Box
from cuplace.placement.sharding import Sharding
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.platform import Platform
from tests.memory import address_of


class Ran(NamedTuple):
    """One copy: from which device's memory to which, and which box of the whole array."""

    source: Any
    target: Any
    box: Box
    path: str


class View(NamedTuple):
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def view_of(array: Any) -> View:
    """Where the elements of an array are."""
    return View(address_of(array), array.shape, array.strides)


class TransferLog:
    """The copies that the streams of a platform were given."""

    def __init__(self) -> None:
        self.calls: list[tuple[View, View, str]] = []

    def ran(self, *places: tuple[Sequence[Buffer], Sharding, tuple[int, ...]]) -> list[Ran]:
        """Each call as boxes of the whole array; ``places`` are the shards of one array in several shardings."""
        shards = [
            (buffer, box) for buffers, sharding, shape in places
            for buffer, box in zip(buffers, sharding.layout(shape).boxes, strict=True)
        ]  # fmt: skip
        return [self._read(*call, shards) for call in self.calls]

    def _read(self, source: View, target: View, path: str, shards: list[tuple[Buffer, Box]]) -> Ran:
        (here, box), (there, same) = _find(source, shards), _find(target, shards)
        assert box == same
        return Ran(here.device, there.device, box, path)


def _find(view: View, shards: list[tuple[Buffer, Box]]) -> tuple[Buffer, Box]:
    """The shard that a view lies in, and the box that it covers."""
    for buffer, whole in shards:
        array = buffer.array
        offset = view.address - address_of(array)
        if 0 <= offset < array.nbytes:
            start = np.unravel_index(offset // array.itemsize, array.shape) if array.shape else ()
            assert all(a == b for a, b, n in zip(view.strides, array.strides, view.shape, strict=True) if n > 1)
            first = tuple(int(i) + origin for i, origin in zip(start, whole.start, strict=True))
            box = Box(first, tuple(i + n for i, n in zip(first, view.shape, strict=True)))
            assert box.intersect(whole) == box
            return buffer, box
    raise AssertionError(f"{view} lies in no shard")


@contextmanager
def transfer_log(platform: Platform) -> Iterator[TransferLog]:
    """Note the copies that are enqueued inside of the ``with`` block."""
    log = TransferLog()
    stream_class = type(platform.devices[0].transfer_to(platform.devices[0]))
    while stream_class.__name__ == "Watched":
        stream_class = stream_class.__mro__[1]
    copy = stream_class.copy

    def noted(self: Any, source: Any, target: Any, *rest: Any) -> None:
        log.calls.append((view_of(source), view_of(target), self.path or "local"))
        copy(self, source, target, *rest)

    at_once = platform.backend.copy_at_once

    def noted_at_once(streams: Any, pairs: Any, nbytes: int) -> Any:
        pairs = list(pairs)
        marks = at_once(streams, pairs, nbytes)  # type: ignore[misc]
        if marks:
            log.calls += [(view_of(source), view_of(target), "local") for source, target in pairs]
        return marks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_class, "copy", noted)
        if at_once is not None:
            patch.setattr(platform.backend, "copy_at_once", noted_at_once)
        yield log
