"""Host arrays on their way to GPUs and back: values as of the call, bounded memory, and who waits for what."""

from __future__ import annotations

import gc
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import NamedSharding, P
from cuplace.placement.memory_space import UNPINNED_HOST
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.config import config
from cuplace.runtime.packing import WORTHWHILE
from cuplace.runtime.platform import Platform, activated
from tests import fakecuda, fakegpus
from tests.fakegpus import CASES, Case
from tests.runtime.streams import ADD_ONE, compute, finish, in_threads, move, put, read, used
from tests.runtime.test_host_memory import moved

pytestmark = pytest.mark.order(once=True)

MIB = 1 << 20
EAGER = Case("eager")


def labels(case: Case) -> str:
    return case.label


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


Opener = Callable[..., Platform]


@pytest.fixture
def open_small(fake_gpus: None, restored_config: None) -> Iterator[Opener]:
    """Opens the platform with a small ring, and closes it at the end of the test."""
    opened = []

    def open_it(staging_bytes: int = 256 * MIB, case: Case = EAGER) -> Platform:
        config.update("staging_bytes", staging_bytes)
        opened.append(fakegpus.open_fake(case))
        return opened[-1]

    yield open_it
    for platform in opened:
        platform.scheduler.release_latches()
        platform.close()
    fakegpus.assert_no_reports()


# ---------------------------------------------------------------------- values


def mapped(count: int) -> Any:
    """A file, mapped for reading and writing."""
    with tempfile.TemporaryFile() as file:
        values = np.memmap(file, np.float32, "w+", shape=(count,))
    values[...] = np.arange(count)
    return values


LAYOUTS: dict[str, Callable[[int], Any]] = {
    "contiguous": lambda count: np.arange(count, dtype=np.float32),
    "strided": lambda count: np.arange(2 * count, dtype=np.float32)[::2],
    "reversed": lambda count: np.arange(count, dtype=np.float32)[::-1],
    "fortran": lambda count: np.asfortranarray(np.arange(count, dtype=np.float32).reshape(2, -1)),
    "wider": lambda count: np.arange(count, dtype=np.float64),
    "memmap": mapped,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [2, 256, MIB // 4, 10 * MIB // 4])
@pytest.mark.parametrize("case", [Case("eager"), Case("lazy")], ids=labels)
def test_the_value_is_as_of_the_call(open_small: Opener, layout: str, count: int, case: Case) -> None:
    """8 bytes to 10 MiB through a ring of 16 MiB, with the stream held; the source is overwritten at once."""
    platform = open_small(16 * MIB, case)
    device = platform.devices[0]
    host = LAYOUTS[layout](count)
    expected = host.astype(np.float32)
    buffer = platform.scheduler.allocate(device, host.shape, np.dtype(np.float32))
    latch = platform.scheduler.hold(device.upload)
    platform.scheduler.upload(buffer, host)
    host[...] = -1
    assert not platform.scheduler.is_ready([buffer])
    latch.release()
    np.testing.assert_array_equal(read(buffer), expected)


@pytest.mark.deep
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_value_of_a_large_source_is_as_of_the_call(cuda: Platform, layout: str) -> None:
    """300 MiB do not fit into the ring: the call waits for the latch, which another thread releases."""
    host = LAYOUTS[layout](300 * MIB // 4)
    expected = host.astype(np.float32)
    latch = cuda.scheduler.hold(cuda.devices[0].upload)
    release = threading.Timer(0.5, latch.release)
    release.start()
    buffer = put(cuda.devices[0], host, np.float32)
    assert not latch.held
    host[...] = -1
    np.testing.assert_array_equal(read(buffer), expected)


def test_a_file_larger_than_the_ring_is_read_piece_by_piece(open_small: Opener, tmp_path: Path) -> None:
    np.arange(3 * MIB, dtype=np.int32).tofile(tmp_path / "values")
    platform = open_small(MIB)
    mapped = np.memmap(tmp_path / "values", np.int32, "r", shape=(1024, 3072))
    buffer = put(platform.devices[1], mapped, np.int32)
    np.testing.assert_array_equal(read(buffer), mapped)
    backend: Any = platform.backend
    assert backend.ring.peak <= MIB


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1000, 1001), (2, 3, 100_003)], ids=str)
def test_what_goes_up_comes_down(open_small: Opener, shape: tuple[int, ...]) -> None:
    platform = open_small(MIB)
    values = numbers(*shape)
    np.testing.assert_array_equal(read(put(platform.devices[0], values, np.float32)), values)


