"""Failures on the cuda platform: what is poisoned, what is told, and that everything else goes on."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest

from cuplace.errors import DeviceLostError, NoGpuError, OutOfMemoryError
from cuplace.runtime.backends import cuda as cuda_module
from cuplace.runtime.config import config
from cuplace.runtime.memory import COMPUTE
from cuplace.runtime.packing import WORTHWHILE
from cuplace.runtime.platform import Platform, open_platform
from tests import fakecuda, fakegpus
from tests.fakegpus import Case
from tests.runtime.streams import ADD_ONE, SQUARE, compute, finish, move, new, put, read, task

pytestmark = pytest.mark.order(once=True)

VALUES = np.arange(24, dtype=np.int64)
MIB = 1 << 20

DOUBLE = task(lambda x: x * 2, "double")


# ---------------------------------------------------------------------- lost GPUs


@pytest.fixture
def losing(fake_gpus: None, restored_config: None) -> Any:
    """The cuda platform, lazy; its reports are the test's business, since lost GPUs are reported."""
    opened = fakegpus.open_fake(Case("lazy"))
    yield opened
    opened.scheduler.release_latches()
    fakecuda.faults.clear()
    opened.close()


def test_a_wild_kernel_poisons_what_is_on_its_gpu_and_nothing_else(losing: Platform) -> None:
    device, other, third = losing.devices[:3]
    before, elsewhere = put(device, VALUES), put(other, VALUES)
    arrived = move(before, third)
    np.testing.assert_array_equal(read(before), VALUES)
    np.testing.assert_array_equal(read(arrived), VALUES)
    fakecuda.faults.fail_kernel("multiply", device=0)
    wild = compute(DOUBLE, before)
    after = compute(ADD_ONE, before)
    behind = move(wild, other)
    for buffer in (wild, after, behind, before):
        with pytest.raises(DeviceLostError, match=r"GPU 0 \(.*\) is lost: .*IllegalAddress"):
            read(buffer)
    np.testing.assert_array_equal(read(arrived), VALUES)
    np.testing.assert_array_equal(read(compute(SQUARE, elsewhere)), VALUES**2)
    np.testing.assert_array_equal(read(move(elsewhere, third)), VALUES)


def test_the_loss_tells_the_last_unfinished_work_and_its_lines(losing: Platform) -> None:
    device = losing.devices[0]
    source = put(device, VALUES)
    read(compute(ADD_ONE, source))
    fakecuda.faults.fail_kernel("multiply", device=0)
    wild = compute(DOUBLE, source)
    compute(ADD_ONE, source)
    with pytest.raises(DeviceLostError) as caught:
        read(wild)
    told = str(caught.value).splitlines()
    assert told[0].endswith("Arrays on it cannot be read any more.")
    names = [line.split("'")[1] for line in told[2:-1]]
    assert names[:2] == ["add_one", "double"]  # the latest first
    assert all("streams.py" in line for line in told[2:4])
    assert "CUPLACE_SYNC=1" in told[-1]


def test_later_calls_on_a_lost_gpu_fail_alike(losing: Platform) -> None:
    device, other = losing.devices[:2]
    source, healthy = put(device, VALUES), put(other, VALUES)
    read(source)
    target = new(device, source)
    fakecuda.faults.lose_device(0)
    with pytest.raises(DeviceLostError):
        read(compute(ADD_ONE, source))
    with pytest.raises(DeviceLostError):
        losing.scheduler.allocate(device, (4,), np.dtype(np.int8), COMPUTE)
    with pytest.raises(DeviceLostError):
        put(device, VALUES)
    device.scheduler.submit(ADD_ONE, device.compute, (source,), (target,))
    with pytest.raises(DeviceLostError):
        read(target)
    with pytest.raises(DeviceLostError):
        read(move(source, other))
    latch = losing.scheduler.hold(device.compute)
    assert not latch.held
    np.testing.assert_array_equal(read(compute(SQUARE, healthy)), VALUES**2)


def test_a_gpu_that_is_lost_as_a_target_does_not_take_the_source_with_it(losing: Platform) -> None:
    device, other = losing.devices[:2]
    source = put(device, VALUES)
    read(move(source, other))
    fakecuda.faults.lose_device(1)
    with pytest.raises(DeviceLostError, match="GPU 1"):
        read(move(source, other))
    np.testing.assert_array_equal(read(source), VALUES)
    np.testing.assert_array_equal(read(compute(SQUARE, source)), VALUES**2)


def test_memory_of_a_lost_gpu_is_given_up_quietly(losing: Platform) -> None:
    device, other = losing.devices[:2]
    source = put(device, VALUES)
    kept = [compute(ADD_ONE, source), move(source, other)]
    fakecuda.faults.lose_device(0)
    with pytest.raises(DeviceLostError):
        read(source)
    del source
    kept.clear()
    finish(losing)
    np.testing.assert_array_equal(read(put(other, VALUES)), VALUES)


# ---------------------------------------------------------------------- failures that pass


