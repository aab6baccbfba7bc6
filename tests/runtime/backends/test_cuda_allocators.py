"""Others on the same GPU: allocators that the user sets for CuPy, and memory that is told to be others'."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

import cuplace
from cuplace.errors import DeviceLostError, OutOfMemoryError
from cuplace.runtime.platform import Platform, activated
from cuplace.runtime.task import CopyTask
from cuplace.runtime.usage import GpuUsage
from tests import fakecuda, fakegpus
from tests.fakegpus import Case
from tests.fakenvml import fake_nvml
from tests.runtime.streams import ADD_ONE, compute, finish, move, put, read

MIB = 1 << 20
VALUES = np.arange(MIB // 4, dtype=np.int64)
NBYTES = VALUES.nbytes

LAZY = pytest.mark.parametrize("cuda", [Case("lazy")], ids=lambda case: case.label, indirect=True)


@pytest.fixture(autouse=True)
def usual_allocator(fake_gpus: None) -> Iterator[None]:
    """CuPy's allocator is afterwards what it was."""
    from cupy.cuda import get_allocator, set_allocator

    before = get_allocator()
    yield
    set_allocator(before)


class Torch:
    """PyTorch's caching allocator as CuPy sees it through `PythonFunctionAllocator(malloc, free)`.

    Blocks belong to the stream that was current when they were made; a freed one is handed out again at once on that
    stream, as work there is in order.
    """

    class OutOfMemoryError(RuntimeError):
        pass

    all: ClassVar[list[Torch]] = []  # memory that CuPy's pools keep outlives the tests

    def __init__(self, most: int = 1 << 40) -> None:
        Torch.all.append(self)
        self.most = most
        self.live: dict[int, tuple[int, int, int]] = {}
        self.cached: dict[tuple[int, int, int], list[int]] = {}
        self.handed_out_again = 0

    def malloc(self, size: int, device: int) -> int:
        import cupy

        assert cupy.cuda.runtime.getDevice() == device
        key = (size, device, int(cupy.cuda.get_current_stream().ptr))
        cached = self.cached.get(key)
        if cached:
            self.handed_out_again += 1
            pointer = cached.pop()
        elif sum(used for used, where, _ in self.live.values() if where == device) + size > self.most:
            raise Torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than there is.")
        else:
            pointer = cupy.cuda.runtime.malloc(size)
        self.live[pointer] = key
        return int(pointer)

    def free(self, pointer: int, device: int) -> None:
        key = self.live.pop(pointer)
        assert key[1] == device
        self.cached.setdefault(key, []).append(pointer)

    def empty_cache(self) -> None:
        import cupy

        for (_, device, _), pointers in self.cached.items():
            with cupy.cuda.Device(device):
                while pointers:
                    cupy.cuda.runtime.free(pointers.pop())

    @property
    def allocator(self) -> Any:
        import cupy

        return cupy.cuda.PythonFunctionAllocator(self.malloc, self.free).malloc


class InOrder:
    """A `PythonFunctionAllocator` over `cudaMallocAsync` that frees on the stream that is current, as CuPy's documents
    say that one may."""

    def __init__(self) -> None:
        self.freed_on: list[int] = []

    def malloc(self, size: int, device: int) -> int:
        import cupy

        return int(cupy.cuda.runtime.mallocAsync(size, cupy.cuda.get_current_stream().ptr))

    def free(self, pointer: int, device: int) -> None:
        import cupy

        self.freed_on.append(int(cupy.cuda.get_current_stream().ptr))
        cupy.cuda.runtime.freeAsync(pointer, self.freed_on[-1])

    @property
    def allocator(self) -> Any:
        import cupy

        return cupy.cuda.PythonFunctionAllocator(self.malloc, self.free).malloc


class DeviceBuffer:
    """RMM's: memory in the order of the stream that it was made on, and freed there."""

    def __init__(self, size: int, stream: Any) -> None:
        import cupy

        self.size = size
        self.stream = stream
        self.ptr = cupy.cuda.runtime.mallocAsync(size, stream.ptr) if size else 0

    def __del__(self) -> None:
        import cupy

        if self.ptr:
            cupy.cuda.runtime.freeAsync(self.ptr, self.stream.ptr)


def rmm_cupy_allocator(nbytes: int) -> Any:
    """What RMM offers CuPy: memory that CuPy does not own, and its owner."""
    import cupy

    buffer = DeviceBuffer(nbytes, cupy.cuda.get_current_stream())
    device = -1 if buffer.ptr else cupy.cuda.device.get_device_id()
    memory = cupy.cuda.UnownedMemory(buffer.ptr, buffer.size, buffer, device)
    return cupy.cuda.MemoryPointer(memory, 0)


