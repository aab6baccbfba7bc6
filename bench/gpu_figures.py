"""What GPUs take, as JSON: `python -m bench.gpu_figures`; part of `bench/gpu_check.sh`.

Each figure of ours stands beside what the hardware does in the same run. With `--fake` everything runs on fake GPUs, in
small sizes, and whatever is a time, or made of times, is null.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import cuplace
import cuplace.numpy as jnp
from cuplace import NamedSharding, P
from cuplace.runtime.config import config
from cuplace.runtime.memory import COMPUTE, TRANSFER
from cuplace.runtime.platform import Platform, activated, open_platform
from cuplace.runtime.task import ComputeTask, CopyTask

Row = dict[str, Any]

MIB = 1 << 20
NUM_DEVICES = 8
STAGES, MICROBATCHES = 4, 8


class Meter:
    """Measures; on fake GPUs it only runs what it should measure."""

    def __init__(self, fake: bool, size: int) -> None:
        self.fake = fake
        self.size = size

    def seconds(self, run: Callable[[], Any], samples: int = 7) -> float | None:
        """The median time of a run, after one that warms up."""
        run()
        if self.fake:
            return None
        return statistics.median(self._once(run) for _ in range(samples))

    def call(self, run: Callable[[], Any], number: int = 200) -> float | None:
        """How long a call takes to return, while its work goes on."""

        def batch() -> None:
            for _ in range(number):
                result = run()
            self.spent = time.perf_counter() - start
            cuplace.block_until_ready(result)

        number = 2 if self.fake else number
        found = []
        for _ in range(1 if self.fake else 7):
            start = time.perf_counter()
            batch()
            found.append(self.spent / number)
        return None if self.fake else statistics.median(found)

    @staticmethod
    def _once(run: Callable[[], Any]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start


def ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one / other


# ---------------------------------------------------------------------- bandwidth


def bandwidths(meter: Meter, one: Platform, several: Platform | None) -> list[Row]:
    """Ours against a flat copy of CUDA, in GB/s."""
    host = np.ones(meter.size // 4, np.float32)
    first, second = one.devices[:2]
    x = cuplace.block_until_ready(cuplace.device_put(host, first))
    full = cuplace.make_mesh((NUM_DEVICES,), ("x",), devices=list(one.devices))
    square = host.reshape(-1, 1024)
    rows = cuplace.block_until_ready(cuplace.device_put(square, NamedSharding(full, P("x"))))
    columns = NamedSharding(full, P(None, "x"))
    with flat_copies(meter.size, one) as flat:
        limit = {name: meter.seconds(run) for name, run in flat.items()}
    ours: dict[str, tuple[str, Callable[[], Any]]] = {
        "host to device, from NumPy": ("h2d", lambda: wait(cuplace.device_put(host, first))),
        "device to host, to NumPy": ("d2h", lambda: one.scheduler.download(x._buffers[0])),
        "partition to partition": ("d2d", lambda: wait(cuplace.device_put(x, second))),
        "rows to columns, 8 partitions": ("d2d", lambda: wait(cuplace.device_put(rows, columns))),
    }
    found = [bandwidth(meter, name, run, limit[against]) for name, (against, run) in ours.items()]
    return found + (peer_bandwidths(meter, several) if several is not None else [])


def peer_bandwidths(meter: Meter, several: Platform) -> list[Row]:
    with activated(several):
        first = several.devices[0]
        second = next(device for device in several.devices if device.gpu == 1)
        host = np.ones(meter.size // 4, np.float32).reshape(-1, 1024)
        x = wait(cuplace.device_put(host, first))
        with flat_peer_copy(meter.size, several) as flat:
            limit = meter.seconds(flat)
        whole = bandwidth(meter, "GPU to GPU", lambda: wait(cuplace.device_put(x, second)), limit)
        source = x._buffers[0]
        target = several.scheduler.allocate(second, host.shape, host.dtype)
        box, stream = (slice(None), slice(0, 512)), first.transfer_to(second)

        def columns() -> None:
            task = CopyTask(box, box, stream.path or "", 0)
            several.scheduler.submit_moves([(task, stream, source, target)])
            several.scheduler.host_wait([target])

        half = bandwidth(meter, "GPU to GPU, half of the columns", columns, ratio(limit, 2.0), meter.size // 2)
        path = several.backend.links.paths[0, 1]
        return [{**whole, "path": path}, {**half, "path": path}]


def bandwidth(meter: Meter, name: str, run: Callable[[], Any], limit: float | None, nbytes: int = 0) -> Row:
    nbytes = nbytes or meter.size
    seconds = meter.seconds(run)
    return {
        "name": name, "bytes": nbytes, "gb_per_s": ratio(nbytes / 1e9, seconds),
        "limit_gb_per_s": ratio(nbytes / 1e9, limit), "share": ratio(limit, seconds),
    }  # fmt: skip


def wait(array: Any) -> Any:
    return cuplace.block_until_ready(array)


@contextmanager
def flat_copies(nbytes: int, platform: Platform) -> Iterator[dict[str, Callable[[], None]]]:
    """What the GPU itself does: one asynchronous copy of pinned or device memory, and the wait for it."""
    import cupy
    from cupy.cuda import runtime

    with cupy.cuda.Device(platform.devices[0].gpu):
        stream = cupy.cuda.Stream(non_blocking=True)
        pinned, one, other = runtime.hostAlloc(nbytes, 0), runtime.malloc(nbytes), runtime.malloc(nbytes)

        def copy(target: int, source: int, kind: int) -> Callable[[], None]:
            def run() -> None:
                runtime.memcpyAsync(target, source, nbytes, kind, stream.ptr)
                stream.synchronize()

            return run

        yield {"h2d": copy(one, pinned, 1), "d2h": copy(pinned, one, 2), "d2d": copy(other, one, 3)}
        runtime.freeHost(pinned)
        runtime.free(one)
        runtime.free(other)


@contextmanager
def flat_peer_copy(nbytes: int, platform: Platform) -> Iterator[Callable[[], None]]:
    import cupy
    from cupy.cuda import runtime

    with cupy.cuda.Device(1):
        other = runtime.malloc(nbytes)
    with cupy.cuda.Device(0):
        stream, one = cupy.cuda.Stream(non_blocking=True), runtime.malloc(nbytes)

        def run() -> None:
            runtime.memcpyPeerAsync(other, 1, one, 0, nbytes, stream.ptr)
            stream.synchronize()

        yield run
        runtime.free(one)
    with cupy.cuda.Device(1):
        runtime.free(other)


# ---------------------------------------------------------------------- overlap


def overlaps(meter: Meter, one: Platform, several: Platform | None) -> list[Row]:
    """How much of the shorter one of a copy and a kernel is hidden behind the other."""
    host = np.ones(meter.size // 4, np.float32)
    found = []
    with activated(one):
        first, second = one.devices[:2]
        x = wait(cuplace.device_put(host, first))
        found.append(overlap(meter, "h2d", first, lambda: cuplace.device_put(host, first)))
        found.append(overlap(meter, "d2h", first, lambda: one.scheduler.download(x._buffers[0])))
        found.append(overlap(meter, "d2d", first, lambda: cuplace.device_put(x, second)))
    if several is not None:
        with activated(several):
            first = several.devices[0]
            second = next(device for device in several.devices if device.gpu == 1)
            y = wait(cuplace.device_put(host, first))
            found.append(overlap(meter, "peer", first, lambda: cuplace.device_put(y, second)))
    return found


def overlap(meter: Meter, name: str, device: Any, copy: Callable[[], Any]) -> Row:
    def finish(copied: Any) -> None:
        if not isinstance(copied, np.ndarray):
            wait(copied)

    alone = meter.seconds(lambda: finish(copy()))
    duration = 0.001 if alone is None else alone

    def both() -> None:
        spinning = spin(device, duration)
        finish(copy())
        device.scheduler.host_wait([spinning])

    spun = meter.seconds(lambda: device.scheduler.host_wait([spin(device, duration)]))
    together = meter.seconds(both)
    hidden = None
    if alone is not None and spun is not None and together is not None:
        hidden = (alone + spun - together) / min(alone, spun)
    return {"name": name, "copy_s": alone, "kernel_s": spun, "both_s": together, "hidden_share": hidden}


def spinning_task(seconds: float) -> ComputeTask:
    from cuplace.runtime.backends.cuda import kernels

    def run(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
        (stream,) = scalars
        kernels.spin(stream.lane, int(seconds * 1e9))
        if reads:
            writes[0][...] = reads[0]

    return ComputeTask("spin", run, seconds)


def spin(device: Any, seconds: float) -> Any:
    """The buffer that a kernel writes which keeps the compute stream busy for so long."""
    buffer = device.scheduler.allocate(device, (1,), np.dtype(np.float32), COMPUTE)
    device.scheduler.submit(spinning_task(seconds), device.compute, (), (buffer,), (device.compute,))
    return buffer


# ---------------------------------------------------------------------- the page's pipeline


def pipelines(meter: Meter, platform: Platform) -> list[Row]:
    """Stages that last for a known time; and the page's own, with and without waiting after each call."""
    unit = 1e-6 if meter.fake else 2e-3
    pipelined = meter.seconds(lambda: spinning_pipeline(platform, unit), samples=3)
    ideal, serial = (STAGES + MICROBATCHES - 1) * unit, STAGES * MICROBATCHES * unit
    gained = None if pipelined is None else (serial - pipelined) / (serial - ideal)
    page = meter.seconds(lambda: page_pipeline(platform), samples=5)
    config.update("sync", True)
    waiting = meter.seconds(lambda: page_pipeline(platform), samples=5)
    config.update("sync", False)
    return [
        {
            "name": "stages of 2 ms", "seconds": pipelined, "ideal_s": None if meter.fake else ideal,
            "serial_s": None if meter.fake else serial, "overlap_share": gained,
        },
        {"name": "the page's", "seconds": page, "waiting_s": waiting, "faster": ratio(waiting, page)},
    ]  # fmt: skip


