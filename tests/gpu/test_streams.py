"""Streams of real GPUs: that they are apart, that calls do not wait for them, and that the host waits quietly."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuplace.runtime.buffer import Buffer
from cuplace.runtime.device import Device
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.platform import Platform
from tests import fakecuda, hardware
from tests.runtime.streams import ADD_ONE, SQUARE, compute, finish, move, new, put, read

pytestmark = pytest.mark.gpu

VALUES = np.arange(1000, dtype=np.int64)


def ready(device: Device) -> Buffer:
    """Values on a device, after all that is done at first uses: kernels are loaded, pools grown, paths found."""
    source = put(device, VALUES)
    np.testing.assert_array_equal(read(compute(ADD_ONE, source)), VALUES + 1)
    return source


def test_streams_are_non_blocking_and_transfers_go_first(platform: Platform) -> None:
    from cupy.cuda import runtime

    device, other = platform.devices[0], platform.devices[-1]
    with backend_of(platform).gpus[0].device:
        for stream in (device.compute, device.upload, device.download, device.transfer_to(other)):
            lane: Any = stream.lane
            assert runtime.streamGetFlags(lane.ptr) & runtime.streamNonBlocking
            priority = runtime.streamGetPriority(lane.ptr)
            assert priority == 0 if stream is device.compute else priority < 0


def backend_of(platform: Platform) -> Any:
    return platform.backend


def streams_of(device: Device) -> dict[str, Any]:
    return {
        "compute": device.compute,
        "upload": device.upload,
        "download": device.download,
        "local": device.transfer_to(device),
    }


def goes_on(role: str, source: Buffer) -> None:
    """Work on one stream of a device, and a wait for it."""
    device = source.device
    done = {
        "compute": lambda: compute(SQUARE, source),
        "upload": lambda: put(device, VALUES),
        "download": lambda: read(source),
        "local": lambda: move(source, device),
    }[role]()
    if isinstance(done, Buffer):
        device.scheduler.host_wait([done])


@pytest.mark.gpu("one")
@pytest.mark.parametrize("role", ["compute", "upload", "download", "local"])
def test_each_stream_goes_on_while_all_others_are_held(platform: Platform, role: str) -> None:
    """Eight partitions of one GPU have 32 streams. Streams that shared a queue of the hardware would wait for each
    other here: the latches would time out."""
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    sources = [ready(device) for device in platform.devices]
    for source in sources if hardware.chosen() else sources[::7]:
        goes_on(role, source)
        free = streams_of(source.device)[role]
        others = [stream for device in platform.devices for stream in streams_of(device).values()]
        latches = [platform.scheduler.hold(stream) for stream in others if stream.lane is not free.lane]
        assert len(latches) == 31
        goes_on(role, source)
        assert all(latch.held for latch in latches)
        for latch in latches:
            latch.release()


def test_copies_arrive_while_compute_is_held(platform: Platform) -> None:
    device, other = platform.devices[0], platform.devices[-1]
    for each in (device, other):
        ready(each)
    read(move(ready(device), other))
    latches = [platform.scheduler.hold(each.compute) for each in (device, other)]
    up = put(device, VALUES * 3)
    np.testing.assert_array_equal(read(up), VALUES * 3)
    np.testing.assert_array_equal(read(move(up, other)), VALUES * 3)
    np.testing.assert_array_equal(read(move(up, device)), VALUES * 3)
    assert all(latch.held for latch in latches)
    for latch in latches:
        latch.release()


def test_work_goes_on_while_copies_are_held(platform: Platform) -> None:
    device, other = platform.devices[0], platform.devices[-1]
    source = ready(device)
    read(move(source, other))
    latches = [platform.scheduler.hold(stream) for stream in (device.upload, device.transfer_to(other))]
    held = [put(device, VALUES), move(source, other)]
    np.testing.assert_array_equal(read(compute(SQUARE, source)), VALUES**2)
    assert not any(platform.scheduler.is_ready([buffer]) for buffer in held)
    assert all(latch.held for latch in latches)
    for latch in latches:
        latch.release()
    for buffer in held:
        np.testing.assert_array_equal(read(buffer), VALUES)


def test_calls_return_while_every_stream_is_held(platform: Platform) -> None:
    device, other = platform.devices[:2]
    source = ready(device)
    ready(other)
    read(move(source, other))
    streams = [*device.streams(), *other.streams()]
    latches = [platform.scheduler.hold(stream) for stream in streams]
    moved = move(compute(SQUARE, source), other)
    later = [compute(ADD_ONE, moved), *(compute(ADD_ONE, put(device, VALUES + i)) for i in range(5))]
    assert not any(platform.scheduler.is_ready([buffer]) for buffer in [moved, *later])
    assert all(latch.held for latch in latches)
    for latch in latches:
        latch.release()
    np.testing.assert_array_equal(read(later[0]), VALUES**2 + 1)
    for i, buffer in enumerate(later[1:]):
        np.testing.assert_array_equal(read(buffer), VALUES + i + 1)


@pytest.mark.gpu("one")
def test_a_forgotten_latch_opens_by_itself(platform: Platform) -> None:
    """After ten seconds of the GPU's own clock, which is how long this test takes on hardware."""
    from cupy.cuda import runtime

    device = platform.devices[0]
    source = ready(device)
    if not hardware.chosen():
        fakecuda.set_latch_timeout(0.05)
    latch = platform.scheduler.hold(device.compute)
    result = compute(SQUARE, source)
    assert latch.held
    runtime.streamSynchronize(device.compute.lane.ptr)
    np.testing.assert_array_equal(read(result), VALUES**2)
    assert not latch.held
    if hardware.chosen():
        assert latch.timed_out
    else:  # where the kernel is left out, and that is reported
        fakecuda.set_latch_timeout(10)
        assert {report.kind for report in fakecuda.take_reports()} == {"latch timed out"}


