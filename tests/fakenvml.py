"""A stand-in for NVML where GPUs are fake: it counts them the other way round, and tells what they have in use."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tests import fakecuda

TOTAL = 1 << 36


def fake_nvml(gpus: Sequence[Any]) -> SimpleNamespace:
    """What of the module `pynvml` is used, for these GPUs of the cuda backend."""
    from cupy.cuda import runtime

    def memory(handle: int) -> SimpleNamespace:
        used = fakecuda.counters().devices[handle].used
        return SimpleNamespace(total=TOTAL, free=TOTAL - used)

    def no_instances(handle: int) -> None:
        raise fake.NVMLError

    def at(place: str) -> int:
        return next(gpu.ordinal for gpu in gpus if runtime.deviceGetPCIBusId(gpu.ordinal) == place)

    fake = SimpleNamespace(
        NVMLError=type("NVMLError", (Exception,), {}), nvmlInit=lambda: None, nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(gpus), nvmlDeviceGetHandleByIndex=lambda index: len(gpus) - 1 - index,
        nvmlDeviceGetHandleByPciBusId=at, nvmlDeviceGetName=lambda handle: gpus[handle].name,
        nvmlDeviceGetUUID=lambda handle: "GPU-" + gpus[handle].uuid[:16].hex(),
        nvmlDeviceGetMigMode=no_instances, nvmlDeviceGetMemoryInfo=memory,
    )  # fmt: skip
    return fake
