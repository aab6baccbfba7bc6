"""What CUDA promises of streams, events and devices, and what it refuses."""

from __future__ import annotations

import ctypes
import os
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests import fakecuda
from tests.fakecuda import faults

DEFAULT, HOST_TO_DEVICE, DEVICE_TO_HOST = 4, 1, 2


def kinds() -> list[str]:
    return [report.kind for report in fakecuda.take_reports()]


def pinned_array(cp: ModuleType, values: Any) -> np.ndarray:
    values = np.asarray(values)
    memory = cp.cuda.alloc_pinned_memory(values.nbytes)
    fakecuda.host_access(memory.ptr, values.nbytes, write=True)
    array = np.frombuffer(memory, values.dtype, values.size).reshape(values.shape)
    array[...] = values
    return array


# --- order -------------------------------------------------------------------------------------------------


def test_a_wait_means_the_record_made_before_it(cp: ModuleType, clean: None) -> None:
    fakecuda.set_mode("lazy")
    first, second = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    event = cp.cuda.Event(disable_timing=True)
    with first:
        x = cp.zeros(100, cp.float32)
        event.record(first)
    second.wait_event(event)
    event.record(second)  # a later record does not change what was waited for
    with second:
        y = x + 1
    second.synchronize()
    assert cp.asnumpy(y, stream=second).tolist() == [1.0] * 100


def test_waiting_for_an_event_that_was_never_recorded_orders_nothing(cp: ModuleType) -> None:
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
    event = cp.cuda.Event(disable_timing=True)
    with streams[0]:
        x = cp.zeros(100)
    streams[1].wait_event(event)
    event.record(streams[0])
    with streams[1]:
        x += 1
    assert "race" in kinds()


def test_a_non_blocking_stream_is_not_ordered_with_the_default_stream(cp: ModuleType) -> None:
    x = cp.zeros(100)
    with cp.cuda.Stream(non_blocking=True):
        x += 1
    assert "race" in kinds()


def test_a_blocking_stream_is_ordered_with_the_default_stream(cp: ModuleType, clean: None, mode: str) -> None:
    x = cp.zeros(100)
    with cp.cuda.Stream():
        x += 1
    x *= 3
    assert x.get().tolist() == [3.0] * 100


def test_the_per_thread_default_stream_is_a_stream_of_its_own(cp: ModuleType) -> None:
    with cp.cuda.Stream(non_blocking=True):
        x = cp.zeros(100)
    with cp.cuda.Stream.ptds:
        x += 1
    (report,) = fakecuda.take_reports()
    assert report.sides[0].actor.startswith("per-thread default stream")


def test_host_waits_order_the_host(cp: ModuleType, clean: None, mode: str) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    source = pinned_array(cp, np.arange(64, dtype=np.float32))
    with stream:
        x = cp.empty(64, cp.float32)
        cp.cuda.runtime.memcpyAsync(x.data.ptr, source.ctypes.data, 256, HOST_TO_DEVICE, stream.ptr)
    stream.synchronize()
    fakecuda.host_access(source.ctypes.data, 256, write=True)
    source[:] = -1
    assert x.get(stream=stream).tolist() == list(range(64))


def test_polling_gets_there_in_the_end(cp: ModuleType, clean: None, mode: str) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        x = cp.zeros(10) + 1
        event = stream.record()
    while not event.done:
        pass
    fakecuda.host_access(x.data.ptr, x.nbytes, write=False)
    assert fakecuda.numpy_view(x).tolist() == [1.0] * 10


def test_lazy_runs_nothing_until_the_host_waits(cp: ModuleType) -> None:
    fakecuda.set_mode("lazy")
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        x = cp.zeros(1000, cp.uint8)
        assert set(fakecuda.numpy_view(x).tolist()) == {0xCB}  # still as it was allocated
        assert not stream.done
    stream.synchronize()
    assert set(fakecuda.numpy_view(x).tolist()) == {0}


def test_a_copy_to_pageable_memory_waits_and_one_from_it_takes_the_value_of_the_call(
    cp: ModuleType, clean: None, mode: str
) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        values = np.arange(1000)
        x = cp.empty(1000, values.dtype)
        cp.cuda.runtime.memcpyAsync(x.data.ptr, values.ctypes.data, values.nbytes, HOST_TO_DEVICE, stream.ptr)
        values[:] = -1
        out = np.empty(1000, values.dtype)
        cp.cuda.runtime.memcpyAsync(out.ctypes.data, x.data.ptr, out.nbytes, DEVICE_TO_HOST, stream.ptr)
    assert out.tolist() == list(range(1000))


