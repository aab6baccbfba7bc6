"""Memory of real GPUs: limits, its end, and other allocators than CuPy's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuplace
from cuplace.errors import OutOfMemoryError
from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform
from tests.runtime.streams import ADD_ONE, SQUARE, compute, finish, move, put, read

pytestmark = pytest.mark.gpu("one")

MIB = 1 << 20
VALUES = np.arange(1000, dtype=np.int64)


def memory(platform: Platform) -> tuple[int, int]:
    """Bytes of the GPU: free ones, and all."""
    from cupy.cuda import runtime

    backend: Any = platform.backend
    with backend.gpus[0].device:
        free, total = runtime.memGetInfo()
    return int(free), int(total)


@pytest.mark.parametrize("extra", [1, 1 << 50])
def test_more_than_there_is_is_a_table_and_the_platform_goes_on(platform: Platform, extra: int) -> None:
    device = platform.devices[0]
    kept = put(device, np.zeros(MIB // 8, np.int64))
    with pytest.raises(OutOfMemoryError, match=r"Out of memory on gpu:0: int8\[") as caught:
        platform.scheduler.allocate(device, (memory(platform)[1] + extra,), np.dtype(np.int8))
    assert "int64[131072]" in str(caught.value)
    np.testing.assert_array_equal(read(compute(ADD_ONE, kept))[:3], [1, 1, 1])


def test_a_limit_is_kept(platform: Platform) -> None:
    device = platform.devices[0]
    config.update("max_device_bytes", 4 * MIB)
    kept = [put(device, np.zeros(MIB // 8, np.int64)) for _ in range(4)]
    with pytest.raises(OutOfMemoryError, match=r"of 4,194,304 \(max_device_bytes\) are in use"):
        put(device, VALUES)
    kept.pop()
    np.testing.assert_array_equal(read(put(device, VALUES)), VALUES)


def test_a_program_with_dead_memory_of_all_sizes_goes_on(platform: Platform) -> None:
    """What dies is used again, or goes back to the driver where another size is wanted."""
    device, other = platform.devices[:2]
    for i in range(30):
        x = cuplace.device_put(np.full(1000 * (i % 7 + 1), i, np.float32), device)
        y = cuplace.device_put(x * 2, other)
        del x
        np.testing.assert_array_equal(np.asarray(y), np.full(1000 * (i % 7 + 1), 2 * i, np.float32))
    del y
    finish(platform)
    assert device.memory_stats()["bytes_in_use"] == other.memory_stats()["bytes_in_use"] == 0


def test_trimming_gives_memory_back_to_the_driver(platform: Platform) -> None:
    device = platform.devices[0]
    big = put(device, np.zeros(64 * MIB // 8, np.int64))
    read(big)
    before, _ = memory(platform)
    del big
    finish(platform)
    device.memory.trim()
    assert memory(platform)[0] >= before + 32 * MIB


@pytest.mark.parametrize("name", ["pool", "raw", "async"])
def test_the_users_allocator_is_respected(platform: Platform, name: str) -> None:
    import cupy

    device, other = platform.devices[:2]
    with cupy.cuda.Device(0):
        allocator = {
            "pool": cupy.cuda.MemoryPool().malloc,
            "raw": cupy.cuda.memory._malloc,
            "async": cupy.cuda.malloc_async,
        }[name]
    with cupy.cuda.using_allocator(allocator):
        for i in range(5):
            moved = move(compute(SQUARE, put(device, VALUES + i)), other)
            np.testing.assert_array_equal(read(compute(ADD_ONE, moved)), (VALUES + i) ** 2 + 1)
        del moved
        finish(platform)
