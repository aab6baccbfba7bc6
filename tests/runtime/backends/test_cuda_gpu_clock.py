from __future__ import annotations

import math
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import fakecuda, fakegpus

SECOND = 10**9


@pytest.fixture
def modules(fake_gpus):
    from cuplace.runtime.backends.cuda import gpu_clock, kernels

    return gpu_clock, kernels


def clock_of(cuda, modules, number=0):
    return modules[0].GpuClock(cuda.backend.gpus[number], cuda.backend.now)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drift=st.floats(-300, 300),
    call=st.sampled_from([0.0, 1e-6, 7e-6]),
    spins=st.lists(st.floats(0.01, 3.0), min_size=1, max_size=6),
    between=st.integers(0, 5),
)
def test_times_of_a_gpu_are_those_of_the_host_within_the_error(cuda, modules, drift, call, spins, between):
    """Whatever the GPU's clock does, as long as it does it evenly: what is known is when the host sees the end."""
    with fakegpus.virtual_time(cuda, call=call) as host:
        host.let_drift(0, drift)
        clock = clock_of(cuda, modules)
        lane = clock.gpu.lane("compute", 0)
        truth, marks = [], []
        for i, seconds in enumerate(spins):
            modules[1].spin(lane, round(seconds * 1e9))
            marks.append(clock.mark(lane))
            lane.settle()
            truth.append(host.now())
            if i == between:
                clock.anchor()
        clock.anchor()
        clock.draw()
        allowed = clock.error_ns + 1000
        assert clock.error_ns <= 5 * call * 1e9
        for mark, known in zip(marks, truth, strict=True):
            assert abs(clock.host_ns(mark.anchor, clock.after(mark)) - known) <= allowed
        clock.close()


def test_without_anchors_afterwards_drift_would_show(cuda, modules):
    with fakegpus.virtual_time(cuda) as host:
        host.let_drift(0, 200)
        clock = clock_of(cuda, modules)
        lane = clock.gpu.lane("compute", 0)
        modules[1].spin(lane, SECOND)
        mark = clock.mark(lane)
        lane.settle()
        clock.draw()
        assert clock.host_ns(mark.anchor, clock.after(mark)) - host.now() == pytest.approx(200_000, abs=100)
        clock.anchor()
        clock.draw()
        assert clock.host_ns(mark.anchor, clock.after(mark)) == pytest.approx(host.now(), abs=100)
        clock.close()


def held_clock(cuda, modules, monkeypatch, held):
    """A clock whose stream stands as long as a latch is held, from its beginning on or later."""
    fakecuda.set_mode("lazy")
    compute = cuda.devices[0].compute
    clock = None if held else clock_of(cuda, modules)
    monkeypatch.setattr(modules[0], "PATIENCE_NS", 1_000_000)
    latch = cuda.scheduler.hold(compute)
    compute.lane.gpu.lane("clock", 0).wait(compute.record(0))
    return clock or clock_of(cuda, modules), latch, compute.lane


def test_a_mark_is_waited_for(cuda, modules):
    clock = clock_of(cuda, modules)
    latch = cuda.scheduler.hold(cuda.devices[0].compute)
    mark = clock.mark(cuda.devices[0].compute.lane)
    threading.Timer(0.05, latch.release).start()
    assert clock.after(mark) is None
    clock.wait(mark)
    assert clock.after(mark) >= 0
    clock.close()


def test_an_anchor_whose_stream_is_held_is_given_up(cuda, modules, monkeypatch):
    """Its stream may share a queue of the hardware with one that stands: the host goes on, and others tell."""
    clock, latch, lane = held_clock(cuda, modules, monkeypatch, held=False)
    clock.anchor()
    assert clock.error_ns < math.inf
    before = cuda.backend.now()
    mark = clock.mark(lane)  # told from the anchor that was given up
    assert mark.anchor == 1
    assert clock.after(mark) is None
    latch.release()
    clock.wait(mark)
    seen = cuda.backend.now()
    monkeypatch.undo()
    clock.anchor()
    clock.draw()
    allowed = clock.error_ns + 1000
    assert before - allowed <= clock.host_ns(mark.anchor, clock.after(mark)) <= seen + allowed
    clock.close()


def test_without_any_anchor_that_tells_times_are_a_guess(cuda, modules, monkeypatch):
    clock, latch, lane = held_clock(cuda, modules, monkeypatch, held=True)
    assert clock.error_ns == math.inf
    mark = clock.mark(lane)
    latch.release()
    clock.wait(mark)
    lane.settle()
    clock.gpu.lane("clock", 0).settle()
    clock.draw()
    assert abs(clock.host_ns(mark.anchor, clock.after(mark)) - cuda.backend.now()) < SECOND
    clock.close()


@pytest.mark.parametrize("what", ["query", "record", "create", "time"])
def test_whichever_call_finds_a_gpu_lost_there_are_no_times(cuda, modules, what):
    clock = clock_of(cuda, modules)
    lane = clock.gpu.lane("compute", 0)
    mark = clock.mark(lane)
    fakecuda.faults.lose_device(0)
    if what == "query":
        clock.wait(mark)
    elif what == "time":
        assert clock.after(mark) is None
    else:
        if what == "record":
            clock.gpu.timed_events.append(mark.handle)
        assert clock.mark(lane) is None
    assert clock.gpu.lost is not None
    assert clock.after(mark) is None
    clock.wait(mark)
    clock.anchor()
    clock.draw()


def test_a_lost_gpu_is_found_by_an_anchor(cuda, modules):
    clock = clock_of(cuda, modules)
    fakecuda.faults.lose_device(0)
    clock.anchor()
    assert clock.gpu.lost is not None
    clock.draw()


def test_other_failures_are_raised(cuda, modules):
    clock = clock_of(cuda, modules)
    with pytest.raises(modules[0].runtime.CUDARuntimeError, match="InvalidResourceHandle"):
        clock.mark(cuda.backend.gpus[1].lane("compute", 0))
    assert [report.kind for report in fakecuda.take_reports()] == ["wrong device"]
    clock.close()