def test_rows_and_slices_are_copied_between_all_kinds_of_memory(cp: ModuleType, clean: None, mode: str) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    values = np.arange(24, dtype=np.uint8).reshape(4, 6)
    source = pinned_array(cp, values)
    with stream:
        x = cp.zeros((4, 8), cp.uint8)
        cp.cuda.runtime.memcpy2DAsync(x.data.ptr + 1, 8, source.ctypes.data + 2, 6, 3, 4, HOST_TO_DEVICE, stream.ptr)
    expected = np.zeros((4, 8), np.uint8)
    expected[:, 1:4] = values[:, 2:5]
    assert np.array_equal(x.get(stream=stream), expected)


class CopyParms(ctypes.Structure):
    """``cudaMemcpy3DParms``."""

    _fields_ = [
        ("source_array", ctypes.c_void_p), ("source_position", ctypes.c_size_t * 3), ("source", ctypes.c_size_t * 4),
        ("target_array", ctypes.c_void_p), ("target_position", ctypes.c_size_t * 3), ("target", ctypes.c_size_t * 4),
        ("extent", ctypes.c_size_t * 3), ("kind", ctypes.c_int),
    ]  # fmt: skip


def test_slices_are_copied(cp: ModuleType, clean: None, mode: str) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        x = cp.arange(3 * 4 * 8, dtype=cp.uint8).reshape(3, 4, 8)
        y = cp.zeros((2, 3, 16), cp.uint8)
        three = ctypes.c_size_t * 3
        parms = CopyParms(
            None, three(2, 1, 1), (x.data.ptr, 8, 8, 4),
            None, three(5, 0, 0), (y.data.ptr, 16, 16, 3),
            three(4, 3, 2), DEFAULT,
        )  # fmt: skip
        cp.cuda.runtime.memcpy3DAsync(ctypes.addressof(parms), stream.ptr)
        (copy,) = [copy for copy in fakecuda.copies() if copy.slices == 2]
    expected = np.zeros((2, 3, 16), np.uint8)
    expected[:, :, 5:9] = x.get(stream=stream)[1:, 1:, 2:6]
    assert np.array_equal(y.get(stream=stream), expected)
    assert (copy.nbytes, copy.width, copy.rows) == (24, 4, 3)


# --- refusals ----------------------------------------------------------------------------------------------


