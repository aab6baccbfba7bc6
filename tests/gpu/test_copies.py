"""Copies on real GPUs: what pageable memory, pinned memory, strides, sizes and pairs of GPUs do to values."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuplace.runtime.buffer import Buffer
from cuplace.runtime.device import Device
from cuplace.runtime.platform import Platform
from cuplace.runtime.task import CopyTask
from tests import hardware
from tests.memory import foreign_array
from tests.runtime.streams import move, put, read

pytestmark = pytest.mark.gpu

MIB = 1 << 20
RING = (256 if hardware.chosen() else 4) * MIB
LARGE = (300 if hardware.chosen() else 10) * MIB
"""More than the ring holds."""

DTYPES = [
    np.dtype(name)
    for name in (
        "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
        "float16", ml_dtypes.bfloat16, "float32", "float64", "complex64", "complex128",
    )
]  # fmt: skip


def numbers(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype)


def send(source: Buffer, from_box: Any, target: Buffer, to_box: Any) -> None:
    stream = source.device.transfer_to(target.device)
    source.device.scheduler.submit_moves([(CopyTask(from_box, to_box, stream.path or "", 0), stream, source, target)])


# ---------------------------------------------------------------------- from the host and back


LAYOUTS = {
    "contiguous": lambda count: np.arange(count, dtype=np.float32),
    "strided": lambda count: np.arange(2 * count, dtype=np.float32)[::2],
    "reversed": lambda count: np.arange(count, dtype=np.float32)[::-1],
    "fortran": lambda count: np.asfortranarray(np.arange(count, dtype=np.float32).reshape(2, -1)),
}


@pytest.mark.gpu("one")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("nbytes", [8, 1 << 10, 60 << 10, 65 << 10, MIB])
def test_the_value_is_as_of_the_call(platform: Platform, layout: str, nbytes: int) -> None:
    """Around 64 KiB, where CUDA itself changes how it copies pageable memory."""
    device = platform.devices[0]
    host = LAYOUTS[layout](nbytes // 4)
    expected = host.copy()
    read(put(device, host, np.float32))
    latch = platform.scheduler.hold(device.upload)
    buffer = put(device, host, np.float32)
    host[...] = -1
    assert latch.held
    assert not platform.scheduler.is_ready([buffer])
    latch.release()
    np.testing.assert_array_equal(read(buffer), expected)


@pytest.mark.gpu("one")
def test_the_value_of_a_large_source_is_as_of_the_call(platform: Platform) -> None:
    """It does not fit into the ring: the call waits for the latch, which another thread releases."""
    backend: Any = platform.backend
    backend.ring.limit = RING
    device = platform.devices[0]
    host = np.arange(LARGE // 4, dtype=np.float32)
    latch = platform.scheduler.hold(device.upload)

    def release_when_the_ring_is_full() -> None:
        for _ in range(1000):
            if backend.ring.pressure_waits:
                break
            time.sleep(0.005)
        latch.release()

    release = threading.Thread(target=release_when_the_ring_is_full)
    release.start()
    buffer = put(device, host, np.float32)
    release.join()
    host[...] = -1
    np.testing.assert_array_equal(read(buffer), np.arange(LARGE // 4, dtype=np.float32))
    assert backend.ring.peak <= RING
    assert backend.ring.pressure_waits > 0


@pytest.mark.gpu("one")
def test_a_file_larger_than_the_ring_goes_up_and_down(platform: Platform, tmp_path: Path) -> None:
    backend: Any = platform.backend
    backend.ring.limit = RING
    np.arange(LARGE // 4, dtype=np.int32).tofile(tmp_path / "values")
    mapped = np.memmap(tmp_path / "values", np.int32, "r", shape=(256, LARGE // 1024))
    np.testing.assert_array_equal(read(put(platform.devices[1], mapped, np.int32)), mapped)
    assert backend.ring.pinned_bytes <= RING
    backend.gpus[0].device.synchronize()
    assert backend.ring.free_unused() > 0
    np.testing.assert_array_equal(read(put(platform.devices[1], mapped[:2], np.int32)), mapped[:2])


@pytest.mark.gpu("one")
def test_a_thousand_puts_without_a_wait_stay_bounded(platform: Platform) -> None:
    backend: Any = platform.backend
    backend.ring.limit = 8 * MIB
    values = np.zeros(MIB // 8)
    for i in range(1000 if hardware.chosen() else 200):
        values[0] = i
        last = put(platform.devices[0], values, np.float64)
    assert backend.ring.peak <= 8 * MIB
    assert read(last)[0] == i


# ---------------------------------------------------------------------- between devices


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_arrives(platform: Platform, dtype: np.dtype[Any]) -> None:
    values = numbers((12, 10), dtype)
    device, other = platform.devices[0], platform.devices[-1]
    source = put(device, values, dtype)
    np.testing.assert_array_equal(read(source), values)
    np.testing.assert_array_equal(read(move(source, other)), values)
    target = put(other, values * 0, dtype)
    send(source, (slice(2, 9), slice(3, 8)), target, (slice(0, 7), slice(1, 6)))
    expected = values * 0
    expected[:7, 1:6] = values[2:9, 3:8]
    np.testing.assert_array_equal(read(target), expected)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("unit", [1, 2, 4, 8, 16])
def test_every_kernel_copies_boxes(platform: Platform, unit: int, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transposed, so that neither side is in rows: packed, sent and unpacked, or copied in one go."""
    from cuplace.runtime.backends.cuda import kernels

    if bits == 64:
        monkeypatch.setattr(kernels, "fits_32_bits", lambda box: False)
    dtype = np.dtype(f"V{unit}") if unit == 16 else np.dtype(f"u{unit}")
    values = numbers((33, 20, 7 * dtype.itemsize), np.uint8).view(dtype)
    device, other = platform.devices[0], platform.devices[-1]
    laid_out = values.transpose(2, 1, 0)
    source = platform.scheduler.adopt(foreign_array(device, laid_out), device)
    moved = move(source, other)
    assert read(moved).tobytes() == laid_out.tobytes()


