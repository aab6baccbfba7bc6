"""The GPUs of this machine: `pytest -m gpu` runs on them where they answer, and on fake ones where none does.

A process runs on the one or on the other: the fake takes the driver's place. Tests read `chosen()` where they do more
on hardware, as a rule larger sizes.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from cuplace.runtime.platform import Platform, open_platform

_ASK = """
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
failed = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
print(0 if failed else count.value)
"""

_chosen = False


@cache
def count() -> int:
    """How many GPUs answer. Another process asks, so that this one has loaded no driver."""
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=False, timeout=60)
    return int(done.stdout) if done.returncode == 0 else 0


def choose(expression: str) -> None:
    """Run on hardware if that is what ``-m expression`` asks for, and it is there."""
    global _chosen
    _chosen = expression.strip() == "gpu" and count() > 0


def chosen() -> bool:
    """Whether this process runs on the GPUs of the machine."""
    return _chosen


def numbers() -> list[int]:
    """How many GPUs a test runs on, one run for each: one, and all where there are several."""
    return [1, count()] if count() > 1 else [1]


def open_gpus(devices: int, gpus: int) -> Platform:
    """The cuda platform on the first GPUs of the machine, with at least a device on each."""
    return open_platform("cuda", max(devices, gpus), gpus=gpus)
