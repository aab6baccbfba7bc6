"""Counts: calls, what blocks, bytes by direction, and the log of copies."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from tests import fakecuda
from tests.fakecuda import HOST


def test_bytes_are_counted_by_direction(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    host = np.zeros(1000, np.uint8)
    pinned = cp.cuda.alloc_pinned_memory(1000)
    x, y = cp.zeros(1000, cp.uint8), cp.zeros(1000, cp.uint8)
    with cp.cuda.Device(1):
        z = cp.zeros(1000, cp.uint8)
    fakecuda.reset_counters()
    runtime.memcpy(x.data.ptr, host.ctypes.data, 100, 1)
    runtime.memcpyAsync(x.data.ptr, pinned.ptr, 200, 1, 0)
    runtime.memcpyAsync(pinned.ptr, x.data.ptr, 300, 2, 0)
    runtime.memcpyAsync(y.data.ptr, x.data.ptr, 400, 3, 0)
    runtime.memcpyPeerAsync(z.data.ptr, 1, x.data.ptr, 0, 500, 0)
    runtime.memset(x.data.ptr, 0, 600)
    counted = fakecuda.counters()
    assert counted.bytes == {"h2d": 300, "d2h": 300, "d2d": 400, "p2p": 500, "h2h": 0}
    assert counted.links == {(HOST, 0): 300, (0, HOST): 300, (0, 0): 400, (0, 1): 500}
    assert counted.filled == 600


def test_each_copy_is_logged(cp: ModuleType) -> None:
    with cp.cuda.Device(1):
        z = cp.zeros((4, 8), cp.uint8)
        cp.cuda.Stream.null.synchronize()
        stream = cp.cuda.Stream(non_blocking=True)
    x = cp.zeros((4, 8), cp.uint8)
    cp.cuda.Stream.null.synchronize()
    fakecuda.reset_counters()
    cp.cuda.runtime.memcpyPeerAsync(z.data.ptr, 1, x.data.ptr, 0, 32, stream.ptr)
    cp.cuda.runtime.memcpy2DAsync(x.data.ptr + 2, 8, x.data.ptr + 16, 8, 3, 2, 3, 0)
    peer, rows = fakecuda.copies()
    assert peer[:5] == (0, "p2p", False, z.data.ptr, x.data.ptr)
    assert (peer.target_device, peer.source_device, peer.nbytes) == (1, 0, 32)
    assert (peer.stream, peer.stream_device) == (stream.ptr, 1)
    assert (rows.direction, rows.nbytes, rows.width, rows.rows) == ("d2d", 6, 3, 2)
    assert (rows.target_pitch, rows.source_pitch) == (8, 8)
    assert (rows.number, rows.stream, rows.stream_device) == (1, 0, 0)


def test_what_blocks_is_counted_with_its_line(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    pinned = cp.cuda.alloc_pinned_memory(64)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        x = cp.empty(64, cp.uint8)
        x.fill(1)
        event = stream.record(cp.cuda.Event(disable_timing=True))
        fakecuda.reset_counters()
        runtime.memcpyAsync(x.data.ptr, pinned.ptr, 64, 1, stream.ptr)
        runtime.memcpyAsync(pinned.ptr, x.data.ptr, 64, 2, stream.ptr)
        event.record(stream)
        stream.wait_event(event)
        y = x + 1
        assert y.shape == (64,)
        assert event.done in (True, False)
    assert fakecuda.counters().blocking == {}
    stream.synchronize()
    event.synchronize()
    runtime.deviceSynchronize()
    values = np.zeros(64, np.uint8)
    runtime.memcpy(x.data.ptr, values.ctypes.data, 64, 1)
    runtime.memcpyAsync(x.data.ptr, values.ctypes.data, 64, 1, 0)
    counted = fakecuda.counters()
    assert counted.blocking == {
        "cudaStreamSynchronize": 1,
        "cudaEventSynchronize": 1,
        "cudaDeviceSynchronize": 1,
        "cudaMemcpy": 1,
        "cudaMemcpyAsync": 1,
    }
    first = counted.blocking_calls[0]
    assert first.name == "cudaStreamSynchronize"
    assert str(first.user).startswith(__file__)


def test_allocations_and_frees_may_block(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    fakecuda.reset_counters()
    runtime.free(runtime.malloc(64))
    runtime.freeHost(runtime.hostAlloc(64, 0))
    counted = fakecuda.counters()
    assert counted.implicit == {"cudaMalloc": 1, "cudaFree": 1, "cudaHostAlloc": 1, "cudaFreeHost": 1}
    assert counted.blocking == {}


def test_calls_and_launches_are_counted(cp: ModuleType) -> None:
    x = cp.zeros(4)
    x + 1
    fakecuda.reset_counters()
    for _ in range(3):
        x + 1
    counted = fakecuda.counters()
    assert list(counted.launches.values()) == [3]
    assert counted.calls["cuLaunchKernel"] == 3