def spinning_pipeline(platform: Platform, unit: float) -> None:
    """The page's loop on the runtime's floor: two shards, moved to each stage, where a kernel takes one unit."""
    scheduler, task, dtype = platform.scheduler, spinning_task(unit), np.dtype(np.float32)
    results = []
    for i in range(MICROBATCHES):
        for shard in range(2):
            buffer = scheduler.allocate(platform.devices[shard], (128, 256), dtype)
            scheduler.upload(buffer, np.full((128, 256), i, np.float32))
            for stage in range(STAGES):
                device = platform.devices[2 * stage + shard]
                if buffer.device is not device:
                    target = scheduler.allocate(device, (128, 256), dtype, TRANSFER)
                    stream = buffer.device.transfer_to(device)
                    copy = CopyTask(None, None, stream.path or "", buffer.nbytes)
                    scheduler.submit_moves([(copy, stream, buffer, target)])
                    buffer = target
                result = scheduler.allocate(device, (128, 256), dtype, COMPUTE)
                scheduler.submit(task, device.compute, (buffer,), (result,), (device.compute,))
                buffer = result
            results.append(buffer)
    scheduler.host_wait(results)


@cuplace.jit
def page_stage(x: Any) -> Any:
    return jnp.sin(x) + 1.0


def page_pipeline(platform: Platform) -> None:
    devices = list(platform.devices)
    meshes = [cuplace.make_mesh((2,), ("x",), devices=devices[2 * i : 2 * i + 2]) for i in range(STAGES)]
    results = []
    for i in range(MICROBATCHES):
        microbatch: Any = np.full((256, 256), i, np.float32)
        for mesh in meshes:
            microbatch = page_stage(cuplace.device_put(microbatch, NamedSharding(mesh, P("x"))))
        results.append(microbatch)
    wait(results)


