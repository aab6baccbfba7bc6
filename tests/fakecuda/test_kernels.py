"""Kernels on the CPU: barriers, shared memory, shuffles, order of threads, and what launches are taken to touch."""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests import fakecuda
from tests.fakecuda import Launch, Region, hostkernels
from tests.fakecuda.kernel_source import for_host, kernels_of, needs_fibers

REDUCTIONS = r"""
template <class T> __device__ T block_sum(T* part, T value) {
  part[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  return part[0];
}
extern "C" __global__ void static_shared(const float* x, float* sums) {
  __shared__ float part[256];
  float sum = block_sum(part, x[blockIdx.x * blockDim.x + threadIdx.x]);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
extern "C" __global__ void dynamic_shared(const float* x, float* sums) {
  extern __shared__ __align__(sizeof(float)) unsigned char raw[];
  float sum = block_sum(reinterpret_cast<float*>(raw), x[blockIdx.x * blockDim.x + threadIdx.x]);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
extern "C" __global__ void shuffled(const float* x, float* sums) {
  float sum = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  __shared__ float warps[32];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
extern "C" __global__ void atomics(const float* x, float* sums) {
  atomicAdd(&sums[blockIdx.x], x[blockIdx.x * blockDim.x + threadIdx.x]);
}
extern "C" __global__ void votes(const float* x, int* result) {
  unsigned ballot = __ballot_sync(~0u, threadIdx.x % 2);
  int all = __all_sync(~0u, threadIdx.x < 32), any = __any_sync(~0u, threadIdx.x == 5);
  result[threadIdx.x] = ballot == 0xAAAAAAAAu && all && any;
}
extern "C" __global__ void diverges(int* x) {
  if (threadIdx.x < 7) __syncthreads();
  else __syncwarp();
  x[threadIdx.x] = 1;
}
"""


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def kinds() -> list[str]:
    return [report.kind for report in fakecuda.take_reports()]


@pytest.fixture(scope="module")
def reductions() -> hostkernels.HostLibrary:
    if fakecuda.missing():
        pytest.skip(str(fakecuda.missing()))
    return hostkernels.compile_source(REDUCTIONS)


# --- without CuPy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["static_shared", "dynamic_shared", "shuffled", "atomics"])
@pytest.mark.parametrize("threads", [32, 256])
def test_threads_of_a_block_work_together(reductions: hostkernels.HostLibrary, name: str, threads: int) -> None:
    x = np.random.default_rng(0).integers(0, 100, 8 * threads).astype(np.float32)
    for seed in range(5):
        sums = np.zeros(8, np.float32)
        args = [pointer(x), pointer(sums)]
        divergent = reductions.run(name, [8], [threads], args, shared=4 * threads, seed=seed)
        assert sums.tolist() == x.reshape(8, threads).sum(1).tolist()
        assert divergent == 0


def test_votes(reductions: hostkernels.HostLibrary) -> None:
    result = np.zeros(32, np.int32)
    reductions.run("votes", [1], [32], [pointer(result), pointer(result)])
    assert result.all()


def test_a_barrier_that_not_all_threads_reach_is_noticed(reductions: hostkernels.HostLibrary) -> None:
    x = np.zeros(32, np.int32)
    assert reductions.run("diverges", [1], [32], [pointer(x)]) > 0
    assert x.all()


def test_the_order_of_threads_depends_on_the_seed() -> None:
    library = hostkernels.compile_source(
        'extern "C" __global__ void order(int* next, int* when) {'
        "  when[blockIdx.x * blockDim.x + threadIdx.x] = (*next)++;"
        "}"
    )
    seen = set()
    for seed in range(8):
        next_, when = np.zeros(1, np.int32), np.full(24, -1, np.int32)
        library.run("order", [4], [6], [pointer(next_), pointer(when)], seed=seed)
        assert sorted(when) == list(range(24))
        seen.add(tuple(when.tolist()))
    assert len(seen) > 4


def test_indices_have_three_dimensions() -> None:
    library = hostkernels.compile_source(
        'extern "C" __global__ void where(int* count) {'
        "  int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;"
        "  int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;"
        "  atomicAdd(&count[block * blockDim.x * blockDim.y * blockDim.z + thread], 1);"
        "}"
    )
    count = np.zeros(2 * 3 * 4 * 5 * 6 * 7, np.int32)
    library.run("where", [2, 3, 4], [5, 6, 7], [pointer(count)])
    assert (count == 1).all()


def test_kernels_are_found_in_a_source() -> None:
    source = """
    // __global__ void commented(int* x)
    template <typename T> __global__ void generic(T* x) {}
    extern "C" __global__ void __launch_bounds__(256, 2) one(const Box box, const float* x, float* const y) {}
    __global__ void none() {}
    """
    assert kernels_of(source) == [("one", "c.."), ("none", "")]
    assert needs_fibers("a(); __syncthreads();")
    assert not needs_fibers("a(); // __syncthreads();")