def test_events_are_used_again(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy.cuda import runtime

    source = ready(platform.devices[0])
    create, made = runtime.eventCreateWithFlags, []

    def count(flags: int) -> Any:
        made.append(flags)
        return create(flags)

    for _ in range(50):
        read(compute(ADD_ONE, source))
    monkeypatch.setattr(runtime, "eventCreateWithFlags", count)
    for _ in range(200):
        read(compute(ADD_ONE, source))
    assert len(made) <= 10


def test_a_wait_leaves_the_processor_to_others(platform: Platform) -> None:
    """It polls, with pauses: of 0.4 s it may work for a small part."""
    device = platform.devices[0]
    source = ready(device)
    latch = platform.scheduler.hold(device.compute)
    result = compute(SQUARE, source)
    release = threading.Timer(0.4, latch.release)
    release.start()
    start = time.thread_time()
    platform.scheduler.host_wait([result])
    assert time.thread_time() - start < 0.2
    release.join()


def upload(platform: Platform, device: Device) -> None:
    put(device, VALUES)


def work(platform: Platform, device: Device) -> None:
    read(compute(SQUARE, put(device, VALUES)))


def send(platform: Platform, device: Device) -> None:
    read(move(put(device, VALUES), platform.devices[0]))


@pytest.mark.parametrize("door", [upload, work, send], ids=lambda door: door.__name__)
def test_the_users_device_and_stream_stay_current(platform: Platform, door: Callable[[Platform, Device], None]) -> None:
    import cupy

    ordinal = backend_of(platform).gpus[-1].ordinal
    with cupy.cuda.Device(ordinal), cupy.cuda.Stream(non_blocking=True) as stream:
        for device in platform.devices:
            door(platform, device)
            assert (cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr) == (ordinal, stream.ptr)


def test_memory_comes_back_while_its_reader_is_held(platform: Platform) -> None:
    """A dead block is not used before its reader has ended, and its GPU waits for nothing because of that."""
    device, other = platform.devices[0], platform.devices[-1]
    source = ready(device)
    read(move(source, other))
    latch = platform.scheduler.hold(device.transfer_to(other))
    dying = compute(SQUARE, source)
    moved = move(dying, other)
    del dying
    news = [new(device, source, TRANSFER) for _ in range(4)]
    for i, buffer in enumerate(news):
        platform.scheduler.upload(buffer, VALUES * i)
    for i, buffer in enumerate(news):
        np.testing.assert_array_equal(read(buffer), VALUES * i)
    latch.release()
    np.testing.assert_array_equal(read(moved), VALUES**2)
    finish(platform)
