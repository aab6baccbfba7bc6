"""Blocks of host memory, kept and handed out again."""

from __future__ import annotations

import numpy as np
import pytest

from cuplace.runtime.backends.cpu import storage
from cuplace.runtime.backends.cpu.storage import ALIGNMENT, BlockCache

FLOAT = np.dtype(np.float32)


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1000, 1 << 20])
def test_blocks_are_aligned_and_large_enough(nbytes: int) -> None:
    block = BlockCache().allocate(nbytes)
    assert block.memory.ctypes.data % ALIGNMENT == 0
    assert block.memory.nbytes == block.nbytes
    assert nbytes <= block.nbytes < nbytes + ALIGNMENT + (nbytes == 0)
    assert block.nbytes % ALIGNMENT == 0


def test_a_block_comes_back_by_its_size() -> None:
    cache = BlockCache()
    first, second = cache.allocate(100), cache.allocate(1000)
    cache.free(first)
    cache.free(second)
    assert cache.allocate(999) is second
    assert cache.allocate(128) is first
    assert cache.allocate(128) is not first


def test_views_have_shape_and_dtype_and_share_the_memory() -> None:
    block = BlockCache().allocate(64)
    array = block.as_array((4, 4), FLOAT)
    assert (array.shape, array.dtype, array.flags.c_contiguous) == ((4, 4), FLOAT, True)
    array[...] = 1
    assert block.as_array((16,), FLOAT).sum() == 16
    assert block.as_array((), np.dtype(np.float64)).shape == ()
    assert block.as_array((2, 2), np.dtype(np.int8)).nbytes == 4


def test_trim_forgets_what_is_unused() -> None:
    cache = BlockCache()
    kept, dropped = cache.allocate(64), cache.allocate(640)
    cache.free(dropped)
    assert cache.trim() == 640
    assert cache.trim() == 0
    assert cache.allocate(640) is not dropped
    cache.free(kept)
    assert cache.allocate(64) is kept


def test_unused_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most what was in use at the peak, or a fixed amount."""
    monkeypatch.setattr(storage, "_KEPT_BYTES", 1000)
    cache = BlockCache()
    for nbytes in range(64, 64 * 200, 64):
        cache.free(cache.allocate(nbytes))
        assert cache.unused <= max(1000, 64 * 200)
    total = sum(block.nbytes for blocks in cache._unused.values() for block in blocks)
    assert total == cache.unused
    assert cache._used_bytes == 0


@pytest.mark.parametrize("nbytes", [1 << 50, 1 << 62, 1 << 63, 1 << 80])
def test_a_request_that_fails_is_not_counted(nbytes: int) -> None:
    cache = BlockCache()
    cache.free(cache.allocate(64))
    before = dict(vars(cache))
    with pytest.raises(MemoryError):
        cache.allocate(nbytes)
    assert vars(cache) == before
