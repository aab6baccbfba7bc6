"""The same copies and the same computing without cuplace: what the hardware itself can do at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuplace.runtime.backends.cpu.blas import SingleThreadedBlas

from .harness import Bench
from .load import Load

Call = Callable[[], Any]


@dataclass(frozen=True)
class Bare:
    """Starts work, each piece on a thread or a stream of its own. What it returns waits for the end.

    Attributes:
        compute: takes how long it is to last, in seconds.
        copies: by way: `h2d`, `d2h`, `d2d`.
    """

    compute: Callable[[float], Call]
    copies: dict[str, Callable[[], Call]]

    def run(self, ways: Sequence[str], seconds: float = 0.0) -> None:
        """Copy by these ways, and compute for so long, at once."""
        waits = [self.compute(seconds)] if seconds else []
        waits += [self.copies[way]() for way in ways]
        for wait in waits:
            wait()


@contextmanager
def bare(bench: Bench, load: Load, nbytes: int) -> Iterator[Bare | None]:
    """None on the simulator, whose machine is what it says."""
    with ExitStack() as stack:
        kinds: dict[str, Callable[[], Any]] = {
            "cpu": lambda: _threads(load, nbytes), "cuda": lambda: _streams(bench, nbytes),
        }  # fmt: skip
        yield stack.enter_context(kinds[bench.name]()) if bench.name in kinds else None


@contextmanager
def _threads(load: Load, nbytes: int) -> Iterator[Bare]:
    """Flat copies of touched memory, and matmuls on one core, each in a thread."""
    blas = SingleThreadedBlas()
    ways = ("h2d", "d2h", "d2d")
    source = np.ones(nbytes, np.uint8)
    targets = {way: np.ones(nbytes, np.uint8) for way in ways}

    def multiply(seconds: float) -> None:
        with blas:
            load.multiply(load.matmuls(seconds))

    with ThreadPoolExecutor(len(ways) + 1) as pool:
        yield Bare(
            lambda seconds: pool.submit(multiply, seconds).result,
            {way: lambda way=way: pool.submit(np.copyto, targets[way], source).result for way in ways},  # type: ignore[misc]
        )


@contextmanager
def _streams(bench: Bench, nbytes: int) -> Iterator[Bare]:
    """Asynchronous copies of pinned and device memory, and the kernel that spins, each on a stream."""
    from cuplace.runtime.backends.cuda import kernels

    first, second = between(bench.platform.devices)
    lane = first.compute.lane

    def compute(seconds: float) -> Call:
        kernels.spin(lane, int(seconds * 1e9))
        return lane.on.synchronize  # type: ignore[no-any-return]

    with _copies(first.gpu, second.gpu, nbytes) as copies:
        yield Bare(compute, copies)


@contextmanager
def _copies(gpu: int, other: int, nbytes: int) -> Iterator[dict[str, Callable[[], Call]]]:
    import cupy
    from cupy.cuda import runtime

    with cupy.cuda.Device(other):
        there = runtime.malloc(nbytes)
    with cupy.cuda.Device(gpu):
        streams = {way: cupy.cuda.Stream(non_blocking=True) for way in ("h2d", "d2h", "d2d")}
        pinned = [runtime.hostAlloc(nbytes, 0) for _ in range(2)]
        here = [runtime.malloc(nbytes) for _ in range(2)]

    def enqueued(way: str, enqueue: Callable[[int], None]) -> Callable[[], Call]:
        def start() -> Call:
            with cupy.cuda.Device(gpu):
                enqueue(streams[way].ptr)
            return streams[way].synchronize  # type: ignore[no-any-return]

        return start

    yield {
        "h2d": enqueued("h2d", lambda stream: runtime.memcpyAsync(here[0], pinned[0], nbytes, 1, stream)),
        "d2h": enqueued("d2h", lambda stream: runtime.memcpyAsync(pinned[1], here[1], nbytes, 2, stream)),
        "d2d": enqueued("d2d", lambda stream: runtime.memcpyPeerAsync(there, other, here[1], gpu, nbytes, stream)),
    }
    for address in pinned:
        runtime.freeHost(address)
    for address in (*here, there):
        runtime.free(address)


def between(devices: Sequence[Any]) -> tuple[Any, Any]:
    """The first device, and one on another GPU if there is one, else its neighbour."""
    first = devices[0]
    return first, next((device for device in devices if device.gpu != first.gpu), devices[1])
