"""Asynchrony and overlap, shown by latches and by what the records say, never by a clock."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import cuplace
from cuplace import NamedSharding, P
from cuplace.runtime.platform import Platform
from tests.memory import address_of
from tests.order import pipeline


def unit_cost(record: Any) -> float:
    return 1.0


def test_freeing_memory_costs_no_overlap(platform: Platform) -> None:
    """4 stages, 8 microbatches, each transfer and each stage one unit: a microbatch takes 8, the next ones 1 more."""
    records = pipeline.recorded(platform, cuplace.jit(pipeline.stage))
    assert {record.kind for record in records} == {"upload", "move", "compute"}
    assert len(records) == 2 * 2 * pipeline.STAGES * pipeline.MICROBATCHES
    assert pipeline.makespan(records, unit_cost) == 15.0


def test_the_replay_sees_overlap_lost_by_a_free(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the next writer of a block wait for its readers, instead of parking it, costs seven units."""
    pipeline.make_writers_wait(monkeypatch)
    records = pipeline.recorded(platform, cuplace.jit(pipeline.stage))
    assert pipeline.makespan(records, unit_cost) == 22.0


def test_the_pipeline_is_one_trace_and_four_executables(platform: Platform) -> None:
    stage = cuplace.jit(pipeline.stage)
    results, values = pipeline.run(platform, stage)
    for result, value in zip(results, values, strict=True):
        np.testing.assert_allclose(np.asarray(result), value, rtol=1e-6)
    assert (stage.cache_info().traces, stage.cache_info().executables) == (1, 4)


def test_a_stage_works_while_another_is_held(platform: Platform) -> None:
    """With stage 1 held, stage 0 finishes all microbatches; nothing of stage 1 does."""
    devices = platform.devices
    meshes = [cuplace.make_mesh((2,), ("x",), devices=devices[2 * i : 2 * i + 2]) for i in range(2)]
    stage = cuplace.jit(pipeline.stage)
    latches = [platform.scheduler.hold(device.compute) for device in devices[2:4]]
    first, second = [], []
    for i in range(4):
        mb = cuplace.device_put(np.full((4, 4), i, np.float32), NamedSharding(meshes[0], P("x")))
        mb = stage(mb)
        first.append(mb)
        mb = stage(cuplace.device_put(mb, NamedSharding(meshes[1], P("x"))))
        second.append(mb)
    cuplace.block_until_ready(first)
    assert all(array.is_ready() for array in first)
    assert not any(array.is_ready() for array in second)
    for latch in latches:
        latch.release()
    for i, array in enumerate(second):
        once = np.sin(np.float32(i)) + np.float32(1)
        np.testing.assert_allclose(np.asarray(array), np.full((4, 4), np.sin(once) + np.float32(1)), rtol=1e-6)


def test_calls_return_while_their_stream_is_held(platform: Platform) -> None:
    devices = platform.devices
    here = NamedSharding(cuplace.make_mesh((2,), ("x",), devices=devices[:2]), P("x"))
    there = NamedSharding(cuplace.make_mesh((2,), ("x",), devices=devices[2:4]), P(None, "x"))
    x = cuplace.device_put(np.arange(16, dtype=np.float32).reshape(4, 4), here)
    latches = [platform.scheduler.hold(device.compute) for device in devices[:2]]
    y = cuplace.jit(lambda x: x * 2 + 1)(x)
    z = cuplace.device_put(y, there)
    w = z + 1
    assert not y.is_ready()
    assert not z.is_ready()
    assert not w.is_ready()
    other = cuplace.device_put(np.ones(4, np.float32), devices[5]) * 3
    np.testing.assert_array_equal(np.asarray(other), np.full(4, 3, np.float32))
    for latch in latches:
        latch.release()
    np.testing.assert_array_equal(np.asarray(w), np.arange(16, dtype=np.float32).reshape(4, 4) * 2 + 2)
    assert y.is_ready()
    assert z.is_ready()


def test_a_put_from_the_host_returns_while_the_upload_is_held(platform: Platform) -> None:
    device = platform.devices[1]
    latch = platform.scheduler.hold(device.upload)
    source = np.arange(6, dtype=np.int32)
    x = cuplace.device_put(source, device)
    source[...] = -1
    assert not x.is_ready()
    latch.release()
    np.testing.assert_array_equal(np.asarray(x), np.arange(6))


def test_a_host_read_waits_for_the_latch(platform: Platform) -> None:
    device = platform.devices[0]
    x = cuplace.device_put(np.arange(4, dtype=np.int32), device)
    latch = platform.scheduler.hold(device.compute)
    y = x + 1
    timer = threading.Timer(0.05, latch.release)
    timer.start()
    np.testing.assert_array_equal(np.asarray(y), [1, 2, 3, 4])
    assert not latch.held
    timer.join()


def test_memory_of_a_deleted_array_is_not_used_before_its_reader_ends(platform: Platform) -> None:
    """A latch on a reader while its array is deleted and memory of its size is asked for again."""
    one, two = platform.devices[:2]
    x = cuplace.device_put(np.arange(1000, dtype=np.int32), one) + 1
    latch = platform.scheduler.hold(one.transfer_to(two))
    y = cuplace.device_put(x, two)
    (address,) = [address_of(buffer.array) for buffer in x._buffers]
    x.delete()
    seed = cuplace.device_put(np.full(1000, 7, dtype=np.int32), one)
    news = [seed * i for i in range(5)]
    assert address not in [address_of(buffer.array) for new in news for buffer in new._buffers]
    assert one.memory_stats()["bytes_parked"] == 4000
    latch.release()
    np.testing.assert_array_equal(np.asarray(y), np.arange(1000) + 1)
    for i, new in enumerate(news):
        np.testing.assert_array_equal(np.asarray(new), np.full(1000, 7 * i))
    del y, new
    again = [seed * i for i in range(5)]
    assert address in [address_of(buffer.array) for new in again for buffer in new._buffers]