# ---------------------------------------------------------------------- what calls cost


def dispatch(meter: Meter, platform: Platform) -> list[Row]:
    """Seconds until a call returns, beside the bare call of CuPy."""
    import cupy

    devices = list(platform.devices)
    full = cuplace.make_mesh((NUM_DEVICES,), ("x",), devices=devices)
    left = NamedSharding(cuplace.make_mesh((4,), ("x",), devices=devices[:4]), P("x"))
    right = cuplace.make_mesh((4,), ("x",), devices=devices[4:])
    small, spread = np.arange(8, dtype=np.float32), NamedSharding(full, P("x"))
    x, x8 = wait(cuplace.device_put(small, devices[0])), wait(cuplace.device_put(small, spread))
    grid = wait(cuplace.device_put(np.ones((8, 8), np.float32), left))
    calls: dict[str, Callable[[], Any]] = {
        "x + x": lambda: x + x,
        "sin(x)": lambda: jnp.sin(x),
        "x + x, 8 shards": lambda: x8 + x8,
        "jitted sin(x) + 1, 8 shards": lambda: page_stage(x8),
        "put of 32 B to 8 shards": lambda: cuplace.device_put(small, spread),
        "move to another mesh, 4 shards": lambda: cuplace.device_put(grid, NamedSharding(right, P("x"))),
        "move, other layout, 4 shards": lambda: cuplace.device_put(grid, NamedSharding(right, P(None, "x"))),
    }
    with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True):
        a = cupy.arange(8, dtype=np.float32)
        bare = meter.call(lambda: (a + a, None)[1])
        cupy.cuda.get_current_stream().synchronize()
    found = [{"name": "CuPy: a + a", "call_s": bare}]
    found += [{"name": name, "call_s": meter.call(run)} for name, run in calls.items()]
    spread_call = next(row["call_s"] for row in found if row["name"] == "x + x, 8 shards")
    each = ratio(spread_call, NUM_DEVICES)
    extra = None if each is None or bare is None else each - bare
    return [*found, {"name": "ours, a shard and op, beyond CuPy's", "call_s": extra}]


