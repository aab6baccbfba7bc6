from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests import fakecuda

pytestmark = pytest.mark.usefixtures("clean")

SPIN = r"""extern "C" __global__ void spin(const unsigned long long nanoseconds) {}"""
UNIT = 10e-6


def timed(cp: ModuleType, stream) -> object:
    event = cp.cuda.Event()
    event.record(stream)
    return event


def spin(cp: ModuleType, stream, seconds: float) -> None:
    with stream:
        cp.RawModule(code=SPIN).get_function("spin")((1,), (1,), (np.uint64(seconds * 1e9),))


def seconds(cp: ModuleType, start, end) -> float:
    return float(cp.cuda.get_elapsed_time(start, end)) * 1e-3


def test_times_follow_from_what_waits_for_what(mode: str, cp: ModuleType) -> None:
    """Two streams that meet: the second part begins when the longer one of the first parts ends, under every mode."""
    one, other = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    with fakecuda.virtual_time() as clock:
        before, began = clock.now(), timed(cp, one)
        spin(cp, one, 30e-6)
        spin(cp, other, 50e-6)
        one.wait_event(timed(cp, other))
        started = timed(cp, one)
        spin(cp, one, 20e-6)
        end = timed(cp, one)
        assert clock.now() == before  # nobody has waited
        while not end.done:
            pass
        assert clock.now() - before == 70_000
        assert seconds(cp, began, started) == pytest.approx(50e-6)
        assert seconds(cp, began, end) == pytest.approx(70e-6)


def test_copies_cost_their_bytes_and_kernels_a_fixed_time(cp: ModuleType) -> None:
    with fakecuda.virtual_time(kernel=3e-6, copy=2e-6, bytes_per_second=1e9) as clock:
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            x, y = cp.empty(1000, np.uint8), cp.empty(1000, np.uint8)
            start = timed(cp, stream)
            y.data.copy_from_device_async(x.data, 1000, stream)
            middle = timed(cp, stream)
            y += 1
            end = timed(cp, stream)
        before = clock.now()
        stream.synchronize()
        assert clock.now() - before == 6000
        assert seconds(cp, start, middle) == pytest.approx(3e-6)
        assert seconds(cp, middle, end) == pytest.approx(3e-6)


def test_work_is_not_complete_before_its_time(cp: ModuleType) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    with fakecuda.virtual_time() as clock:
        spin(cp, stream, 5 * UNIT)
        event = timed(cp, stream)
        for _ in range(5):
            assert not event.done
            clock.advance(UNIT / 2)
            timed(cp, stream)  # no two questions in a row
        clock.advance(3 * UNIT)
        assert event.done


def test_clocks_of_devices_drift(cp: ModuleType) -> None:
    with fakecuda.virtual_time() as clock:
        clock.let_drift(0, 100)
        stream = cp.cuda.Stream(non_blocking=True)
        start = timed(cp, stream)
        spin(cp, stream, 1.0)
        end = timed(cp, stream)
        before = clock.now()
        stream.synchronize()
        assert clock.now() - before == 10**9
        assert seconds(cp, start, end) == pytest.approx(1.0001, rel=1e-7)


def test_calls_take_the_host_time(cp: ModuleType) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    with fakecuda.virtual_time(call=1e-6) as clock:
        before, calls = clock.now(), sum(fakecuda.counters().calls.values())
        timed(cp, stream)
        assert clock.now() - before == 1000 * (sum(fakecuda.counters().calls.values()) - calls) > 0


def test_time_goes_on_from_one_use_to_the_next(cp: ModuleType) -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    with fakecuda.virtual_time() as clock:
        spin(cp, stream, 1.0)
        before = clock.now()
    with fakecuda.virtual_time() as clock:
        assert clock.now() >= before + 10**9
    event = timed(cp, stream)
    stream.synchronize()
    assert event.done
