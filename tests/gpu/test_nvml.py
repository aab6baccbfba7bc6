"""NVML on real GPUs: the same GPUs as CUDA's, found by UUID, with their names and memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cuplace
from cuplace.runtime.platform import Platform
from cuplace.runtime.usage import GpuUsage
from tests import hardware
from tests.fakenvml import fake_nvml

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture
def nvml(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """NVML itself; of fake GPUs a stand-in, which counts them in another order than CUDA."""
    backend: Any = platform.backend
    if not hardware.chosen():
        fake = fake_nvml(backend.gpus)
        monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
        yield fake
        return
    found = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    found.nvmlInit()
    yield found
    found.nvmlShutdown()


def usages() -> tuple[GpuUsage, ...]:
    return cuplace.memory_report().gpus


def text(told: str | bytes) -> str:
    return told.decode() if isinstance(told, bytes) else told


def test_gpus_are_those_at_the_same_places_on_the_bus(platform: Platform, nvml: Any) -> None:
    from cupy.cuda import runtime

    found = usages()
    assert [usage.gpu for usage in found] == sorted({device.gpu for device in platform.devices})
    assert len({usage.uuid for usage in found}) == len(found)
    for usage in found:
        assert usage.uuid is not None
        if usage.uuid.startswith("MIG-"):  # an instance has a place with others, and memory of its own
            continue
        handle = nvml.nvmlDeviceGetHandleByPciBusId(runtime.deviceGetPCIBusId(usage.gpu))
        assert usage.uuid == text(nvml.nvmlDeviceGetUUID(handle))
        assert usage.name in text(nvml.nvmlDeviceGetName(handle))
        assert usage.total == nvml.nvmlDeviceGetMemoryInfo(handle).total


def test_memory_that_is_taken_and_given_back_is_told(platform: Platform, nvml: Any) -> None:
    device = platform.devices[-1]
    cuplace.free_unused()
    before = usages()[device.gpu]
    x = cuplace.device_put(np.zeros(64 * MIB, np.uint8), device).block_until_ready()
    taken = usages()[device.gpu]
    assert taken.cuplace == before.cuplace + 64 * MIB
    assert taken.free is not None
    assert before.free is not None
    assert taken.others is not None
    assert before.free - taken.free >= 60 * MIB  # others on the GPU may give some back at the same time
    del x
    cuplace.free_unused()
    back = usages()[device.gpu]
    assert back.cuplace == before.cuplace
    assert back.free is not None
    assert back.free - taken.free >= 60 * MIB
