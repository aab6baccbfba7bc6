"""Lanes of a GPU that is lost between two calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuplace.errors import DeviceLostError
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.platform import Platform
from tests import fakecuda, fakegpus
from tests.fakegpus import Case
from tests.runtime.streams import ADD_ONE, compute, put, read, task

VALUES = np.arange(24, dtype=np.int64)


@pytest.fixture
def losing(fake_gpus: None, restored_config: None) -> Any:
    """The cuda platform; its reports are the test's business, since lost GPUs are reported."""
    opened = fakegpus.open_fake(Case("eager"))
    yield opened
    fakecuda.faults.clear()


def test_an_event_that_cannot_be_recorded_tells_of_the_loss(losing: Platform) -> None:
    device = losing.devices[0]
    read(compute(ADD_ONE, put(device, VALUES)))
    fakecuda.faults.lose_device(0)
    lane: Any = device.compute.lane
    event = lane.record(device.compute, 0)
    assert isinstance(event.error, DeviceLostError)
    assert event.done
    losing.close()


def test_a_platform_whose_gpu_is_lost_at_the_end_closes(losing: Platform) -> None:
    device, other = losing.devices[:2]
    read(compute(ADD_ONE, put(device, VALUES)))
    np.testing.assert_array_equal(read(put(other, VALUES)), VALUES)
    fakecuda.faults.lose_device(0)
    losing.close()
    backend: Any = losing.backend
    assert isinstance(backend.gpus[0].lost, DeviceLostError)
    assert backend.gpus[1].lost is None


def test_a_wait_on_a_lost_gpu_finds_the_loss(losing: Platform) -> None:
    device, other = losing.devices[:2]
    read(compute(ADD_ONE, put(device, VALUES)))
    latch = losing.scheduler.hold(other.compute)
    held: Any = other.compute.lane.record(other.compute, 0)
    fakecuda.faults.lose_device(0)
    lane: Any = device.compute.lane
    lane.wait(held)
    assert isinstance(lane.gpu.lost, DeviceLostError)
    latch.release()
    losing.close()


def test_an_error_that_loses_no_gpu_is_the_callers(losing: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a wait, which would be missing, and of a query, which would be taken for an answer."""
    from cupy.cuda import runtime

    device, other = losing.devices[:2]
    latch = losing.scheduler.hold(other.compute)
    held: Any = other.compute.lane.record(other.compute, 0)
    lane: Any = device.compute.lane

    def refuse(*arguments: Any) -> None:
        raise runtime.CUDARuntimeError(400)

    with monkeypatch.context() as patch:
        patch.setattr(runtime, "streamWaitEvent", refuse)
        patch.setattr(runtime, "eventQuery", lambda handle: 400)
        with pytest.raises(runtime.CUDARuntimeError, match="InvalidResourceHandle"):
            lane.wait(held)
        with pytest.raises(runtime.CUDARuntimeError, match="InvalidResourceHandle"):
            losing.backend.query(held)
    assert lane.gpu.lost is None
    latch.release()
    losing.close()


@pytest.mark.parametrize("cuda", [Case("eager"), Case("lazy"), Case("random", 9)], ids=lambda c: c.label, indirect=True)
def test_work_may_be_enqueued_while_work_is_being_enqueued(cuda: Platform) -> None:
    """As by a destructor that computes: both have events and values of their own."""
    device, inner = cuda.devices[0], list[Buffer]()
    source = put(device, VALUES)

    def work(x: Any) -> Any:
        inner.append(compute(ADD_ONE, source))
        return x * x

    outer = compute(task(work), source)
    np.testing.assert_array_equal(read(outer), VALUES**2)
    np.testing.assert_array_equal(read(inner[0]), VALUES + 1)
    assert outer.writes[0].seq > inner[0].writes[0].seq
