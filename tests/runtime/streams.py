"""What tests of the runtime share: small tasks, values on devices, and the end of all work."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cuplace.runtime.backends.base import Stream
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.device import Device
from cuplace.runtime.memory import COMPUTE, TRANSFER
from cuplace.runtime.platform import Platform
from cuplace.runtime.submission import Submission
from cuplace.runtime.task import ComputeTask, CopyTask
from tests.memory import address_of

LONG = 1.0
"""An estimate of seconds that no platform runs inline."""


def task(function: Callable[..., Any], name: str = "f", seconds: float = LONG) -> ComputeTask:
    """A task that writes ``function(*reads, *scalars)``."""

    def run(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
        writes[0][...] = function(*reads, *scalars)

    return ComputeTask(name, run, seconds)


def failing(text: str, seconds: float = LONG) -> ComputeTask:
    """A task that raises a ValueError of this text."""

    def run(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
        raise ValueError(text)

    return ComputeTask("failing", run, seconds)


ADD_ONE = task(lambda x: x + 1, "add_one")
SQUARE = task(lambda x: x * x, "square")


def put(device: Device, values: Any, dtype: Any = np.int64) -> Buffer:
    """Upload values into a new buffer."""
    host = np.asarray(values, dtype)
    buffer = device.scheduler.allocate(device, host.shape, host.dtype)
    device.scheduler.upload(buffer, host)
    return buffer


def new(device: Device, like: Buffer, arena: str = COMPUTE) -> Buffer:
    """A buffer of the same shape and dtype."""
    return device.scheduler.allocate(device, like.array.shape, like.array.dtype, arena)


def compute(work: ComputeTask, *reads: Buffer, scalars: tuple[Any, ...] = ()) -> Buffer:
    """The result of work on the first operand's device, shaped like it."""
    device = reads[0].device
    result = new(device, reads[0])
    device.scheduler.submit(work, device.compute, reads, (result,), scalars)
    return result


def copy_task(buffer: Buffer, part: tuple[slice, ...] | None = None) -> CopyTask:
    """A copy of the whole buffer, or of a part of it to the same place."""
    return CopyTask(part, part, "local", buffer.nbytes)


def move(source: Buffer, device: Device) -> Buffer:
    """A copy of the whole buffer on another device."""
    target = new(device, source, TRANSFER)
    stream = source.device.transfer_to(device)
    device.scheduler.submit_moves([(copy_task(source), stream, source, target)])
    return target


def copy_behind_its_back(stream: Stream, source: Any, target: Any) -> None:
    """Work of a borrower, which the scheduler does not know: a copy between two arrays."""
    task = CopyTask(None, None, "local", target.nbytes)
    stream.copy(source, target, "local", (), Submission(-1, task, stream, (), (), (), None, 0))


def share_a_queue(one: Any, other: Any) -> bool:
    """Whether what is held on a stream holds what comes after it on another one, too: partitions of a GPU share the way
    to another GPU, and each has one queue for its moves inside of the GPU."""
    return getattr(one, "lane", one) is getattr(other, "lane", other)


def read(buffer: Buffer) -> np.ndarray:
    return buffer.device.scheduler.download(buffer)


def address(buffer: Buffer) -> int:
    """Where the buffer's memory starts."""
    return address_of(buffer.array)


def finish(platform: Platform) -> None:
    """Wait until everything that was enqueued is complete and every dead block has come back."""
    scheduler = platform.scheduler
    for event in list(scheduler._run_ahead):
        scheduler.backend.synchronize(event)
    scheduler.park()
    for device in platform.devices:
        device.memory.wait_for_all_parked()


def used(platform: Platform) -> dict[str, int]:
    """Bytes in use and parked, over all devices."""
    stats = [device.memory_stats() for device in platform.devices]
    return {name: sum(of[name] for of in stats) for name in ("bytes_in_use", "bytes_parked")}


def jitter(seed: int, most: float = 100e-6) -> Callable[[], None]:
    """A function that sleeps for a random while, differently at each call."""
    chance = random.Random(seed)

    def sleep() -> None:
        time.sleep(chance.random() * most)

    return sleep


def in_threads(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Call the functions at once, each in a thread of its own: what they returned. Raises what the first raised."""
    results: list[Any] = [None] * len(functions)
    raised: list[BaseException] = []
    start = threading.Barrier(len(functions))

    def call(i: int) -> None:
        try:
            start.wait(10)
            results[i] = functions[i]()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if raised:
        raise raised[0]
    return results
