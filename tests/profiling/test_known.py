"""Profiles of programs whose times follow from arithmetic: what the report says is that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuplace
import cuplace.numpy as jnp
from cuplace.profiling.profile import Profile
from cuplace.runtime.backends.sim import open_backend
from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform, activated
from cuplace.runtime.presets import find_machine
from cuplace.runtime.scheduler import host

H200 = find_machine("hgx-h200")
UNIT = 10e-6

lengths = st.integers(1, 5)
few = settings(max_examples=15)


@contextmanager
def simulated(compute: int, transfer: int) -> Iterator[Platform]:
    """A machine on which work on little data takes so many units of time, and enqueueing it none."""
    assert H200.peer is not None
    machine = replace(
        H200,
        submit_us=0.0,
        gpu=replace(H200.gpu, launch_us=compute * UNIT * 1e6),
        host=replace(H200.host, latency_us=transfer * UNIT * 1e6),
        peer=replace(H200.peer, latency_us=transfer * UNIT * 1e6),
    )
    platform = Platform(open_backend(1, machine=machine), 8)
    with activated(platform):
        yield platform


@cuplace.jit
def stage(x):
    return jnp.sin(x)


def pipeline(platform: Platform, stages: int, microbatches: int) -> Profile:
    cuplace.block_until_ready([stage(cuplace.device_put(np.ones(8, np.float32), d)) for d in platform.devices])
    with cuplace.profile() as prof:
        for i in range(microbatches):
            mb = np.full(8, i, np.float32)
            for device in platform.devices[:stages]:
                mb = stage(cuplace.device_put(mb, device))
    return prof


@few
@given(stages=st.integers(2, 8), microbatches=st.integers(1, 12))
def test_a_pipeline_whose_transfers_take_no_time_has_the_least_bubble(stages: int, microbatches: int) -> None:
    with simulated(1, 0) as platform:
        prof = pipeline(platform, stages, microbatches)
        assert prof.bubble is not None
        assert (prof.bubble.stages, prof.bubble.microbatches) == (stages, microbatches)
        assert prof.bubble.bound == (stages - 1) / (microbatches + stages - 1)
        assert prof.bubble.share == pytest.approx(prof.bubble.bound, abs=1e-3)
        assert prof.seconds == pytest.approx((microbatches + stages - 1) * UNIT, rel=1e-3)


@few
@given(stages=st.integers(1, 8), microbatches=st.integers(1, 8), compute=lengths, transfer=lengths)
def test_a_pipeline_with_transfers_takes_its_longest_step_once_a_microbatch(
    stages: int, microbatches: int, compute: int, transfer: int
) -> None:
    with simulated(compute, transfer) as platform:
        prof = pipeline(platform, stages, microbatches)
        whole = stages * (compute + transfer) + (microbatches - 1) * max(compute, transfer)
        assert prof.seconds == pytest.approx(whole * UNIT, rel=1e-3)
        assert prof.transfer_seconds == pytest.approx(stages * microbatches * transfer * UNIT, rel=1e-3)
        assert prof.bubble is not None
        assert prof.bubble.share == pytest.approx(1 - microbatches * compute / (whole - transfer), abs=1e-3)


@few
@given(count=st.integers(1, 10), compute=lengths, transfer=lengths)
def test_of_streamed_batches_all_is_hidden_but_the_first_transfer_or_what_is_longer(
    count: int, compute: int, transfer: int
) -> None:
    with simulated(compute, transfer) as platform:
        device = platform.devices[0]
        cuplace.block_until_ready(stage(cuplace.device_put(np.ones(8, np.float32), device)))
        with cuplace.profile() as prof:
            for i in range(count):
                stage(cuplace.device_put(np.full(8, i, np.float32), device))
        assert prof.transfer_seconds == pytest.approx(count * transfer * UNIT, rel=1e-3)
        assert prof.hidden_seconds == pytest.approx((count - 1) * min(compute, transfer) * UNIT, abs=1e-8)


def line_of(text: str) -> str:
    """The line of this file that ends with such a comment."""
    with open(__file__, encoding="utf-8") as file:
        numbers = [number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}")]
    assert len(numbers) == 1
    return f"{__file__}:{numbers[0]}"


def test_a_stage_that_reads_its_input_through_the_host_is_named_with_its_line() -> None:
    with simulated(1, 1) as platform:
        good = pipeline(platform, 4, 4)
        with cuplace.profile() as prof:
            for i in range(4):
                mb = np.full(8, i, np.float32)
                for device in platform.devices[:4]:
                    values = np.asarray(mb)  # the detour
                    mb = stage(cuplace.device_put(values, device))
        assert good.hidden_seconds > 0
        assert prof.hidden_seconds == 0  # nothing is enqueued before the last result is there
        lost = [gap for gap in prof.gaps if gap.end - gap.start > UNIT * 1e9]
        assert {gap.reason for gap in lost} == {"host"}
        assert all(f"the host waited at {line_of('the detour')}" in gap.text for gap in lost)
        assert all("'stage'" in gap.text for gap in lost)


def test_memory_that_is_waited_for_is_named_with_the_line_of_what_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device has room for the operand and two results, which are copied away slowly before they die."""
    nbytes = 1 << 12
    with simulated(1, 4) as platform:
        device, other = platform.devices[:2]
        x = cuplace.block_until_ready(cuplace.device_put(np.ones(nbytes // 4, np.float32), device))
        cuplace.block_until_ready(stage(x))
        monkeypatch.setattr(config, "max_device_bytes", 3 * nbytes)
        with cuplace.profile() as prof:
            for _ in range(6):
                cuplace.device_put(stage(x), other)  # the copy
        gaps = [gap for gap in prof.gaps if gap.lane.device == device.id]
        assert gaps
        assert {gap.reason for gap in gaps} == {"memory"}
        assert all(line_of("the copy") in gap.text for gap in gaps)


def test_too_much_unfinished_work_is_named_with_the_line_that_had_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five pieces of work may be unfinished: one device has many, and the other one waits until the host goes on."""
    monkeypatch.setattr(host, "RUN_AHEAD", 5)
    with simulated(1, 1) as platform:
        a, b = (cuplace.block_until_ready(cuplace.device_put(np.ones(8, np.float32), d)) for d in platform.devices[:2])
        cuplace.block_until_ready([stage(a), stage(b)])
        with cuplace.profile() as prof:
            results = [stage(a)]
            results += [stage(b) for _ in range(15)]  # too many
            results.append(stage(a))
        (gap,) = [gap for gap in prof.gaps if gap.lane.device == 0]
        assert gap.end - gap.start == pytest.approx(9 * UNIT * 1e9, rel=0.2)
        assert gap.reason == "back-pressure"
        assert f"the host waited at {line_of('too many')}" in gap.text
        assert "the oldest of too much unfinished work, compute 'stage' on sim:1" in gap.text
        assert len(results) == 17