def allocators() -> dict[str, Any]:
    import cupy

    return {
        "none": None,
        "pool": cupy.cuda.MemoryPool().malloc,
        "async pool": cupy.cuda.MemoryAsyncPool().malloc,
        "pooled torch": cupy.cuda.MemoryPool(Torch().allocator).malloc,
        "torch": Torch().allocator,
        "in order": InOrder().allocator,
        "rmm": rmm_cupy_allocator,
    }


NAMES = ("none", "pool", "async pool", "pooled torch", "torch", "in order", "rmm")


def program(platform: Platform) -> None:
    """Puts, computations and moves between three devices, with memory that dies while it is in use."""
    one, other, third = platform.devices[0], platform.devices[1], platform.devices[7]
    values = VALUES[:1000]
    kept = []
    for i in range(6):
        source = put(one, values + i)
        compute(ADD_ONE, compute(ADD_ONE, source))  # free at once, in the order of the stream
        result = compute(ADD_ONE, source)
        arrived = move(result, other)
        back = move(compute(ADD_ONE, arrived), third)
        kept.append(compute(ADD_ONE, back))
    for i, buffer in enumerate(kept):
        np.testing.assert_array_equal(read(buffer), values + i + 3)


@pytest.mark.parametrize(
    "cuda",
    [Case("lazy"), Case("random", 1, peers=False), Case("random", 4, gpus=1), Case("threads")],
    ids=lambda case: case.label,
    indirect=True,
)
@pytest.mark.parametrize("name", NAMES)
def test_programs_run_on_the_allocator_that_the_user_has_set(cuda: Platform, name: str) -> None:
    """In all schedules; what frees too early, or on the wrong stream, is reported."""
    from cupy.cuda import set_allocator

    set_allocator(allocators()[name])
    program(cuda)
    finish(cuda)
    cuplace.free_unused()
    program(cuda)
    finish(cuda)


@LAZY
def test_memory_is_freed_with_its_own_stream_current(cuda: Platform) -> None:
    """Whatever stream and device the user is on when the memory dies."""
    import cupy

    in_order = InOrder()
    cupy.cuda.set_allocator(in_order.allocator)
    device: Any = cuda.devices[3]
    source = put(device, VALUES)
    with cupy.cuda.Device(5), cupy.cuda.Stream(non_blocking=True):
        result = compute(ADD_ONE, source)
        del source
        np.testing.assert_array_equal(read(result), VALUES + 1)
        del result
        finish(cuda)
    assert {device.upload.lane.ptr, device.compute.lane.ptr} == set(in_order.freed_on)


@LAZY
def test_memory_comes_from_the_users_pool_and_goes_back_there(cuda: Platform) -> None:
    import cupy

    pool = cupy.cuda.MemoryPool()
    cupy.cuda.set_allocator(pool.malloc)
    buffer = put(cuda.devices[0], VALUES)
    with cupy.cuda.Device(0):
        assert pool.used_bytes() == NBYTES
        cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
        read(buffer)
        del buffer
        finish(cuda)
        assert (pool.used_bytes(), pool.free_bytes()) == (0, NBYTES)


@LAZY
def test_trimming_leaves_what_others_keep(cuda: Platform) -> None:
    """The user's streams have free memory of their own in the same pool."""
    import cupy

    pool = cupy.cuda.MemoryPool()
    cupy.cuda.set_allocator(pool.malloc)
    with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True) as stream:
        kept = cupy.full(MIB, 7, np.uint8)
        cupy.empty(3 * MIB, np.uint8)
        stream.synchronize()
    buffer = put(cuda.devices[0], VALUES)
    read(buffer)
    del buffer
    with cupy.cuda.Device(0):
        assert pool.free_bytes() >= 3 * MIB
        ring = fakecuda.counters().pinned.used
        freed = cuplace.free_unused()
        assert freed - (ring - fakecuda.counters().pinned.used) == NBYTES
        assert pool.free_bytes() == 3 * MIB
        assert (kept.get() == 7).all()


@LAZY
@pytest.mark.parametrize("name", ["async pool", "torch", "rmm"])
def test_allocators_that_serve_others_are_not_emptied(cuda: Platform, name: str) -> None:
    from cupy.cuda import set_allocator

    cuplace.free_unused()
    set_allocator(allocators()[name])
    read(put(cuda.devices[0], VALUES))
    finish(cuda)
    before = fakecuda.counters()
    freed = cuplace.free_unused()
    after = fakecuda.counters()
    assert after.devices == before.devices
    assert freed == before.pinned.used - after.pinned.used
    assert "cudaMemPoolTrimTo" not in after.calls


