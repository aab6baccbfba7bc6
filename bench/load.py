"""Load: computing on one device that lasts for as long as is asked for, on any platform."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from cuplace.runtime.backends.cpu.blas import SingleThreadedBlas
from cuplace.runtime.memory import COMPUTE
from cuplace.runtime.task import ComputeTask, Cost

from .figure import Figure
from .harness import Bench

DTYPE = np.dtype(np.float32)
SIDE, TINY = 256, 64
"""Of the matrices that the processor multiplies, of which each takes some hundred microseconds."""

WARM_UP = 8
FAKE_SECONDS = 1e-5


class Load:
    """Computes: matmuls on one core of a processor, a kernel that spins on a GPU, what takes its time on the simulator.

    >>> from argparse import Namespace
    >>> from cuplace.runtime.platform import open_platform
    >>> bench = Bench(open_platform("sim"), "sim", Namespace(), machine=open_platform("sim").backend.machine)
    >>> load, start = Load(bench), bench.now()
    >>> bench.platform.scheduler.host_wait([load.enqueue(bench.platform.devices[0], 0.5)])
    >>> round(bench.now() - start, 3)
    0.5
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def enqueue(self, device: Any, seconds: float) -> Any:
        """The buffer that is written when the work on ``device`` has ended."""
        scheduler = device.scheduler
        buffer = scheduler.allocate(device, (1,), DTYPE, COMPUTE)
        scheduler.submit(self.task(seconds), device.compute, (), (buffer,), (device.compute,))
        return buffer

    def task(self, seconds: float) -> ComputeTask:
        """So much work."""
        if self._bench.name == "sim":
            flops = seconds * 1e12 * self._bench.machine.gpu.tflops
            return ComputeTask("load", _mark, seconds, cost=Cost(flops, 0.0))
        if self._bench.name == "cuda":
            from .gpu_figures import spinning_task

            return spinning_task(seconds)
        count = self.matmuls(seconds)
        return ComputeTask("load", lambda reads, writes, scalars: self.multiply(count), seconds, library=True)

    def matmuls(self, seconds: float) -> int:
        """How many matmuls take so long on one core."""
        return max(1, round(seconds / self._each))

    def multiply(self, count: int) -> None:
        """So many matmuls, one after the other."""
        a, out = self._matrices
        for _ in range(count):
            np.matmul(a, a, out=out)

    @cached_property
    def _matrices(self) -> tuple[np.ndarray, np.ndarray]:
        side = TINY if self._bench.quick else SIDE
        return np.ones((side, side), DTYPE), np.empty((side, side), DTYPE)

    @cached_property
    def _each(self) -> float:
        """Seconds of a matmul on one core."""
        blas = SingleThreadedBlas()

        def some() -> None:
            with blas:
                self.multiply(WARM_UP)

        found = self._bench.seconds(some)
        return found.median / WARM_UP if isinstance(found, Figure) else FAKE_SECONDS


def _mark(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
    writes[0][...] = 1
