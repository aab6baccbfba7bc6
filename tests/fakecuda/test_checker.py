"""The race checker: bugs planted in a small transfer engine are reported under every schedule, correct code never."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests import fakecuda

DEVICES = 4
SIZE = 1024
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
ADD_INTO = r"""
extern "C" __global__ void add_into(float* total, const float* x, long long n) {
  long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
    total[i] += x[i];
}
"""
random = np.random.default_rng(0)


def fresh_values() -> np.ndarray:
    """New values each time: bytes left in a reused block must not pass for the right ones."""
    return random.integers(0, 1 << 20, SIZE).astype(np.float32)


class Buffer:
    """Memory on a device, the event of its last use, and the stream whose arena it came from."""

    def __init__(self, device: int, array: Any, event: Any, home: Any) -> None:
        self.device, self.array, self.event, self.home = device, array, event, home
        self.source: Buffer | None = None  # kept alive while a copy may still read it


class Engine:
    """Puts, moves and adds, on one compute stream and one transfer stream a device. ``bug``: what is left out."""

    def __init__(self, cp: ModuleType, bug: str | None) -> None:
        self.cp, self.bug = cp, bug
        self.compute, self.transfer = [], []
        for device in range(DEVICES):
            with cp.cuda.Device(device):
                self.compute.append(cp.cuda.Stream(non_blocking=True))
                self.transfer.append(cp.cuda.Stream(non_blocking=True))
        self.staging: list[Any] = []  # pinned blocks that copies may still read
        self.add_into = cp.RawModule(code=ADD_INTO, options=("-std=c++17",)).get_function("add_into")

    def record(self, stream: Any) -> Any:
        return stream.record(self.cp.cuda.Event(disable_timing=True))

    def put_host(self, values: np.ndarray, device: int) -> Buffer:
        cp, stream = self.cp, self.compute[device]
        with cp.cuda.Device(device), stream:
            array = cp.empty(values.shape, values.dtype)
            pinned = cp.cuda.alloc_pinned_memory(values.nbytes)
            if self.bug != "recycles, undeclared":
                fakecuda.host_access(pinned.ptr, values.nbytes, write=True)
            np.frombuffer(pinned, values.dtype, values.size)[:] = values
            cp.cuda.runtime.memcpyAsync(array.data.ptr, pinned.ptr, values.nbytes, HOST_TO_DEVICE, stream.ptr)
            event = self.record(stream)
        if not str(self.bug).startswith("recycles"):
            self.staging.append(pinned)  # else the pool hands it out again at once
        return Buffer(device, array, event, stream)

    def put_device(self, buffer: Buffer, device: int) -> Buffer:
        cp, stream = self.cp, self.transfer[device]
        with cp.cuda.Device(device), stream:
            array = cp.empty(buffer.array.shape, buffer.array.dtype)
            if self.bug != "no wait for the producer":
                stream.wait_event(buffer.event)
            source = buffer.array
            cp.cuda.runtime.memcpyPeerAsync(
                array.data.ptr, device, source.data.ptr, buffer.device, source.nbytes, stream.ptr
            )
            event = self.record(stream)
        result = Buffer(device, array, event, stream)
        if not str(self.bug).startswith("drops"):
            result.source = buffer
        return result

    def add(self, total: Buffer, x: Buffer) -> None:
        cp, stream = self.cp, self.compute[total.device]
        with cp.cuda.Device(total.device), stream:
            if self.bug != "no wait for the transfer":
                stream.wait_event(total.event)
                stream.wait_event(x.event)
            self.add_into((8,), (64,), (total.array, x.array, np.int64(total.array.size)))
            total.event = x.event = self.record(stream)
            for buffer in (total, x):  # its arena may give the memory to others only after this use
                buffer.home.wait_event(total.event)

    def get(self, buffer: Buffer) -> np.ndarray:
        out = np.empty(buffer.array.shape, buffer.array.dtype)
        buffer.event.synchronize()
        self.cp.cuda.runtime.memcpy(out.ctypes.data, buffer.array.data.ptr, out.nbytes, DEVICE_TO_HOST)
        return out


# --- programs: each returns whether its result is right ----------------------------------------------------


def ring(engine: Engine) -> bool:
    """12 hops over the devices, adding 1 at each."""
    values = fresh_values()
    total, one = engine.put_host(values, 0), engine.put_host(np.ones_like(values), 0)
    for _ in range(12):
        engine.add(total, one)
        device = (total.device + 1) % DEVICES
        total, one = engine.put_device(total, device), engine.put_device(one, device)
    return np.array_equal(engine.get(total), values + 12)


def fan_out(engine: Engine) -> bool:
    """One source to three devices; then it is dropped and its block is used anew."""
    values = fresh_values()
    source = engine.put_host(values, 0)
    copies = [engine.put_device(source, device) for device in (1, 2, 3)]
    if engine.bug == "drops the source after its readers":  # no bug: its home stream waits for all readers first
        for copy in copies:
            source.home.wait_event(copy.event)
    del source
    engine.put_host(np.full_like(values, -1), 0)
    return all(np.array_equal(engine.get(copy), values) for copy in copies)


def staging(engine: Engine) -> bool:
    """Two host arrays, one after the other, through pinned staging blocks."""
    first, second = fresh_values(), fresh_values()
    buffers = [engine.put_host(first, 0), engine.put_host(second, 0)]
    return all(np.array_equal(engine.get(b), v) for b, v in zip(buffers, (first, second), strict=True))


def peer_kernel(engine: Engine) -> bool:
    """A kernel on device 0 that adds into memory of device 3."""
    cp, stream = engine.cp, engine.compute[0]
    has_access = engine.bug != "no peer access"
    with cp.cuda.Device(0):
        if has_access:
            cp.cuda.runtime.deviceEnablePeerAccess(3)
    values = fresh_values()
    total, one = engine.put_host(values, 3), engine.put_host(np.ones_like(values), 0)
    with cp.cuda.Device(0), stream:
        stream.wait_event(total.event)
        engine.add_into((8,), (64,), (total.array, one.array, np.int64(SIZE)))
        total.event = engine.record(stream)
        total.home.wait_event(total.event)
    result = np.array_equal(engine.get(total), values + 1)
    with cp.cuda.Device(0):
        if has_access:
            cp.cuda.runtime.deviceDisablePeerAccess(3)
    return result


class Row(NamedTuple):
    """A program, what is wrong with it, the kind of report, and whether some schedule gives a wrong value."""

    program: Callable[[Engine], bool]
    bug: str | None
    kind: str | None
    gives_wrong_value: bool

    def __str__(self) -> str:
        return f"{self.program.__name__}: {self.bug or 'correct'}"


ROWS = [
    Row(ring, None, None, False),
    Row(ring, "no wait for the producer", "race", True),
    Row(ring, "no wait for the transfer", "race", True),
    Row(fan_out, None, None, False),
    Row(fan_out, "drops the source", "race", True),
    Row(fan_out, "drops the source after its readers", None, False),
    Row(staging, None, None, False),
    Row(staging, "recycles", "race", True),
    Row(staging, "recycles, undeclared", None, True),  # the checker cannot see what nobody tells it
    Row(peer_kernel, None, None, False),
    Row(peer_kernel, "no peer access", "peer access not enabled", False),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_bugs_are_reported_in_every_mode_and_correct_programs_never(cp: ModuleType, row: Row) -> None:
    engine = Engine(cp, row.bug)
    wrong = 0
    with fakecuda.cupy_pool():
        for schedule in fakecuda.schedules():
            wrong += not row.program(engine)
            fakecuda.set_mode("eager")  # finishes what is still queued
            engine.staging.clear()
            kinds = {report.kind for report in fakecuda.take_reports()}
            assert kinds == ({row.kind} if row.kind else set()), schedule
    assert (wrong > 0) == row.gives_wrong_value


def test_a_report_names_both_sides(cp: ModuleType) -> None:
    write, read = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    fakecuda.name_stream(write, "writer")
    fakecuda.name_stream(read.ptr, "reader")
    with write:
        x = cp.zeros(10, cp.float32)
    with read:
        x + 1
    (report,) = fakecuda.take_reports()
    later, earlier = report.sides
    assert report.kind == "race"
    assert "bytes [0, 40) of a block of 512 bytes in device 0" in report.text
    assert (later.access, earlier.access) == ("read", "write")
    assert (later.actor, earlier.actor) == ("reader of device 0", "writer of device 0")
    assert later.what.startswith("cupy_add")
    assert earlier.what == "cudaMemsetAsync"
    for side in report.sides:
        assert str(side.user).startswith(__file__)
        assert str(side.user).endswith("in test_a_report_names_both_sides")
    assert "writer of device 0" in str(report)


def test_the_line_of_the_library_is_told_apart_from_the_users(cp: ModuleType, tmp_path: Any) -> None:
    source = tmp_path / "engine" / "copying.py"
    source.parent.mkdir()
    source.write_text("def double(x):\n    return x + x\n")
    namespace: dict[str, Any] = {}
    exec(compile(source.read_text(), str(source), "exec"), namespace)
    fakecuda.set_library_folders([source.parent])
    try:
        with cp.cuda.Stream(non_blocking=True):
            x = cp.zeros(10)
        with cp.cuda.Stream(non_blocking=True):
            namespace["double"](x)
    finally:
        fakecuda.set_library_folders([])
    later = fakecuda.take_reports()[0].sides[0]
    assert later.library == f"{source}:2 in double"
    assert str(later.user).startswith(__file__)


def test_a_repeated_finding_is_counted(cp: ModuleType) -> None:
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
    with streams[0]:
        x = cp.zeros(10)
    for _ in range(5):
        for stream in streams:
            with stream:
                x += 1
    reports = fakecuda.take_reports()
    assert sum(report.count for report in reports) >= 9
    assert len(reports) <= 4
    assert fakecuda.take_reports() == []
