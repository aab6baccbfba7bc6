"""A program that loses its GPU to a wild pointer, for `test_failures.py`: prints what became of everything else.

``python -m tests.gpu.lost real`` runs on the GPUs of the machine, with ``fake`` on eight fake ones.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import cuplace
from cuplace.errors import DeviceLostError
from cuplace.runtime.task import ComputeTask

WILD = """
extern "C" __global__ void wild(long long* somewhere) { *somewhere = 1; }
"""


def main(where: str) -> None:
    if where == "fake":
        from tests import fakecuda

        fakecuda.install(devices=8, mode="lazy")
    import cupy

    cuplace.config.update("platform", "cuda")
    cuplace.config.update("num_devices", 8)
    devices = cuplace.devices()
    kernel = cupy.RawKernel(WILD, "wild")
    here = [cuplace.device_put(np.arange(4, dtype=np.float32), devices[0])]
    there = [cuplace.device_put(np.arange(4, dtype=np.float32), devices[-1])]
    cuplace.block_until_ready(here + there)

    def run(reads: list[Any], writes: list[Any], scalars: Any) -> None:
        kernel((1,), (1,), (np.uintp(16),))
        writes[0][...] = 0

    device: Any = devices[0]
    (buffer,) = device.scheduler.allocate_batch((device,), (4,), np.dtype(np.float32), "compute")
    device.scheduler.submit(ComputeTask("wild", run, 1.0), device.compute, (), (buffer,))
    for name, read in {
        "its result": lambda: device.scheduler.download(buffer),
        "an array beside it": lambda: np.asarray(here[0]),
        "a new array there": lambda: cuplace.device_put(np.ones(2, np.float32), devices[0]),
    }.items():
        try:
            read()
            print(f"{name}: fine")
        except DeviceLostError as error:
            print(f"{name}: {str(error).splitlines()[0]}")
    if device.gpu != devices[-1].gpu:
        print(f"another GPU: {np.asarray(there[0] * 2).tolist()}")
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
