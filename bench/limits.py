"""What the machine itself does, measured in the same run: flat copies, bare matmuls. On the simulator, its figures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from .figure import Figure
from .harness import Limit

if TYPE_CHECKING:
    from .harness import Bench

MIB = 1 << 20
DTYPE = np.dtype(np.float32)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure(bench: Bench) -> list[Limit]:
    """The limits of the platform that is measured. Bytes a second are bytes copied: each is read and written once."""
    return {"cpu": _of_cpu, "sim": _of_machine, "cuda": _of_gpus}[bench.name](bench)


def _rates(bench: Bench, runs: Mapping[str, tuple[float, str, Callable[[], Any]]]) -> list[Limit]:
    """Of runs, each with how much it does, in which unit a second."""
    samples = bench.turns({name: run for name, (_, _, run) in runs.items()})
    return [
        Limit(name, Figure.of([amount / seconds for seconds in samples[name]], unit), unit)
        for name, (amount, unit, _) in runs.items()
    ]


# ---------------------------------------------------------------------- the processor


def _of_cpu(bench: Bench) -> list[Limit]:
    from cuplace.runtime.backends.cpu.blas import SingleThreadedBlas

    nbytes, side = (MIB, 128) if bench.quick else (64 * MIB, 1024)
    source, target = np.ones(nbytes // 4, DTYPE), np.zeros(nbytes // 4, DTYPE)
    a, many = np.ones((side, side), DTYPE), cores()
    flops, blas = 2.0 * side**3, SingleThreadedBlas()
    with ThreadPoolExecutor(many) as pool:
        runs: dict[str, tuple[float, str, Callable[[], Any]]] = {
            "memcpy, 1 core": (nbytes, "B/s", lambda: np.copyto(target, source)),
            f"memcpy, {many} cores": (nbytes, "B/s", lambda: _all(pool, copies(source, target, many))),
            "matmul, 1 core": (flops, "flop/s", lambda: _matmul(a, blas)),
            f"matmul, {many} cores": (flops, "flop/s", lambda: np.matmul(a, a)),
        }
        return _rates(bench, runs)


def copies(source: np.ndarray, target: np.ndarray, parts: int) -> list[Callable[[], None]]:
    """A flat copy in so many parts, which threads can make at the same time."""
    pairs = zip(np.array_split(source, parts), np.array_split(target, parts), strict=True)
    return [lambda one=one, other=other: np.copyto(other, one) for one, other in pairs]  # type: ignore[misc]


def _all(pool: ThreadPoolExecutor, calls: Iterable[Callable[[], Any]]) -> None:
    for waited in [pool.submit(call) for call in calls]:
        waited.result()


def _matmul(a: np.ndarray, blas: Any) -> None:
    with blas:
        np.matmul(a, a)


# ---------------------------------------------------------------------- the simulator


def _of_machine(bench: Bench) -> list[Limit]:
    """What the machine model says. The memory of a GPU reads and writes each byte that is copied inside of it."""
    machine = bench.machine
    found = [
        Limit("link, host to device", 1e9 * machine.host.up_gb_s, "B/s"),
        Limit("link, device to host", 1e9 * machine.host.down_gb_s, "B/s"),
        Limit("copy inside a GPU", 0.5e9 * machine.gpu.memory_gb_s, "B/s"),
        Limit("float32", 1e12 * machine.gpu.tflops, "flop/s"),
    ]
    between = machine.peer or machine.staged
    if machine.total > 1:
        found.insert(2, Limit("link, GPU to GPU", 1e9 * between.gb_s, "B/s"))
    return found


# ---------------------------------------------------------------------- GPUs


def _of_gpus(bench: Bench) -> list[Limit]:
    from . import gpu_figures

    nbytes = MIB if bench.quick else 256 * MIB
    names = {"h2d": "link, host to device", "d2h": "link, device to host", "d2d": "copy inside a GPU"}
    with ExitStack() as stack:
        flat = stack.enter_context(gpu_figures.flat_copies(nbytes, bench.platform))
        runs: dict[str, tuple[float, str, Callable[[], Any]]] = {
            names[way]: (nbytes, "B/s", run) for way, run in flat.items()
        }
        if any(device.gpu == 1 for device in bench.platform.devices):
            peer = stack.enter_context(gpu_figures.flat_peer_copy(nbytes, bench.platform))
            runs["link, GPU to GPU"] = (nbytes, "B/s", peer)
        if bench.timed:
            runs["float32 matmul"] = _bare_matmul(256 if bench.quick else 4096)
        return _rates(bench, runs)


def _bare_matmul(side: int) -> tuple[float, str, Callable[[], Any]]:
    import cupy

    a, stream = cupy.ones((side, side), DTYPE), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()

    def run() -> None:
        with stream:
            cupy.matmul(a, a)
        stream.synchronize()

    return 2.0 * side**3, "flop/s", run
