"""Memory: limits and accounting, poison, use after free, ends of blocks, pools above CUDA's allocator."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests import fakecuda
from tests.fakecuda import faults

MIB = 1 << 20


def kinds() -> list[str]:
    return [report.kind for report in fakecuda.take_reports()]


@pytest.fixture
def empty_pools(cp: ModuleType) -> None:
    for device in range(8):
        with cp.cuda.Device(device):
            cp.get_default_memory_pool().free_all_blocks()
    cp.get_default_pinned_memory_pool().free_all_blocks()
    fakecuda.reset()


def test_memory_is_accounted_for_each_device(cp: ModuleType, empty_pools: None) -> None:
    runtime = cp.cuda.runtime
    before = fakecuda.counters().devices
    with cp.cuda.Device(2):
        first, second = runtime.malloc(3 * MIB), runtime.malloc(2 * MIB)
        free, total = runtime.memGetInfo()
        assert total - free == before[2].used + 5 * MIB
        runtime.free(first)
    after = fakecuda.counters().devices
    assert after[2] == (before[2].used + 2 * MIB, before[2].used + 5 * MIB)
    assert [after[i] for i in (0, 1, 3)] == [before[i] for i in (0, 1, 3)]
    fakecuda.reset_counters()
    assert fakecuda.counters().devices[2].peak == before[2].used + 2 * MIB
    runtime.free(second)


def test_pinned_memory_is_accounted_for(cp: ModuleType, empty_pools: None) -> None:
    runtime = cp.cuda.runtime
    before = fakecuda.counters()
    ptr = runtime.hostAlloc(MIB, 0)
    now = fakecuda.counters()
    assert now.pinned.used == before.pinned.used + MIB
    assert now.pinned_blocks == before.pinned_blocks + 1
    runtime.freeHost(ptr)
    assert fakecuda.counters().pinned == (before.pinned.used, before.pinned.used + MIB)


def test_a_limit_of_memory_is_kept(cp: ModuleType, empty_pools: None) -> None:
    used = fakecuda.counters().devices[1].used
    faults.memory_limit(used + 4 * MIB, device=1)
    with cp.cuda.Device(1):
        x = cp.zeros(3 * MIB, cp.uint8)
        with pytest.raises(cp.cuda.memory.OutOfMemoryError):
            cp.zeros(2 * MIB, cp.uint8)
        del x
        y = cp.zeros(3 * MIB + 512, cp.uint8)  # CuPy's pool gave the first block back when it was short
        assert not y.any()
    with cp.cuda.Device(0):
        cp.zeros(8 * MIB, cp.uint8)
    assert kinds() == []


def test_allocations_fail_on_demand(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    faults.fail_pinned_allocation(at=2)
    first = runtime.hostAlloc(64, 0)
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorMemoryAllocation"):
        runtime.hostAlloc(64, 0)
    third = runtime.hostAlloc(64, 0)
    faults.fail_device_allocation(at=1, count=2)
    for _ in range(2):
        with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorMemoryAllocation"):
            runtime.malloc(64)
    runtime.free(runtime.malloc(64))
    for ptr in (first, third):
        runtime.freeHost(ptr)


def test_new_memory_is_poisoned(cp: ModuleType, empty_pools: None) -> None:
    assert set(fakecuda.numpy_view(cp.empty(5000, cp.uint8)).tolist()) == {0xCB}


def test_freeing_waits_and_a_use_after_it_is_reported(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    fakecuda.set_mode("lazy")
    ptr = runtime.malloc(64)
    runtime.memsetAsync(ptr, 0, 64, 0)
    runtime.free(ptr)
    assert kinds() == []
    runtime.memsetAsync(ptr, 0, 64, 0)
    assert kinds() == ["use after free"]
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorInvalidValue"):
        runtime.free(ptr)
    assert kinds() == ["bad free"]


def test_stream_ordered_memory_is_used_in_order(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    home, other = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    ptr = runtime.mallocAsync(64, home.ptr)
    runtime.memsetAsync(ptr, 0, 64, other.ptr)
    assert kinds() == ["race"]
    runtime.freeAsync(ptr, home.ptr)
    assert kinds() == ["race"]  # with the fill
    runtime.memsetAsync(ptr, 0, 64, home.ptr)
    assert kinds() == ["use after free"]


def test_beyond_the_end_of_a_block(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    ptr = runtime.malloc(64)
    runtime.memsetAsync(ptr, 0, 65, 0)
    assert kinds() == ["out of bounds"]
    out = np.zeros(128, np.uint8)
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorInvalidValue"):
        runtime.memcpy(out.ctypes.data, ptr + 32, 64, 2)
    assert kinds() == ["out of bounds"]
    runtime.free(ptr)


def test_a_kernel_that_leaves_its_block_loses_the_device(cp: ModuleType, mode: str) -> None:
    kernel = cp.RawKernel('extern "C" __global__ void wild(char* x, long long i) { x[i] = 1; }', "wild")
    with cp.cuda.Device(5):
        ptr = cp.cuda.runtime.malloc(4096)
        kernel((1,), (1,), (np.uint64(ptr), np.int64(4096)))
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="cudaErrorIllegalAddress"):
            cp.cuda.Stream.null.synchronize()
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="cudaErrorIllegalAddress"):
            cp.cuda.runtime.malloc(64)
    cp.zeros(4).get()  # another device is healthy
    assert kinds() == ["device lost"]
    faults.clear()
    cp.cuda.runtime.free(ptr)


def test_a_misaligned_access_loses_the_device(cp: ModuleType) -> None:
    kernel = cp.RawKernel(r'extern "C" __global__ void wide(uint4* x) { x->x = 1; }', "wide")
    with cp.cuda.Device(6):
        x = cp.zeros(64, cp.uint8)
        kernel((1,), (1,), (x[16:],))
        cp.cuda.Stream.null.synchronize()
        assert kinds() == []
        kernel((1,), (1,), (x[8:],))
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="cudaErrorMisalignedAddress"):
            cp.cuda.Stream.null.synchronize()
    assert kinds() == ["device lost"]


def test_a_registered_range_is_pinned_until_it_is_unregistered(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    fakecuda.set_mode("lazy")
    values = np.arange(1024, dtype=np.uint8)
    runtime.hostRegister(values.ctypes.data, values.nbytes, 0)
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorHostMemoryAlreadyRegistered"):
        runtime.hostRegister(values.ctypes.data, values.nbytes, 0)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        x = cp.empty(1024, cp.uint8)
        runtime.memcpyAsync(x.data.ptr, values.ctypes.data, 1024, 1, stream.ptr)
    fakecuda.host_access(values.ctypes.data, 1024, write=True)
    assert kinds() == ["race"]
    stream.synchronize()
    runtime.hostUnregister(values.ctypes.data)
    assert kinds() == []
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorHostMemoryNotRegistered"):
        runtime.hostUnregister(values.ctypes.data)


def test_a_range_may_not_be_unregistered_while_it_is_copied(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    values = np.arange(1024, dtype=np.uint8)
    runtime.hostRegister(values.ctypes.data, values.nbytes, 0)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        x = cp.empty(1024, cp.uint8)
        runtime.memcpyAsync(x.data.ptr, values.ctypes.data, 1024, 1, stream.ptr)
    runtime.hostUnregister(values.ctypes.data)
    assert kinds() == ["race"]


def test_what_a_pool_has_taken_back_is_not_used(cp: ModuleType) -> None:
    with fakecuda.cupy_pool():
        x = cp.zeros(100, cp.uint8)
        ptr = x.data.ptr
        cp.cuda.runtime.memsetAsync(ptr, 1, 100, 0)
        assert kinds() == []
        del x
        cp.cuda.runtime.memsetAsync(ptr, 1, 100, 0)
        assert kinds() == ["use after free"]
        y = cp.zeros(100, cp.uint8)
        assert y.data.ptr == ptr
        assert kinds() == []
    fakecuda.pool_block(ptr, 64)
    fakecuda.pool_free(ptr)
    y += 1
    assert kinds() == ["use after free"]


def test_a_plain_pointer_reaches_to_the_end_of_its_pool_block(cp: ModuleType) -> None:
    kernel = cp.RawKernel('extern "C" __global__ void one(char* x) { *x = 1; }', "one")
    first, second = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    ptr = cp.cuda.runtime.malloc(2048)
    for start in (0, 1024):
        fakecuda.pool_block(ptr + start, 1024)
    kernel((1,), (1,), (np.uint64(ptr),), stream=first)
    kernel((1,), (1,), (np.uint64(ptr + 1024),), stream=second)
    assert kinds() == []
    kernel((1,), (1,), (np.uint64(ptr),), stream=second)
    assert kinds() == ["race"]
    cp.cuda.runtime.free(ptr)