def test_threads_may_read_at_the_same_time(open_small: Opener) -> None:
    """More threads than the ring has blocks for; each gets its own values."""
    platform = open_small(64 << 10, Case("threads"))
    buffers = [put(platform.devices[i % 2], numbers(50_000) + i, np.float32) for i in range(12)]
    found = in_threads([lambda buffer=buffer: read(buffer) for buffer in buffers])  # type: ignore[misc]
    for i, values in enumerate(found):
        np.testing.assert_array_equal(values, numbers(50_000) + i)


# ---------------------------------------------------------------------- bounds


@pytest.mark.parametrize("case", [Case("eager"), Case("lazy"), Case("random", 3)], ids=labels)
@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.deep)])
def test_many_puts_without_a_wait_stay_bounded(open_small: Opener, case: Case, count: int) -> None:
    config.update("max_inflight_bytes", 32 * MIB)
    platform = open_small(8 * MIB, case)
    device = platform.devices[0]
    values = np.zeros(MIB // 8)
    fakecuda.reset_counters()
    before = fakecuda.counters()
    for i in range(count):
        values[0] = i
        last = put(device, values, np.float64)
    counted = fakecuda.counters()
    assert counted.pinned.peak - before.pinned.used <= 8 * MIB
    assert counted.devices[0].peak - before.devices[0].used <= 2 * 32 * MIB
    assert read(last)[0] == count - 1


@pytest.mark.parametrize("case", [Case("eager"), Case("lazy")], ids=labels)
def test_packed_puts_share_a_block_and_give_it_back(open_small: Opener, case: Case) -> None:
    """Together they need ten times the ring."""
    platform = open_small(64 << 10, case)
    for k in range(80):
        values = [numbers(8) + 100 * k + i for i in range(32)]
        with platform.scheduler.log.record() as submissions:
            arrays = cuplace.device_put(values, platform.devices[0])
        assert len(submissions) == 1
        for array, value in zip(arrays[::7], values[::7], strict=True):
            np.testing.assert_array_equal(array, value)
    latch = platform.scheduler.hold(platform.devices[0].upload)
    held = [cuplace.device_put([numbers(8) + i + k for i in range(20)], platform.devices[0]) for k in range(3)]
    assert not any(array.is_ready() for arrays in held for array in arrays)
    latch.release()
    for k, arrays in enumerate(held):
        for i, array in enumerate(arrays):
            np.testing.assert_array_equal(array, numbers(8) + i + k)
    assert platform.backend.ring.peak <= 64 << 10


def test_a_full_ring_makes_the_caller_wait_and_counts_it(
    open_small: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = open_small(MIB)
    backend: Any = platform.backend
    device = platform.devices[0]
    waited: list[bool] = []
    wait_for_room = backend.ring.wait_for_room
    latch = platform.scheduler.hold(device.upload)

    def waits(again: bool) -> None:
        if not waited:
            threading.Timer(0.1, latch.release).start()
        waited.append(again)
        wait_for_room(again)

    monkeypatch.setattr(backend.ring, "wait_for_room", waits)
    buffers = [put(device, numbers(MIB // 16) + i, np.float32) for i in range(5)]
    assert backend.ring.pressure_waits == 1
    assert waited == [False], "until there is room, and not until there may be some"
    for i, buffer in enumerate(buffers):
        np.testing.assert_array_equal(read(buffer), numbers(MIB // 16) + i)


@pytest.mark.parametrize("case", [Case("lazy"), Case("random", 1)], ids=labels)
def test_a_download_that_is_given_up_keeps_its_block_until_its_copies_end(
    open_small: Opener, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given_up(event: Any) -> None:
        raise KeyboardInterrupt

    platform = open_small(64 << 10, case)
    device, values = platform.devices[0], numbers(64)
    source = put(device, values, np.float32)
    read(source)
    latches = [platform.scheduler.hold(stream) for stream in (device.download, device.upload)]
    with monkeypatch.context() as patch:
        patch.setattr("cuplace.runtime.backends.cuda.host.synchronize", given_up)
        with pytest.raises(KeyboardInterrupt):
            read(source)
    later = [put(device, values + i, np.float32) for i in (1, 2, 3)]
    latches[0].release()
    np.testing.assert_array_equal(read(source), values)  # after the copy that was given up, and before the puts
    latches[1].release()
    for i, buffer in enumerate(later, 1):
        np.testing.assert_array_equal(read(buffer), values + i)


def test_a_wait_for_the_ring_can_be_given_up(open_small: Opener) -> None:
    """In uploads, in downloads and in copies that are staged; what was enqueued before stays right."""

    def too_late(number: int, frame: Any) -> None:
        raise TimeoutError

    platform = open_small(MIB, Case("lazy", peers=False))
    device, other = platform.devices[:2]
    values = numbers(MIB // 16)
    source = put(device, values, np.float32)
    read(move(source, other))
    before = signal.signal(signal.SIGALRM, too_late)
    try:
        for stream, call in (
            (device.upload, lambda: [put(device, values, np.float32) for _ in range(9)]),
            (device.upload, lambda: read(put(device, numbers(MIB), np.float32))),
        ):
            latch = platform.scheduler.hold(stream)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(TimeoutError):
                call()
            latch.release()
            np.testing.assert_array_equal(read(put(device, values + 1, np.float32)), values + 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(read(move(source, other)), values)
    gc.collect()
    finish(platform)
    assert used(platform) == {"bytes_in_use": source.nbytes, "bytes_parked": 0}


def test_a_ring_that_cannot_grow_does_with_what_it_has(open_small: Opener) -> None:
    platform = open_small()
    device = platform.devices[0]
    put(device, numbers(4))
    fakecuda.faults.fail_pinned_allocation(count=1000)
    values = numbers(5 * MIB)
    np.testing.assert_array_equal(read(put(device, values, np.float32)), values)
    fakecuda.faults.clear()


def test_without_any_pinned_memory_a_put_fails_and_leaves_the_platform_healthy(open_small: Opener) -> None:
    platform = open_small()
    fakecuda.faults.fail_pinned_allocation(count=1000)
    with pytest.raises(MemoryError, match="could not be pinned"):
        put(platform.devices[0], numbers(4))
    fakecuda.faults.clear()
    np.testing.assert_array_equal(read(put(platform.devices[0], numbers(4), np.float32)), numbers(4))


def test_pinned_memory_goes_back_when_it_is_asked_for(cuda: Platform) -> None:
    read(put(cuda.devices[0], numbers(4)))
    backend: Any = cuda.backend
    before = fakecuda.counters().pinned.used
    freed = backend.ring.free_unused()
    assert freed > 0
    assert fakecuda.counters().pinned.used == before - freed
    read(put(cuda.devices[0], numbers(4)))


# ---------------------------------------------------------------------- nothing waits


@pytest.mark.parametrize("case", CASES, ids=labels)
def test_puts_ops_and_jitted_calls_never_wait(open_small: Opener, case: Case) -> None:
    """Counted by the fake: no blocking call, no call that may wait for a device, no byte to the host."""
    platform = open_small(case=case)
    with activated(platform):
        mesh = cuplace.make_mesh((4,), ("x",), devices=platform.devices[:4])
        other = cuplace.make_mesh((2, 2), ("a", "b"), devices=platform.devices[4:])
        step = cuplace.jit(lambda x: jnp.sin(x) * 2 + 1)

        def program(values: np.ndarray[Any, Any]) -> list[Any]:
            x = cuplace.device_put(values, NamedSharding(mesh, P("x", None)))
            y = cuplace.device_put(step(x + x), NamedSharding(other, P("b", "a")))
            z = cuplace.device_put(y * y, NamedSharding(mesh, P(None, "x")))
            return [x, y, z, cuplace.device_put(z, platform.devices[7])]

        values = numbers(64, 64) / 1000
        for array in program(values):  # compiles kernels, finds paths, grows pools
            array.block_until_ready()
        fakecuda.reset_counters()
        results = program(values)
        counted = fakecuda.counters()
        assert counted.blocking == {}
        assert counted.bytes["d2h"] == (0 if case.peers else counted.bytes["d2h"])
        assert not {name for name in counted.implicit if "Free" in name or "Module" in name}
        y = np.sin(2 * values.astype(np.float32)) * 2 + 1
        for result, expected in zip(results, (values, y, y * y, y * y), strict=True):
            np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-6)


def test_a_call_on_a_busy_gpu_returns(cuda: Platform) -> None:
    """All streams of a GPU are held; puts, moves and computations return all the same."""
    device, other = cuda.devices[:2]
    source = put(device, numbers(100))
    move_stream = device.transfer_to(other)
    read(source)
    latches = [cuda.scheduler.hold(stream) for stream in (*device.streams(), *other.streams(), move_stream)]
    fakecuda.reset_counters()
    later = [compute(ADD_ONE, put(device, numbers(100) + i)) for i in range(10)]
    assert fakecuda.counters().blocking == {}
    assert not any(cuda.scheduler.is_ready([buffer]) for buffer in later)
    for latch in latches:
        latch.release()
    for i, buffer in enumerate(later):
        np.testing.assert_array_equal(read(buffer), numbers(100) + i + 1)
    finish(cuda)


# ---------------------------------------------------------------------- room that others have


def staged(platform: Platform, source: Buffer) -> Buffer:
    return move(source, platform.devices[1])


def dropped(platform: Platform, source: Buffer) -> Buffer:
    return moved(source, source.device, UNPINNED_HOST)


def packed(platform: Platform, source: Buffer) -> Buffer:
    arrays = cuplace.device_put([numbers(50)] * WORTHWHILE, source.device)
    return arrays[-1]._buffers[0]


@pytest.mark.parametrize("call", [staged, dropped, packed], ids=lambda call: call.__name__)
def test_a_copy_waits_for_room_that_other_threads_have(open_small: Opener, call: Callable[..., Buffer]) -> None:
    """They hold all of the ring, and no event tells when they are through."""
    platform = open_small(MIB, Case("lazy", peers=False))
    ring: Any = platform.backend.ring
    with activated(platform):
        source = put(platform.devices[0], numbers(50), np.float32)
        read(call(platform, source))
        blocks = []
        while (block := ring.take(256)) is not None:
            blocks.append(block)
        threading.Timer(0.05, lambda: [ring.release(block, ()) for block in blocks]).start()
        buffer = call(platform, source)
        assert ring.pressure_waits == 1
        np.testing.assert_array_equal(read(buffer), numbers(50))


def test_what_no_block_is_large_enough_for_is_not_packed(open_small: Opener) -> None:
    """A ring of 64 KiB has pieces of 8 KiB, which are 32 arrays."""
    platform = open_small(64 << 10)
    values = [numbers(8) + i for i in range(40)] + [numbers(0)]
    with platform.scheduler.log.record() as submissions:
        arrays = cuplace.device_put(values, platform.devices[0])
    assert len(submissions) == 1
    for array, value in zip(arrays, values, strict=True):
        np.testing.assert_array_equal(array, value)
    assert platform.backend.ring.peak <= 64 << 10
