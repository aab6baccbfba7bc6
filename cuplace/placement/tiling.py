"""Tilings: which block of an array each device holds, before the array has a size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from cuplace.placement.spec import Entry


class Tiling(NamedTuple):
    """An array cut into `parts[d]` equal pieces along dimension `d`, one block for each device.

    `blocks` has one entry for each device, in mesh order: the number of its piece along each dimension. Two shardings
    over the same devices in the same order place arrays alike exactly if their tilings are equal.

    >>> tile((2, 2), ('x', 'y'), (('y',), None))
    Tiling(parts=(2, 1), blocks=((0, 0), (1, 0), (0, 0), (1, 0)))
    """

    parts: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]


def tile(axis_sizes: tuple[int, ...], axis_names: tuple[str, ...], entries: Sequence[Entry]) -> Tiling:
    """The tiling by a spec's entries over a mesh of the given axes, devices numbered row-major.

    Several axes on one dimension number its pieces row-major: the first axis is the major one. A dimension whose
    entry is None or UNCONSTRAINED is not cut.
    """
    count = math.prod(axis_sizes)
    size_of = dict(zip(axis_names, axis_sizes, strict=True))
    stride_of = {name: math.prod(axis_sizes[place + 1 :]) for place, name in enumerate(axis_names)}
    parts = []
    columns = []
    for entry in entries:
        pieces = 1
        column = [0] * count
        for name in entry if isinstance(entry, tuple) else ():
            size, stride = size_of[name], stride_of[name]
            pieces *= size
            column = [piece * size + device // stride % size for device, piece in enumerate(column)]
        parts.append(pieces)
        columns.append(column)
    blocks = tuple(zip(*columns, strict=True)) if columns else ((),) * count
    return Tiling(tuple(parts), blocks)