def test_events_belong_to_a_device(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    event = runtime.eventCreateWithFlags(2)
    with cp.cuda.Device(1):
        stream = cp.cuda.Stream(non_blocking=True)
        with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorInvalidResourceHandle"):
            runtime.eventRecord(event, stream.ptr)
    assert kinds() == ["wrong device"]
    stream.synchronize()
    runtime.streamWaitEvent(stream.ptr, event)  # waiting across devices is fine
    assert kinds() == []


def test_elapsed_time_needs_timed_events_of_one_device(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    start, end = cp.cuda.Event(), cp.cuda.Event()
    start.record()
    end.record()
    end.synchronize()
    assert cp.cuda.get_elapsed_time(start, end) >= 0
    untimed = cp.cuda.Event(disable_timing=True)
    untimed.record()
    with cp.cuda.Device(1):
        elsewhere = cp.cuda.Event()
        elsewhere.record()
        elsewhere.synchronize()
    for other in (untimed, elsewhere):
        with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorInvalidResourceHandle"):
            cp.cuda.get_elapsed_time(start, other)


def test_a_launch_on_a_stream_of_another_device_is_refused(cp: ModuleType) -> None:
    x = cp.zeros(4)
    with cp.cuda.Device(1):
        stream = cp.cuda.Stream(non_blocking=True)
    kernel = cp.RawKernel('extern "C" __global__ void one(double* x) { *x = 1; }', "one")
    with pytest.raises(cp.cuda.driver.CUDADriverError):
        kernel((1,), (1,), (x,), stream=stream)
    assert "wrong device" in kinds()


def test_stale_handles_are_noticed(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    stream, event = runtime.streamCreateWithFlags(1), runtime.eventCreateWithFlags(2)
    runtime.streamDestroy(stream)
    runtime.eventDestroy(event)
    for call in (
        lambda: runtime.streamSynchronize(stream),
        lambda: runtime.streamDestroy(stream),
        lambda: runtime.eventSynchronize(event),
        lambda: runtime.eventDestroy(event),
    ):
        with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorInvalidResourceHandle"):
            call()  # type: ignore[no-untyped-call]
    assert set(kinds()) == {"invalid handle"}


def test_a_peer_copy_names_the_devices_of_its_memory(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    x = cp.zeros(4)
    with cp.cuda.Device(1):
        y = cp.zeros(4)
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorInvalidValue"):
        runtime.memcpyPeerAsync(y.data.ptr, 2, x.data.ptr, 0, x.nbytes, 0)
    assert kinds() == ["wrong device"]
    runtime.memcpyPeerAsync(y.data.ptr, 1, x.data.ptr, 0, x.nbytes, 0)
    assert kinds() == []


def test_a_copy_in_the_wrong_direction_is_refused(cp: ModuleType) -> None:
    x = cp.zeros(4)
    out = np.zeros(4)
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="cudaErrorInvalidMemcpyDirection"):
        cp.cuda.runtime.memcpy(out.ctypes.data, x.data.ptr, x.nbytes, HOST_TO_DEVICE)
    assert kinds() == ["wrong direction"]


def test_graphs_are_not_supported(cp: ModuleType) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="cudaErrorNotSupported"):
        stream.begin_capture()


def test_a_kernel_cannot_read_pageable_memory(cp: ModuleType) -> None:
    kernel = cp.RawKernel('extern "C" __global__ void peek(const double* x, double* y) { *y = *x; }', "peek")
    pageable, y = np.ones(4), cp.zeros(1)
    kernel((1,), (1,), (np.uint64(pageable.ctypes.data), y))
    assert kinds() == ["not device memory"]


def test_a_forked_child_has_no_devices(cp: ModuleType) -> None:
    cp.zeros(4)
    child = os.fork()
    if child == 0:
        try:
            cp.cuda.runtime.deviceSynchronize()
        except cp.cuda.runtime.CUDARuntimeError as error:
            os._exit(0 if "cudaErrorInitializationError" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- devices -----------------------------------------------------------------------------------------------


def test_devices_are_told_apart(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    assert runtime.getDeviceCount() == 8
    properties = [runtime.getDeviceProperties(i) for i in range(8)]
    assert len({p["uuid"] for p in properties}) == 8
    assert {runtime.deviceGetByPCIBusId(runtime.deviceGetPCIBusId(i)) for i in range(8)} == set(range(8))
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorInvalidDevice"):
        cp.cuda.Device(8).use()


def test_fewer_devices_can_be_visible(cp: ModuleType) -> None:
    with fakecuda.visible_devices(2):
        assert cp.cuda.runtime.getDeviceCount() == 2
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="cudaErrorInvalidDevice"):
            cp.cuda.Device(2).use()
    assert cp.cuda.runtime.getDeviceCount() == 8


def test_peer_access_is_enabled_once(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    assert runtime.deviceCanAccessPeer(0, 1)
    assert not runtime.deviceCanAccessPeer(0, 0)
    runtime.deviceEnablePeerAccess(1)
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorPeerAccessAlreadyEnabled"):
        runtime.deviceEnablePeerAccess(1)
    runtime.deviceDisablePeerAccess(1)
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorPeerAccessNotEnabled"):
        runtime.deviceDisablePeerAccess(1)


def test_installing_again_with_other_devices_is_refused(cp: ModuleType) -> None:
    fakecuda.install(devices=8)
    with pytest.raises(RuntimeError, match="is installed with 8 devices, not 2"):
        fakecuda.install(devices=2)
    with pytest.raises(ValueError, match="1 to 64 devices, not 65"):
        fakecuda.install(devices=65)


def test_streams_and_events_are_counted_while_they_live(cp: ModuleType) -> None:
    before = fakecuda.counters()
    stream = cp.cuda.Stream(non_blocking=True)
    events = [cp.cuda.Event(disable_timing=True) for _ in range(3)]
    now = fakecuda.counters()
    assert (now.streams, now.events) == (before.streams + 1, before.events + 3)
    del stream, events
    after = fakecuda.counters()
    assert (after.streams, after.events) == (before.streams, before.events)


def test_work_of_a_destroyed_stream_completes(cp: ModuleType, clean: None) -> None:
    fakecuda.set_mode("lazy")
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        x = cp.zeros(10) + 1
        event = stream.record(cp.cuda.Event(disable_timing=True))
    del stream
    event.synchronize()
    assert fakecuda.numpy_view(x).tolist() == [1.0] * 10


def test_no_peer_pairs(cp: ModuleType) -> None:
    runtime = cp.cuda.runtime
    faults.no_peer([(0, 1)])
    assert not runtime.deviceCanAccessPeer(0, 1)
    assert runtime.deviceCanAccessPeer(1, 0)
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorPeerAccessUnsupported"):
        runtime.deviceEnablePeerAccess(1)