@LAZY
def test_an_allocator_that_keeps_blocks_by_stream_gets_ours_again(cuda: Platform) -> None:
    import cupy

    torch = Torch()
    cupy.cuda.set_allocator(torch.allocator)
    for i in range(4):
        np.testing.assert_array_equal(read(compute(ADD_ONE, put(cuda.devices[0], VALUES + i))), VALUES + i + 1)
    finish(cuda)
    assert torch.handed_out_again >= 3
    assert torch.live == {}
    torch.empty_cache()


@LAZY
def test_an_allocator_that_fails_is_told_as_it_is(cuda: Platform) -> None:
    """For example one that wants PyTorch's current stream to be CuPy's. The platform goes on."""
    import cupy

    def malloc(size: int, device: int) -> int:
        raise RuntimeError("The current stream set in PyTorch and CuPy must be same.")

    usual = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(malloc, lambda pointer, device: None).malloc)
    with pytest.raises(RuntimeError, match="must be same"):
        put(cuda.devices[0], VALUES)
    cupy.cuda.set_allocator(usual)
    np.testing.assert_array_equal(read(put(cuda.devices[0], VALUES)), VALUES)


@LAZY
def test_an_allocator_without_memory_is_asked_once_more(cuda: Platform) -> None:
    """After dead memory has gone back to it; then the error says what it said."""
    import cupy

    torch = Torch(most=2 * NBYTES)
    cupy.cuda.set_allocator(torch.allocator)
    device, other = cuda.devices[:2]
    moved = [move(put(device, VALUES + i), other) for i in range(2)]  # dead memory of device, and work that reads it
    larger = np.arange(2 * VALUES.size)
    np.testing.assert_array_equal(read(put(device, larger)), larger)
    with pytest.raises(OutOfMemoryError, match="The allocator said: CUDA out of memory"):
        put(other, VALUES)
    for i, buffer in enumerate(moved):
        np.testing.assert_array_equal(read(buffer), VALUES + i)


# ---------------------------------------------------------------------- who has the memory


