"""The page's pipeline with its submission records, and the replay of such records with costs of our choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import NamedSharding, P
from cuplace.runtime.memory import COMPUTE, DeviceMemory
from cuplace.runtime.platform import Platform
from cuplace.runtime.submission import Submission

STAGES = 4
MICROBATCHES = 8


def stage(x: Any) -> Any:
    return jnp.sin(x) + 1.0


def expected(microbatch: np.ndarray) -> np.ndarray:
    value = microbatch
    for _ in range(STAGES):
        value = np.sin(value) + np.float32(1.0)
    return value


def run(platform: Platform, apply: Callable[[Any], Any]) -> tuple[list[cuplace.Array], list[np.ndarray]]:
    """The page's loop, rebinding ``mb`` as the page does. Only the results stay alive."""
    devices = platform.devices
    meshes = [cuplace.make_mesh((2,), ("x",), devices=devices[2 * i : 2 * i + 2]) for i in range(STAGES)]
    microbatches = [np.full((16, 16), i, np.float32) for i in range(MICROBATCHES)]
    results = []
    for mb in microbatches:
        for m in meshes:
            mb = cuplace.device_put(mb, NamedSharding(m, P("x")))  # noqa: PLW2901
            mb = apply(mb)  # noqa: PLW2901
        results.append(mb)
    return results, [expected(mb) for mb in microbatches]


def recorded(platform: Platform, apply: Callable[[Any], Any]) -> list[Submission]:
    """The records of one run in which everything was enqueued before anything could run."""
    scheduler = platform.scheduler
    latches = [scheduler.hold(device.upload) for device in platform.devices[:2]]
    with scheduler.log.record() as records:
        results, values = run(platform, apply)
    assert not any(result.is_ready() for result in results)
    for latch in latches:
        latch.release()
    for result, value in zip(results, values, strict=True):
        np.testing.assert_allclose(np.asarray(result), value, rtol=1e-6)
    return records


def make_writers_wait(patch: pytest.MonkeyPatch) -> None:
    """Hand a dead block of a compute arena out again before its readers are done; the next writer waits for them."""
    original = DeviceMemory.allocate

    def allocate_waiting(self: DeviceMemory, arena: str, nbytes: int, shape: Any, dtype: Any) -> Any:
        if arena == COMPUTE:
            found = self.arenas[arena].take_parked(nbytes)
            if found is not None:
                return found
        return original(self, arena, nbytes, shape, dtype)

    patch.setattr(DeviceMemory, "allocate", allocate_waiting)


def makespan(records: list[Submission], cost: Callable[[Submission], float]) -> float:
    """When the last piece of work ends, if each starts as soon as its stream and its waits allow."""
    ends: dict[int, float] = {}
    stream_end: dict[Any, float] = {}
    for record in records:
        waits = [ends.get(wait, 0.0) for wait in record.waits]
        start = max([stream_end.get(record.stream, 0.0), *waits])
        ends[record.id] = stream_end[record.stream] = start + cost(record)
    return max(ends.values())