def waits(meter: Meter, platform: Platform) -> list[Row]:
    """How soon a wait returns after its work has ended, and how much of a processor it takes until then."""
    held = 0.01 if meter.fake else 0.5
    device = platform.devices[0]
    released: list[float] = []
    latch = platform.scheduler.hold(device.compute)
    buffer = spin(device, 1e-6)

    def release() -> None:
        released.append(time.perf_counter())
        latch.release()

    timer = threading.Timer(held, release)
    timer.start()
    start = time.thread_time()
    platform.scheduler.host_wait([buffer])
    end, busy = time.perf_counter(), time.thread_time() - start
    timer.join()
    return [
        {
            "name": f"a wait of {held} s", "late_s": None if meter.fake else end - released[0],
            "processor_share": None if meter.fake else busy / held,
        }
    ]  # fmt: skip


# ---------------------------------------------------------------------- the machine


def machine() -> Row:
    """Which GPUs, driver and libraries these are."""
    import cupy
    from cupy.cuda import runtime

    gpus = []
    for ordinal in range(runtime.getDeviceCount()):
        found = runtime.getDeviceProperties(ordinal)
        gpus.append({
            "name": found["name"].decode(), "uuid": uuid(ordinal) or uuid_text(found.get("uuid", b"")),
            "compute_capability": f"{found['major']}.{found['minor']}", "bytes": int(found["totalGlobalMem"]),
            "multiprocessors": int(found["multiProcessorCount"]), "copy_engines": int(found["asyncEngineCount"]),
        })  # fmt: skip
    return {
        "gpus": gpus, "driver": driver_version(), "cuda_driver": version(runtime.driverGetVersion()),
        "cuda_runtime": version(runtime.runtimeGetVersion()), "cupy": cupy.__version__, "numpy": np.__version__,
        "cuplace": cuplace.__version__,
    }  # fmt: skip


def uuid(ordinal: int) -> str | None:
    """NVML's, which is asked for by the place on the bus: its numbers are others than CUDA's."""
    from cupy.cuda import runtime

    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByPciBusId(runtime.deviceGetPCIBusId(ordinal))))
    except Exception:
        return None


def uuid_text(raw: bytes) -> str | None:
    """CUDA's, which CuPy cuts off at a zero byte."""
    text = bytes(raw[:16]).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}" if len(text) == 32 else None


def version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def driver_version() -> str | None:
    """The driver's own number, where NVML answers."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:
        return None


def figures(meter: Meter) -> Row:
    """All of it."""
    import cupy

    gpus = int(cupy.cuda.runtime.getDeviceCount())
    one = open_platform("cuda", NUM_DEVICES, gpus=1)
    several = open_platform("cuda", max(NUM_DEVICES, gpus)) if gpus > 1 else None
    found: Row = {"machine": machine()}
    with activated(one):
        found["bandwidth"] = bandwidths(meter, one, several)
        found["overlap"] = overlaps(meter, one, several)
        found["pipeline"] = pipelines(meter, one)
        found["dispatch"] = dispatch(meter, one)
        found["wait"] = waits(meter, one)
    return found


def main() -> None:
    """Print the JSON as the last line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_figures", description=__doc__)
    parser.add_argument("--fake", action="store_true", help="run on two fake GPUs")
    parser.add_argument("--mib", type=int, help="size of large copies (default: 256, on fake GPUs 1)")
    options = parser.parse_args()
    if options.fake:
        from tests import fakecuda

        fakecuda.install(devices=2, mode="eager")
    print(json.dumps(figures(Meter(options.fake, (options.mib or (1 if options.fake else 256)) * MIB))))


if __name__ == "__main__":
    main()
