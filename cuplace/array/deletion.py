"""Ending: how and by which line the memory of arrays was given up, told in the error of their next use."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from cuplace.errors import DeletedArrayError

if TYPE_CHECKING:
    from cuplace.array.array import Array
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line

REMEMBERED = 1024


class Ending(NamedTuple):
    """The end of one set of buffers.

    Attributes:
        buffers: the emptied list that the arrays share; held so that its identity is not given to another.
        how: ``deleted`` or ``donated``.
        line: the user's line, or None.
    """

    buffers: list[Buffer]
    how: str
    line: Line | None


# Kept beside the lists and not in them: arrays are made far more often than they are deleted, and nearly no
# deleted array is ever used again. Only the latest endings are remembered, oldest first.
_endings: OrderedDict[int, Ending] = OrderedDict()


def end(buffers: list[Buffer], how: str, line: Line | None) -> None:
    """Empty the list that all arrays of the same memory share, which deletes them all."""
    if not buffers:
        return
    _endings[id(buffers)] = Ending(buffers, how, line)
    buffers.clear()
    while len(_endings) > REMEMBERED:
        _endings.popitem(last=False)  # in one step each, since other threads end arrays, too


def deleted_error(array: Array, first_line: str | None = None) -> DeletedArrayError:
    """The error for the use of a deleted array."""
    ending = _endings.get(id(array._buffers))
    how, line = (ending.how, ending.line) if ending else (None, None)
    return DeletedArrayError(str(array._key.type), how, line, first_line)