def test_dynamic_shared_memory_becomes_a_pointer() -> None:
    inside = for_host("__global__ void f() { extern __shared__ float4 x[]; }")
    assert "float4* x = reinterpret_cast<float4*>(::shim::dynamic_shared_memory);" in inside
    outside = for_host("extern __shared__ int x[];\n__global__ void f() { x[0] = 1; }")
    assert "static ::shim::DynamicShared<int> x;" in outside


def test_a_source_that_gxx_does_not_take_says_why() -> None:
    with pytest.raises(fakecuda.BuildError, match="nonsense"):
        hostkernels.compile_source('extern "C" __global__ void f(int* x) { nonsense(x); }')


# --- through CuPy ------------------------------------------------------------------------------------------


def test_modules_of_one_name_are_told_apart(cp: ModuleType, clean: None) -> None:
    x = cp.zeros(1)
    for value in (1, 2):
        cp.RawKernel(f'extern "C" __global__ void set_value(double* x) {{ *x = {value}; }}', "set_value")(
            (1,), (1,), (x,)
        )
        assert x.get().tolist() == [value]


def test_instances_of_templates(cp: ModuleType, clean: None) -> None:
    code = "template <class T> __global__ void twice(T* x) { x[threadIdx.x] *= 2; }"
    module = cp.RawModule(code=code, name_expressions=("twice<float>", "twice<int>"))
    for name, dtype in (("twice<float>", cp.float32), ("twice<int>", cp.int32)):
        x = cp.arange(4, dtype=dtype)
        module.get_function(name)((1,), (4,), (x,))
        assert x.get().tolist() == [0, 2, 4, 6]


def test_a_kernel_that_gxx_does_not_take_fails_at_its_launch_with_the_reason(cp: ModuleType) -> None:
    code = 'extern "C" __global__ void ptx(unsigned* x) { asm volatile("mov.u32 %0, %%laneid;" : "=r"(*x)); }'
    kernel = cp.RawKernel(code, "ptx")
    x = cp.zeros(1, cp.uint32)
    with pytest.raises(cp.cuda.driver.CUDADriverError):
        kernel((1,), (1,), (x,))
    (report,) = fakecuda.take_reports()
    assert report.kind == "no host kernel"
    assert "g++ does not take it" in report.text


def test_nvrtc_still_judges_each_source(cp: ModuleType) -> None:
    kernel = cp.RawKernel('extern "C" __global__ void f(int* x) { std::abs(1); }', "f")
    with pytest.raises(cp.cuda.compiler.CompileException):
        kernel((1,), (1,), (cp.zeros(1, cp.int32),))


def test_launches_have_limits(cp: ModuleType) -> None:
    kernel = cp.RawKernel('extern "C" __global__ void idle(int* x) {}', "idle")
    x = cp.zeros(1, cp.int32)
    for grid, block, shared in (((1,), (1025,), 0), ((1, 65536), (1,), 0), ((1,), (1, 1, 65), 0), ((1,), (1,), 49153)):
        with pytest.raises(cp.cuda.driver.CUDADriverError, match="cudaErrorInvalidValue"):
            kernel(grid, block, (x,), shared_mem=shared)
    kernel.max_dynamic_shared_size_bytes = 100_000
    kernel((1,), (1,), (x,), shared_mem=100_000)


# --- what launches touch -----------------------------------------------------------------------------------


@pytest.fixture
def streams(cp: ModuleType) -> Any:
    return [cp.cuda.Stream(non_blocking=True) for _ in range(2)]


def test_generated_kernels_touch_exactly_their_arrays(cp: ModuleType, streams: Any, clean: None) -> None:
    with streams[0]:
        x = cp.zeros((8, 8))
        event = streams[0].record()
    streams[1].wait_event(event)
    with streams[0]:
        x[:, :4] += 1
        x[::2, 4:] *= 2
    with streams[1]:
        x[1::2, 4:] = 5  # interleaved with what the other stream writes


def test_written_and_read_arrays_are_told_apart(cp: ModuleType, streams: Any) -> None:
    with streams[0]:
        x = cp.zeros(8)
        event = streams[0].record()
    streams[1].wait_event(event)
    for stream in streams:  # reads alone do not race
        with stream:
            x + 1
    assert kinds() == []
    with streams[0]:
        x.sum()
        cp.add(x, 1, out=x)
    assert kinds() == ["race"]


def test_broadcast_and_reversed_arrays(cp: ModuleType, streams: Any) -> None:
    with streams[0]:
        x = cp.zeros(16)
        event = streams[0].record()
    streams[1].wait_event(event)
    with streams[0]:
        x[:8] = 1
    with streams[1]:
        cp.broadcast_to(x[12:][::-1], (3, 4)) + 1
        assert kinds() == []
        cp.broadcast_to(x[4:12][::-1], (3, 8)) + 1
    assert kinds() == ["race"]