@pytest.fixture
def nvml(cuda: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML for the fake GPUs."""
    backend: Any = cuda.backend
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(backend.gpus))  # type: ignore[arg-type]


def usage_of(gpu: int) -> GpuUsage:
    return cuplace.memory_report().gpus[gpu]


@LAZY
def test_memory_that_others_took_is_told_as_theirs(cuda: Platform, nvml: None) -> None:
    import cupy

    others = usage_of(2).others
    assert others is not None
    before, elsewhere = usage_of(2), usage_of(3)
    with cupy.cuda.Device(2):
        mine = cupy.cuda.runtime.malloc(5 * MIB)
        array = cupy.empty(3 * MIB, np.uint8)
    buffers = [put(cuda.devices[2], VALUES)]
    found = usage_of(2)
    assert found.others == others + 8 * MIB
    assert found.cuplace == before.cuplace + NBYTES
    assert before.free is not None
    assert found.free == before.free - 8 * MIB - NBYTES
    assert found.total == 1 << 36
    assert usage_of(3) == elsewhere
    buffers.clear()
    finish(cuda)
    found = usage_of(2)
    assert (found.others, found.cuplace) == (others + 8 * MIB, before.cuplace)
    assert found.pooled is not None
    assert found.pooled >= NBYTES
    del array
    with cupy.cuda.Device(2):
        cupy.cuda.runtime.free(mine)
    assert usage_of(2).others == others


@LAZY
def test_what_nvml_does_not_tell_is_none(cuda: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    found = usage_of(0)
    assert (found.uuid, found.total, found.free, found.others) == (None, None, None, None)
    assert found.name


@pytest.mark.parametrize("cuda", [Case("lazy", gpus=1)], ids=lambda case: case.label, indirect=True)
def test_partitions_of_a_gpu_are_counted_together(cuda: Platform) -> None:
    kept = [put(device, VALUES) for device in cuda.devices]
    gpus = cuplace.memory_report().gpus
    assert [gpu.cuplace for gpu in gpus] == [8 * NBYTES]
    kept.clear()


@pytest.mark.parametrize("cuda", [Case("lazy", gpus=1)], ids=lambda case: case.label, indirect=True)
def test_partitions_of_a_gpu_make_room_for_each_other(cuda: Platform) -> None:
    """Small blocks that one of them keeps, and its dead memory that waits, are the other one's memory, too."""
    import cupy

    pool = cupy.get_default_memory_pool()
    with cupy.cuda.Device(0):
        pool.free_all_blocks()
        broken = pool.free_bytes()  # parts of blocks that somebody else in this process uses
    one, other, third = cuda.devices[:3]
    kept = [put(one, np.zeros(MIB // 16)) for _ in range(16)]  # 512 KiB each
    source = put(one, VALUES)
    latch = cuda.scheduler.hold(one.transfer_to(third))
    moved = move(source, third)
    del source
    kept.clear()
    latch.release()
    read(moved)
    finish(cuda)
    assert cuplace.memory_report().devices[0].unused == 8 * MIB
    with cupy.cuda.Device(0):
        fakecuda.faults.memory_limit(fakecuda.counters().devices[0].used)
    big = put(other, np.ones(MIB))  # 8 MiB
    assert cuplace.memory_report().devices[0].unused == 0
    assert read(big).sum() == MIB
    with pytest.raises(OutOfMemoryError) as caught:
        put(other, np.ones(8 * MIB))
    assert f"CuPy's pool keeps {broken:,} unused" in str(caught.value)
    fakecuda.faults.clear()


@LAZY
def test_others_are_told_to_have_the_memory_that_is_missing(cuda: Platform) -> None:
    import cupy

    device = cuda.devices[4]
    kept = put(device, VALUES)
    with cupy.cuda.Device(4):
        theirs = cupy.cuda.runtime.malloc(32 * MIB)
        fakecuda.faults.memory_limit(40 * MIB, 4)
    with pytest.raises(OutOfMemoryError) as caught:
        put(device, np.zeros(2 * MIB))
    *_, who, blame, _ = str(caught.value).splitlines()
    text = r"Of the ([\d,]+) bytes of GPU 4 cuplace has ([\d,]+), CuPy's pool keeps ([\d,]+) unused, "
    match = re.fullmatch(text + r"others have ([\d,]+), and ([\d,]+) are free\.", who)
    assert match is not None, who
    total, ours, unused, others, free = (int(figure.replace(",", "")) for figure in match.groups())
    assert (total, ours + unused + others + free) == (40 * MIB, 40 * MIB)
    assert ours >= NBYTES
    assert 32 * MIB <= others < 33 * MIB
    assert blame.startswith("Others are other libraries in this process")
    with cupy.cuda.Device(4):
        cupy.cuda.runtime.free(theirs)
    with pytest.raises(OutOfMemoryError) as caught:
        put(device, np.zeros(8 * MIB))
    assert "Others are" not in str(caught.value), "nobody else has it"
    np.testing.assert_array_equal(read(kept), VALUES)
    fakecuda.faults.clear()


@LAZY
def test_an_allocator_without_a_pool_tells_cudas_own_error(cuda: Platform) -> None:
    import cupy

    cupy.cuda.set_allocator(cupy.cuda.memory._malloc)
    kept = put(cuda.devices[5], VALUES)
    fakecuda.faults.memory_limit(fakecuda.counters().devices[5].used + MIB, 5)
    with pytest.raises(OutOfMemoryError, match="The allocator said: cudaErrorMemoryAllocation"):
        put(cuda.devices[5], VALUES)
    fakecuda.faults.clear()
    np.testing.assert_array_equal(read(kept), VALUES)


@pytest.mark.parametrize("cuda", [Case("lazy"), Case("random", 8)], ids=lambda case: case.label, indirect=True)
def test_memory_for_packing_is_waited_for_where_it_comes_in_the_order_of_a_stream(cuda: Platform) -> None:
    """Columns are packed where they are and unpacked where they arrive, in memory that was just asked for."""
    import cupy

    device, other = cuda.devices[:2]
    cupy.cuda.set_allocator(cupy.cuda.malloc_async)
    values = VALUES.reshape(512, -1)
    source, target = put(device, values), put(other, values * 0)
    stream = device.transfer_to(other)
    box = (slice(None), slice(3, 40))
    for _ in range(2):
        cuda.scheduler.submit_moves([(CopyTask(box, box, "peer", 0), stream, source, target)])
    np.testing.assert_array_equal(read(target)[box], values[box])
    del source, target
    finish(cuda)


@LAZY
def test_a_limit_of_cupys_pool_is_told(cuda: Platform) -> None:
    import cupy

    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.Device(0):
        pool.set_limit(size=3 * MIB)
    cupy.cuda.set_allocator(pool.malloc)
    kept = put(cuda.devices[0], VALUES)
    with pytest.raises(OutOfMemoryError, match=r"The allocator said: .* limit set to: 3,145,728 bytes"):
        put(cuda.devices[0], VALUES)
    np.testing.assert_array_equal(read(kept), VALUES)


def test_a_lost_gpu_is_reported_without_its_memory(fake_gpus: None, restored_config: None) -> None:
    platform = fakegpus.open_fake(Case("lazy"))
    with activated(platform):
        kept = [put(device, VALUES) for device in platform.devices[:2]]
        fakecuda.faults.lose_device(0)
        with pytest.raises(DeviceLostError):
            read(kept[0])
        lost, healthy = cuplace.memory_report().gpus[:2]
        assert (lost.cuplace, lost.pooled) == (NBYTES, None)
        assert healthy.pooled is not None
        kept.clear()
        finish(platform)
        assert cuplace.free_unused() >= NBYTES
    fakecuda.faults.clear()
    platform.close()
