"""Memory and streams of the user's own: what they enqueued comes before ours, and ours before theirs."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from cuplace.runtime.platform import Platform
from tests.fakegpus import Case
from tests.runtime.streams import ADD_ONE, compute, move, put, read

pytestmark = pytest.mark.order(once=True)

VALUES = np.arange(24, dtype=np.int64)
CASES = [Case("eager"), Case("lazy"), Case("lazy", gpus=1), *[Case("random", seed) for seed in range(21, 27)],
         Case("threads")]  # fmt: skip
STREAMS = ["null", "blocking", "non-blocking"]


def user_stream(kind: str) -> Any:
    """A CuPy stream of the current device."""
    import cupy

    return cupy.cuda.Stream.null if kind == "null" else cupy.cuda.Stream(non_blocking=kind == "non-blocking")


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("cuda", CASES, indirect=True, ids=lambda case: case.label)
def test_our_work_comes_after_what_the_user_enqueued(cuda: Platform, kind: str) -> None:
    import cupy

    device, other = cuda.devices[3], cuda.devices[4]
    backend: Any = cuda.backend
    with cupy.cuda.Device(device.gpu), user_stream(kind):
        mine = cupy.asarray(VALUES)
        for _ in range(5):
            mine *= 2
        buffer = cuda.scheduler.adopt(mine, device, backend.exchange.stream(device))
        moved = move(buffer, other)
        result = compute(ADD_ONE, buffer)
        np.testing.assert_array_equal(read(result), VALUES * 32 + 1)
        np.testing.assert_array_equal(read(moved), VALUES * 32)


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("cuda", CASES, indirect=True, ids=lambda case: case.label)
def test_the_users_work_comes_after_ours_and_before_what_overwrites(cuda: Platform, kind: str) -> None:
    import cupy

    device = cuda.devices[3]
    backend: Any = cuda.backend
    buffer = compute(ADD_ONE, put(device, VALUES))
    with cupy.cuda.Device(device.gpu), user_stream(kind) as stream:
        with cuda.scheduler.lend(buffer, backend.exchange.stream(device)) as array:
            mine = array * 3
        cuda.scheduler.upload(buffer, VALUES * 0)
        del array, buffer
        for i in range(3):  # memory of the buffer may be somebody else's now
            read(put(device, VALUES + i))
        stream.synchronize()
        np.testing.assert_array_equal(mine.get(), (VALUES + 1) * 3)


def test_a_handle_is_a_stream_whoever_asks(cuda: Platform) -> None:
    import cupy

    device, other = cuda.devices[:2]
    backend: Any = cuda.backend
    with cupy.cuda.Device(0):
        stream = cupy.cuda.Stream()
    first, second = (backend.exchange.stream(device, stream.ptr) for _ in range(2))
    assert first == second
    assert len({first, second, backend.exchange.stream(device, 0), backend.exchange.stream(other, 0)}) == 3
    assert first.name == f"gpu:0 stream {stream.ptr:#x}"


def test_reads_of_one_stream_are_noted_once(cuda: Platform) -> None:
    device = cuda.devices[0]
    backend: Any = cuda.backend
    buffer = put(device, VALUES)
    for _ in range(10):
        with cuda.scheduler.lend(buffer, backend.exchange.stream(device, 0)):
            pass
    assert buffer.reads is not None
    assert len(buffer.reads) == 1


@pytest.mark.parametrize("cuda", [Case("lazy")], indirect=True)
def test_a_destroyed_stream_says_nothing_about_a_new_one_with_its_handle(cuda: Platform) -> None:
    """Its events stay its own: that a later stream is through does not make earlier work complete."""
    device = cuda.devices[0]
    backend: Any = cuda.backend
    stream = backend.exchange.stream(device, device.download.lane.ptr)
    latch = cuda.scheduler.hold(device.download)
    earlier = stream.record(1)
    later = backend.exchange.stream(device, device.upload.lane.ptr)
    later.handle = stream.handle
    assert stream == later
    event = later.record(2)
    backend.synchronize(event)
    assert event.done
    assert not earlier.done
    latch.release()
    backend.synchronize(earlier)


def test_leaving_the_block_with_an_error_notes_the_use_all_the_same(cuda: Platform) -> None:
    device = cuda.devices[0]
    backend: Any = cuda.backend
    buffer = put(device, VALUES)
    with (
        contextlib.suppress(KeyError),
        cuda.scheduler.lend(buffer, backend.exchange.stream(device, 0)),
    ):
        raise KeyError
    assert buffer.reads is not None
    assert len(buffer.reads) == 1