def test_large_boxes_arrive(platform: Platform) -> None:
    """In chunks, where they are packed: half a GiB on hardware."""
    rows = 16384 if hardware.chosen() else 64
    values = np.arange(rows * 8192 // 16 * 16, dtype=np.uint32).reshape(rows, -1)[:, :8192]
    device, other = platform.devices[0], platform.devices[-1]
    source = put(device, values, np.uint32)
    target = put(other, np.zeros((8191, rows), np.uint32), np.uint32)
    send(source, (slice(0, rows), slice(1, 8192)), put(other, values[:, 1:] * 0, np.uint32), None)
    turned = platform.scheduler.adopt(source.array.T[1:], device)
    send(turned, None, target, None)
    np.testing.assert_array_equal(read(target), values.T[1:])


def test_more_than_two_gigabytes_are_addressed(platform: Platform) -> None:
    """Rows two GiB apart on hardware, which take indices of 64 bits."""
    pitch = (1 << 31) + 64 if hardware.chosen() else (1 << 21) + 64
    device = platform.devices[0]
    buffer = platform.scheduler.allocate(device, (2 * pitch,), np.dtype(np.uint8))
    values = numbers((2, 30), np.uint8)
    for i in range(2):
        part = platform.scheduler.adopt(buffer.array[i * pitch : i * pitch + 60 : 2], device)
        platform.scheduler.upload(part, values[i])
        np.testing.assert_array_equal(read(part), values[i])
    both = platform.scheduler.adopt(buffer.array.reshape(2, pitch)[:, :60:2], device)
    np.testing.assert_array_equal(read(move(both, platform.devices[-1])), values)


# ---------------------------------------------------------------------- pairs of GPUs


def pairs(platform: Platform) -> list[tuple[Device, Device]]:
    """A device of each GPU with each device of another GPU."""
    firsts = [device for device in platform.devices if device.partition == 0]
    return [(one, other) for one in firsts for other in firsts if one is not other]


@pytest.mark.gpu("several")
def test_each_pair_delivers_and_says_how(platform: Platform) -> None:
    backend: Any = platform.backend
    values = numbers((300, 200))
    for i, (source, target) in enumerate(pairs(platform)):
        np.testing.assert_array_equal(read(move(put(source, values + i, np.float32), target)), values + i)
        path = backend.links.paths[source.gpu, target.gpu]
        assert path == "peer" or backend.links.reasons[source.gpu, target.gpu]


@pytest.mark.gpu("several")
@pytest.mark.parametrize("columns", [slice(0, 200), slice(20, 120)], ids=["whole", "columns"])
def test_each_pair_delivers_through_the_host(platform: Platform, columns: slice) -> None:
    """As on machines without peer access."""
    backend: Any = platform.backend
    values = numbers((300, 200))
    for source, target in pairs(platform)[:6]:
        backend.links.paths[source.gpu, target.gpu] = "staged"
        moved, box = put(target, values * 0, np.float32), (slice(0, 300), columns)
        assert source.transfer_to(target).path == "staged"
        send(put(source, values, np.float32), box, moved, box)
        np.testing.assert_array_equal(read(moved)[box], values[box])