SHIFT = 'extern "C" __global__ void shift(const float* x, float* y, int n) { y[threadIdx.x % n] = x[threadIdx.x % n]; }'


def test_plain_pointers_reach_to_the_end_of_the_block_unless_declared(cp: ModuleType, streams: Any) -> None:
    kernel = cp.RawKernel(SHIFT, "shift")
    with streams[0]:
        x = cp.zeros(64, cp.float32)
        event = streams[0].record()
    streams[1].wait_event(event)

    def launch(stream: Any, source: int, target: int, *, declared: bool) -> None:
        read, written = x[source : source + 8], x[target : target + 8]
        if declared:
            fakecuda.kernel_access([read], [written])
        kernel((1,), (16,), (read, written, np.int32(8)), stream=stream)

    launch(streams[0], 0, 8, declared=False)
    launch(streams[1], 16, 24, declared=False)
    assert "race" in kinds()
    cp.cuda.runtime.deviceSynchronize()
    launch(streams[0], 0, 8, declared=True)
    launch(streams[1], 16, 24, declared=True)
    assert kinds() == []
    launch(streams[0], 0, 24, declared=True)
    assert kinds() == ["race"]


def test_a_kernel_is_declared_once_for_all(cp: ModuleType, streams: Any) -> None:
    kernel = cp.RawKernel(SHIFT, "shift")
    seen = []

    def describe(launch: Launch) -> tuple[list[Region], list[Region]]:
        seen.append(launch)
        n = launch.integer(2)
        x, y = (Region(launch.integer(i), (n,), (4,), 4) for i in (0, 1))
        return [x], [y]

    fakecuda.declare_kernel("shift", describe)
    try:
        with streams[0]:
            x = cp.zeros(64, cp.float32)
            event = streams[0].record()
        streams[1].wait_event(event)
        for stream, at in zip(streams, (0, 16), strict=True):
            kernel((1,), (16,), (x[at : at + 8], x[at + 8 : at + 16], np.int32(8)), stream=stream)
        assert kinds() == []
    finally:
        fakecuda.declare_kernel("shift", None)
    assert [launch.kernel for launch in seen] == ["shift", "shift"]
    assert (seen[0].grid, seen[0].block) == ((1, 1, 1), (16, 1, 1))
    assert seen[1].integer(0) == x[16:].data.ptr


# --- latches and spins -------------------------------------------------------------------------------------

LATCH = r"""
extern "C" __global__ void latch(const volatile unsigned* open, volatile unsigned* outcome) {
  while (!*open) __nanosleep(500);
  *outcome = 1;
}
extern "C" __global__ void spin(long long cycles) {
  long long start = clock64();
  while (clock64() - start < cycles) __nanosleep(1000);
}
"""


class Latch:
    def __init__(self, cp: ModuleType) -> None:
        self.memory = cp.cuda.alloc_pinned_memory(8)
        self.flags = np.frombuffer(self.memory, np.uint32, 2)
        self.flags[:] = 0
        module = cp.RawModule(code=LATCH)
        self.latch, self.spin = module.get_function("latch"), module.get_function("spin")

    def hold(self, stream: Any) -> None:
        self.latch((1,), (1,), (np.uint64(self.memory.ptr), np.uint64(self.memory.ptr + 4)), stream=stream)

    def release(self) -> None:
        self.flags[0] = 1


def test_a_latch_holds_its_stream_and_no_other(cp: ModuleType, clean: None, mode: str, streams: Any) -> None:
    latch = Latch(cp)
    with streams[0]:
        x = cp.zeros(10)
        latch.hold(streams[0])
        x += 1
        held = streams[0].record()
    with streams[1]:
        y = cp.zeros(10) + 2
        assert y.get().tolist() == [2.0] * 10
    for _ in range(20):
        assert not held.done
    assert set(fakecuda.numpy_view(x).tolist()) != {1.0}
    latch.release()
    held.synchronize()
    assert fakecuda.numpy_view(x).tolist() == [1.0] * 10
    assert latch.flags[1] == 1


def test_a_latch_that_is_never_released_ends(cp: ModuleType, mode: str, streams: Any) -> None:
    latch = Latch(cp)
    fakecuda.set_latch_timeout(0.02)
    try:
        latch.hold(streams[0])
        streams[0].synchronize()
        assert kinds() == ["latch timed out"]
    finally:
        fakecuda.set_latch_timeout(10)
    assert latch.flags[1] == 0


def test_a_reset_ends_latches(cp: ModuleType, mode: str, streams: Any) -> None:
    latch = Latch(cp)
    latch.hold(streams[0])
    fakecuda.reset()
    assert streams[0].done


def test_spinning_costs_no_time(cp: ModuleType, clean: None, streams: Any) -> None:
    Latch(cp).spin((1,), (1,), (np.int64(10_000_000_000),), stream=streams[0])
    streams[0].synchronize()
