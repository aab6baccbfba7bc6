"""Profiles on real GPUs: their events and anchors tell times that fit what the host saw."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest

import cuplace
from cuplace.runtime.platform import Platform
from tests.array.places import numbers, on, places

pytestmark = pytest.mark.gpu

EXACT_NS = 1000
"""Times of CUDA's are exact to half of it."""


def test_work_runs_after_it_is_released_and_before_its_end_is_seen(platform: Platform) -> None:
    """On each device, seen from the host: whatever its clock shows."""
    double = cuplace.jit(lambda x: x * 2)
    xs = [cuplace.block_until_ready(cuplace.device_put(numbers(8), device)) for device in platform.devices]
    cuplace.block_until_ready([double(x) for x in xs])
    released, seen = [], []
    with cuplace.profile() as prof:
        for device, x in zip(platform.devices, xs, strict=True):
            latch = platform.scheduler.hold(device.compute)
            y = double(x)
            time.sleep(0.005)
            released.append(platform.backend.now())
            latch.release()
            cuplace.block_until_ready(y)
            seen.append(platform.backend.now())
    spans = prof.spans
    assert [span.record.device for span in spans] == list(platform.devices)
    allowed = prof.clock_error * 1e9 + EXACT_NS
    for span, earliest, latest in zip(spans, released, seen, strict=True):
        assert earliest - allowed <= span.start <= span.end <= latest + allowed


def test_all_that_a_program_does_has_times_in_the_order_of_its_streams(platform: Platform) -> None:
    here = places(platform)

    def work() -> list[cuplace.Array]:
        x = cuplace.device_put(numbers(64, 64), on(here.full, "x"))
        y = cuplace.device_put(x, on(here.reverse, None, "x"))
        on_host = cuplace.device_put(y, on(here.reverse, None, "x").with_memory_kind("pinned_host"))
        return cuplace.block_until_ready([x + 1, y * 2, on_host, x.sum()])

    work()
    with cuplace.profile(nvtx=True) as prof:
        results = work()
    assert len(prof.spans) == len(prof.records)
    by_stream: dict[object, list[int]] = {}
    for record in prof.records:
        assert record.enqueue <= record.start <= record.end
        by_stream.setdefault(record.stream, []).append(record.start)
    for starts in by_stream.values():
        assert all(before <= after + EXACT_NS for before, after in pairwise(starts))
    assert prof.cost_of_a_record() > 0
    np.testing.assert_array_equal(np.asarray(results[1]), 2 * numbers(64, 64))
