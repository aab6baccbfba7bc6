"""Faults on demand: corrupt pairs, failing launches, lost devices."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests import fakecuda
from tests.fakecuda import faults


def kinds() -> list[str]:
    return [report.kind for report in fakecuda.take_reports()]


def copy_between(cp: ModuleType, x: Any, source: int, target: int) -> Any:
    with cp.cuda.Device(target):
        y = cp.ones(x.shape, x.dtype)
        cp.cuda.Stream.null.synchronize()
        cp.cuda.runtime.memcpyPeerAsync(y.data.ptr, target, x.data.ptr, source, x.nbytes, 0)
        cp.cuda.Stream.null.synchronize()
        return y


def test_a_corrupt_pair_silently_writes_zeros(cp: ModuleType, clean: None, mode: str) -> None:
    faults.corrupt_pair(0, 1)
    x = cp.arange(1, 9)
    x.get()
    assert copy_between(cp, x, 0, 1).get().tolist() == [0] * 8
    assert copy_between(cp, x, 0, 2).get().tolist() == list(range(1, 9))
    back = copy_between(cp, copy_between(cp, x, 0, 2), 2, 0)
    assert back.get().tolist() == list(range(1, 9))
    faults.clear()
    assert copy_between(cp, x, 0, 1).get().tolist() == list(range(1, 9))


def test_no_pair_at_all(cp: ModuleType) -> None:
    faults.no_peer()
    pairs = [(a, b) for a in range(8) for b in range(8)]
    assert not any(cp.cuda.runtime.deviceCanAccessPeer(a, b) for a, b in pairs)


def test_enabled_access_is_lost_with_the_pair(cp: ModuleType) -> None:
    with cp.cuda.Device(1):
        x = cp.zeros(4)
        cp.cuda.Stream.null.synchronize()
    kernel = cp.RawKernel('extern "C" __global__ void one(double* x) { *x = 1; }', "one")
    cp.cuda.runtime.deviceEnablePeerAccess(1)
    kernel((1,), (1,), (x,))
    assert kinds() == []
    faults.no_peer([(0, 1)])
    kernel((1,), (1,), (x,))
    assert kinds() == ["peer access not enabled"]


def test_peer_access_does_not_reach_stream_ordered_memory(cp: ModuleType) -> None:
    with cp.cuda.Device(1):
        stream = cp.cuda.Stream(non_blocking=True)
        ptr = cp.cuda.runtime.mallocAsync(64, stream.ptr)
        stream.synchronize()
    kernel = cp.RawKernel('extern "C" __global__ void one(double* x) { *x = 1; }', "one")
    cp.cuda.runtime.deviceEnablePeerAccess(1)
    kernel((1,), (1,), (np.uint64(ptr),))
    cp.cuda.runtime.deviceDisablePeerAccess(1)
    assert kinds() == ["peer access not enabled"]


def test_a_launch_fails_and_the_device_goes_on(cp: ModuleType) -> None:
    x = cp.zeros(4)
    faults.fail_launch("cupy_add", at=2)
    x + 1
    with pytest.raises(cp.cuda.driver.CUDADriverError, match="cudaErrorLaunchOutOfResources"):
        x + 1
    assert (x + 1).get().tolist() == [1.0] * 4
    assert kinds() == []


def test_a_kernel_fails_when_it_runs(cp: ModuleType) -> None:
    fakecuda.set_mode("lazy")
    with cp.cuda.Device(3):
        x = cp.zeros(4)
        cp.cuda.Stream.null.synchronize()
        stream, event = cp.cuda.Stream(non_blocking=True), cp.cuda.Event(disable_timing=True)
        faults.fail_kernel("cupy_add", device=3, error="cudaErrorLaunchFailure")
        with stream:
            y = x + 1  # the launch itself succeeds
            event.record(stream)
        runtime = cp.cuda.runtime
        for call in (
            event.synchronize,
            stream.synchronize,
            x.get,
            x.__neg__,
            runtime.deviceSynchronize,
            lambda: runtime.eventRecord(event.ptr, stream.ptr),
        ):
            with pytest.raises(RuntimeError, match="cudaErrorLaunchFailure"):
                call()
        assert not event.done  # CuPy's queries return the status, and raise nothing
        assert runtime.eventQuery(event.ptr) == runtime.streamQuery(stream.ptr) == 719
    assert cp.zeros(4).get().tolist() == [0.0] * 4  # other devices are healthy
    (report,) = fakecuda.take_reports()
    assert report.kind == "device lost"
    assert "device 3 in cupy_add" in report.text
    del x, y, call
    fakecuda.reset()
    with cp.cuda.Device(3):
        assert cp.zeros(4).get().tolist() == [0.0] * 4


def test_copies_from_and_to_a_lost_device_fail(cp: ModuleType) -> None:
    with cp.cuda.Device(2):
        x = cp.zeros(4)
        cp.cuda.Stream.null.synchronize()
    y = cp.zeros(4)
    cp.cuda.Stream.null.synchronize()
    faults.lose_device(2)
    for target, to_device, source, from_device in ((y, 0, x, 2), (x, 2, y, 0)):
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="cudaErrorECCUncorrectable"):
            cp.cuda.runtime.memcpyPeerAsync(target.data.ptr, to_device, source.data.ptr, from_device, 32, 0)
    faults.clear()
    cp.cuda.runtime.memcpyPeerAsync(y.data.ptr, 0, x.data.ptr, 2, 32, 0)
    assert kinds() == []


def test_what_a_lost_device_was_to_do_is_never_done(cp: ModuleType) -> None:
    """Its memory and that of the host may be gone by the time that the device is healthy again."""
    fakecuda.set_mode("lazy")
    with cp.cuda.Device(2):
        x = cp.zeros(4)
        stream = cp.cuda.Stream(non_blocking=True)
        stream.synchronize()
        cp.cuda.Stream.null.synchronize()
        pinned = cp.cuda.alloc_pinned_memory(32)
        np.frombuffer(pinned, np.float64, 4)[:] = 7
        cp.cuda.runtime.memcpyAsync(x.data.ptr, pinned.ptr, 32, 1, stream.ptr)
        faults.lose_device(2)
        faults.clear()
        stream.synchronize()
        assert x.get().tolist() == [0.0] * 4
    assert kinds() == []