def test_a_launch_that_fails_poisons_its_result_only(cuda: Platform) -> None:
    device = cuda.devices[0]
    source = put(device, VALUES)
    fakecuda.faults.fail_launch("multiply")
    with pytest.raises(Exception, match="too many resources requested") as caught:
        read(compute(DOUBLE, source))
    assert any("enqueued at" in note for note in caught.value.__notes__)
    np.testing.assert_array_equal(read(compute(DOUBLE, source)), VALUES * 2)


def test_memory_that_was_dead_is_used_before_a_call_fails(cuda: Platform) -> None:
    """The pools are full of dead blocks of another size: they go back to the driver, and the call is retried."""
    device = cuda.devices[5]
    read(put(device, VALUES))
    fakecuda.faults.memory_limit(fakecuda.counters().devices[5].used + 20 * MIB, device=5)
    for i in range(6):
        big = put(device, np.full(MIB * (i % 3 + 1) // 2, i))
        assert read(big)[-1] == i
        del big


def test_out_of_memory_is_a_table_and_the_platform_goes_on(cuda: Platform) -> None:
    device = cuda.devices[5]
    kept = put(device, np.zeros(MIB // 8))
    fakecuda.faults.memory_limit(fakecuda.counters().devices[5].used + 8 * MIB, device=5)
    with pytest.raises(OutOfMemoryError) as caught:
        put(device, np.zeros(4 * MIB))
    assert "int64[131072]" in str(caught.value)
    np.testing.assert_array_equal(read(compute(ADD_ONE, kept))[:3], [1, 1, 1])


def test_temporaries_that_find_no_memory_are_told_with_the_table(cuda: Platform) -> None:
    device = cuda.devices[5]
    kept = put(device, np.zeros(MIB))
    fakecuda.faults.memory_limit(fakecuda.counters().devices[5].used + 12 * MIB, device=5)
    with pytest.raises(OutOfMemoryError, match=r"temporary memory of 'double' needs 8,388,608 bytes") as caught:
        read(compute(DOUBLE, kept))
    assert "int64[1048576]" in str(caught.value)
    fakecuda.faults.clear()
    assert not read(compute(DOUBLE, kept)).any()


def test_temporaries_that_do_not_fit_are_tried_once_more(cuda: Platform) -> None:
    """Work that runs out of memory for its temporaries runs again after dead memory has come back."""
    device = cuda.devices[4]
    source = put(device, np.arange(MIB // 8))
    read(source)
    result = new(device, source)
    latch = cuda.scheduler.hold(device.upload)
    dead = put(device, np.zeros(MIB // 8))
    latch.release()
    del dead
    fakecuda.faults.fail_device_allocation(count=2)  # CuPy itself asks twice
    device.scheduler.submit(task(lambda x: (x + 1) * 2), device.compute, (source,), (result,))
    np.testing.assert_array_equal(read(result), (np.arange(MIB // 8) + 1) * 2)


def test_the_first_try_keeps_no_temporaries(cuda: Platform) -> None:
    """The traceback of what failed holds those that did fit; there is room for one try only."""
    device, other = cuda.devices[4:6]
    source = put(device, np.arange(MIB // 2))  # 4 MiB
    result, dead = new(device, source), put(device, np.arange(MIB // 2))
    read(move(dead, other))
    read(dead)
    device.memory.trim()
    import cupy

    with cupy.cuda.Device(4):
        cupy.get_default_memory_pool().free_all_blocks()
    latch = cuda.scheduler.hold(device.transfer_to(other))
    moved = move(dead, other)
    del dead
    cuda.scheduler.park()
    latch.release()
    fakecuda.faults.memory_limit(fakecuda.counters().devices[4].used + 4 * MIB, device=4)

    def work(x: Any) -> Any:
        first = x + 1
        return first * 2

    device.scheduler.submit(task(work), device.compute, (source,), (result,))
    np.testing.assert_array_equal(read(result), (np.arange(MIB // 2) + 1) * 2)
    fakecuda.faults.clear()
    read(moved)


def test_work_that_overwrites_what_it_reads_is_not_tried_again(cuda: Platform) -> None:
    device = cuda.devices[0]
    source = put(device, VALUES)
    tries = []

    def fails(x: Any) -> Any:
        tries.append(x)
        raise MemoryError("no more")

    device.scheduler.submit(task(fails), device.compute, (source,), (source,))
    with pytest.raises(MemoryError, match="no more"):
        read(source)
    assert len(tries) == 1
    with pytest.raises(MemoryError, match="no more"):
        read(compute(task(fails), put(device, VALUES)))
    assert len(tries) == 3


def test_a_limit_on_memory_holds_for_staging_too(cuda: Platform) -> None:
    device, other = cuda.devices[:2]
    source = put(device, np.zeros((512, 512)))
    device.transfer_to(other)
    config.update("max_device_bytes", 3 * MIB)
    target = cuda.scheduler.allocate(other, (512, 100), np.dtype(np.int64))
    from cuplace.runtime.task import CopyTask

    cut = CopyTask((slice(None), slice(0, 100)), None, "peer", 0)
    cuda.scheduler.submit_moves([(cut, device.transfer_to(other), source, target)])
    assert not read(target).any()
    assert device.memory_stats()["peak_bytes"] <= 3 * MIB


# ---------------------------------------------------------------------- machines without GPUs


def test_asking_for_more_gpus_than_there_are_says_so(fake_gpus: None) -> None:
    with pytest.raises(NoGpuError, match="8 GPUs answer"):
        open_platform("cuda", gpus=9)


def test_a_gpu_is_found(fake_gpus: None) -> None:
    assert cuda_module.find_gpus() == (8, "8 GPUs answer", False)


@pytest.mark.parametrize(
    ("installed", "driver", "reason", "surprising"),
    [
        (False, False, "CuPy is not installed", False),
        (False, True, "CuPy is not installed", True),
        (True, False, "there is no CUDA driver", True),
    ],
)
def test_why_no_gpu_is_found(
    monkeypatch: pytest.MonkeyPatch, installed: bool, driver: bool, reason: str, surprising: bool
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr(cuda_module, "_has_driver", lambda: driver)
    found = cuda_module.find_gpus()
    assert (found.gpus, found.surprising) == (0, surprising)
    assert reason in found.reason


def test_a_driver_that_does_not_answer_is_surprising(fake_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy.cuda import runtime

    def fails() -> int:
        raise RuntimeError("no device")

    monkeypatch.setattr(runtime, "getDeviceCount", fails)
    found = cuda_module.find_gpus()
    assert (found.gpus, found.surprising) == (0, True)
    assert found.reason.endswith("no GPU answers: no device")


def test_importing_cuplace_loads_neither_cupy_nor_a_driver() -> None:
    import subprocess
    import sys

    code = """
import sys, cuplace, cuplace.numpy, cuplace.lax, cuplace.sharding
assert not [name for name in sys.modules if name.split(".")[0] in ("cupy", "cupy_backends", "pynvml")]
assert "libcuda" not in open("/proc/self/maps").read()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_gpu_that_is_lost_while_values_come_down_gives_none(
    losing: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cupy.cuda import runtime

    source = put(losing.devices[0], VALUES)
    read(source)
    copy = runtime.memcpyAsync

    def lose_behind(*arguments: Any) -> None:
        copy(*arguments)
        fakecuda.faults.lose_device(0)

    monkeypatch.setattr(runtime, "memcpyAsync", lose_behind)
    with pytest.raises(DeviceLostError, match="GPU 0"):
        read(source)
    monkeypatch.undo()


@pytest.mark.parametrize("packed", [False, True])
def test_an_upload_finds_the_loss_and_poisons_its_buffers(losing: Platform, packed: bool) -> None:
    device = losing.devices[0]
    read(put(device, VALUES))
    buffers = [losing.scheduler.allocate(device, VALUES.shape, VALUES.dtype) for _ in range(WORTHWHILE)]
    fakecuda.faults.lose_device(0)
    if packed:
        losing.scheduler.upload_batch([(buffer, VALUES) for buffer in buffers])
    else:
        for buffer in buffers:
            losing.scheduler.upload(buffer, VALUES)
    for buffer in buffers:
        with pytest.raises(DeviceLostError, match="GPU 0"):
            read(buffer)


def test_work_that_fails_while_the_platform_closes_is_no_error(losing: Platform) -> None:
    source = put(losing.devices[0], VALUES)
    read(source)
    fakecuda.faults.fail_kernel("multiply", device=0)
    compute(DOUBLE, source)
    losing.close()
    backend: Any = losing.backend
    assert isinstance(backend.gpus[0].lost, DeviceLostError)


def test_the_second_try_can_be_interrupted(cuda: Platform) -> None:
    """What a handler of signals raises goes to the caller, and is no failure of the work."""
    device, tries = cuda.devices[0], []

    def too_late(number: int, frame: Any) -> None:
        raise TimeoutError

    def work(x: Any) -> Any:
        tries.append(x)
        if len(tries) == 1:
            raise MemoryError
        if len(tries) == 2:
            signal.raise_signal(signal.SIGALRM)
        return x + 1

    source = put(device, VALUES)
    before = signal.signal(signal.SIGALRM, too_late)
    try:
        with pytest.raises(TimeoutError):
            compute(task(work), source)
    finally:
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(read(compute(task(work), source)), VALUES + 1)
    assert len(tries) == 3


def test_nothing_is_said_of_who_has_the_memory_of_a_lost_gpu(losing: Platform) -> None:
    backend: Any = losing.backend
    device, other = losing.devices[:2]
    fakecuda.faults.lose_device(0)
    with pytest.raises(DeviceLostError):
        read(put(device, VALUES))
    assert backend.shortage(device, 1 << 40) == []
    assert backend.shortage(other, 1 << 40) != []
