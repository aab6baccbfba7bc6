"""What stands in the way of a donation: everything else that still holds the memory of an array."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

from cuplace.errors import StrictDonationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cuplace.array.array import Array
    from cuplace.runtime.buffer import Buffer


def check_sole_owner(array: Array) -> None:
    """Check that deleting `array` sets all its memory free. Walks the whole heap; meant for ``donate='strict'``.

    Raises:
        StrictDonationError: a RuntimeError, where other arrays, or views on the host, hold some of the memory.
    """
    reasons = [*_exports(array), *_other_arrays(array)]
    if reasons:
        raise StrictDonationError(str(array._key.type), reasons)


def _exports(array: Array) -> Iterator[str]:
    """Host views that the user holds. The array's own cache of its values is not one, so it is dropped first."""
    family = list(_family(array))
    cached = [(member, weakref.ref(member._host)) for member in family if member._host is not None]
    for member in family:
        member._host = None
    for member, host in cached:
        member._host = host()  # still alive: the user has it
    for buffer in array._buffers:
        if buffer.exports:
            yield f"NumPy arrays or DLPack capsules view its memory on {buffer.device}; copy them with numpy.array(x)"


def _other_arrays(array: Array) -> Iterator[str]:
    own = {id(member._buffers) for member in _family(array)}
    lists: list[list[Buffer]] = [found for found in gc.get_referrers(*array._buffers) if type(found) is list]
    lists = [found for found in lists if found is array._buffers or id(found) not in own]
    named: set[int] = set()
    for holder in gc.get_referrers(*lists):
        if type(holder) is not type(array) or holder is array or id(holder) in named:
            continue
        named.add(id(holder))
        made = "" if holder._origin is None else f", made at {holder._origin}"
        yield f"another array {holder._key.type} shares it{made}"


def _family(array: Array) -> Iterator[Array]:
    """The array and the views of its shards, which are deleted with it."""
    yield array
    for view in array._views or ():
        yield from _family(view)
