"""Ranges of the simulator's arenas: no two living ones overlap, and dead ones are used again soon."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from cuplace.runtime.backends.sim.storage import ALIGNMENT, Range, RangeArena


def ends(block: Range) -> tuple[int, int]:
    start = block.as_array((1,), np.dtype(np.uint8)).ctypes.data
    return start, start + max(block.nbytes, 1)


@pytest.mark.parametrize("seed", range(20))
def test_living_ranges_never_overlap(seed: int) -> None:
    choose = random.Random(seed)
    arena = RangeArena()
    living: list[tuple[Range, int]] = []
    for step in range(400):
        if living and choose.random() < 0.48:
            block, mark = living.pop(choose.randrange(len(living)))
            assert (block.as_array((block.nbytes,), np.dtype(np.uint8)) == mark).all()
            arena.free(block)
        else:
            nbytes = choose.choice([0, 1, 64, 65, 1000, 5000, 1 << 19])
            block = arena.allocate(nbytes)
            assert block.nbytes >= nbytes
            assert ends(block)[0] % ALIGNMENT == 0
            block.as_array((block.nbytes,), np.dtype(np.uint8))[...] = step % 251
            living.append((block, step % 251))
    spans = sorted(ends(block) for block, _ in living)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    for block, _ in living:
        arena.free(block)
    assert all(free.nbytes == free.segment.nbytes for free in arena._free), "free neighbours join again"


def test_the_last_freed_is_the_first_used() -> None:
    arena = RangeArena()
    blocks = [arena.allocate(256) for _ in range(4)]
    where = ends(blocks[2])[0]
    for i in (0, 2):
        arena.free(blocks[i])
    assert ends(arena.allocate(64))[0] == where


def test_free_neighbours_join() -> None:
    arena = RangeArena()
    blocks = [arena.allocate(256) for _ in range(3)]
    first = ends(blocks[0])[0]
    keep_the_rest = arena.allocate(arena._free[-1].nbytes)
    for i in (0, 2, 1):
        arena.free(blocks[i])
    assert ends(arena.allocate(768))[0] == first
    arena.free(keep_the_rest)


def test_new_memory_has_a_pattern() -> None:
    block = RangeArena().allocate(1000)
    assert (block.as_array((1000,), np.dtype(np.uint8)) == 0xA5).all()


def test_trim_forgets_whole_segments_only() -> None:
    arena = RangeArena()
    small, large = arena.allocate(64), arena.allocate(4 << 20)
    arena.free(large)
    assert arena.trim() == 4 << 20
    assert arena.trim() == 0
    arena.free(small)
    assert arena.trim() == 1 << 20


@pytest.mark.parametrize("nbytes", [1 << 50, 1 << 63, 1 << 80])
def test_more_than_there_is(nbytes: int) -> None:
    arena = RangeArena()
    with pytest.raises(MemoryError):
        arena.allocate(nbytes)
    assert arena.allocate(64).nbytes == 64
