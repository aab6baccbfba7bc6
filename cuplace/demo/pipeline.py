"""Pipeline: the pipeline of the page "Data placement", on whatever devices there are.

Stages are committed to meshes of their own; `device_put` moves each microbatch from stage to stage. No call
waits, so that stages and moves run at the same time wherever their inputs are ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import cuplace
import cuplace.numpy as jnp
from cuplace.profiling.profile import Profile
from cuplace.runtime.platform import Platform
from cuplace.runtime.submission import Submission


@cuplace.jit
def stage(x: Any) -> Any:
    """The work of one stage: a stand-in for something real, as on the page."""
    return jnp.sin(x) + 1.0


def stage_meshes(platform: Platform, stages: int) -> list[cuplace.Mesh]:
    """A mesh for each stage. Stages share the devices evenly; where there are fewer devices, they share one."""
    devices, width = platform.devices, max(1, len(platform.devices) // stages)
    starts = [i * len(devices) // stages for i in range(stages)]
    return [cuplace.make_mesh((width,), ("x",), devices=devices[start : start + width]) for start in starts]


@dataclass
class Run:
    """One run of the pipeline: its results, what was submitted, its profile, of which microbatch, how many are done.

    Times are nanoseconds of the records: of `perf_counter_ns`, or of virtual time on the simulator.
    """

    results: list[Any] = field(default_factory=list)
    submissions: Sequence[Submission] = ()
    profile: Profile | None = None
    microbatch_of: dict[int, int] = field(default_factory=dict)
    done: int = 0

    @property
    def began(self) -> int:
        """When the first call began to enqueue."""
        return min(submission.enqueue for submission in self.submissions)

    @property
    def enqueued(self) -> int:
        """When the last call began to enqueue."""
        return max(submission.enqueue for submission in self.submissions)

    @property
    def ended(self) -> int:
        """When the last piece of work ended."""
        return max(submission.end for submission in self.submissions)


def inputs(microbatches: int, size: int) -> list[np.ndarray]:
    """The microbatches on the host: float32, `size` by `size`, growing along each, so that a swap would show."""
    ramp = np.linspace(0, 1, size * size, dtype=np.float32).reshape(size, size)
    return [ramp + np.float32(i) for i in range(microbatches)]


def expected(microbatch: np.ndarray, stages: int) -> np.ndarray:
    """What NumPy makes of one microbatch."""
    for _ in range(stages):
        microbatch = np.sin(microbatch) + np.float32(1)
    return microbatch


def warm_up(meshes: list[cuplace.Mesh], microbatch: np.ndarray) -> None:
    """Trace the stage, place it on each mesh, and let each device touch its memory once."""
    for mesh in meshes:
        x = cuplace.device_put(microbatch, cuplace.NamedSharding(mesh, cuplace.P("x")))
        cuplace.block_until_ready(stage(x))


def enqueue(run: Run, meshes: list[cuplace.Mesh], microbatches: list[np.ndarray]) -> None:
    """The page's two loops. Nothing here waits for a device."""
    targets = [cuplace.NamedSharding(mesh, cuplace.P("x")) for mesh in meshes]
    for i, mb in enumerate(microbatches):
        with _numbered(run, i):
            for target in targets:
                mb = cuplace.device_put(mb, target)  # noqa: PLW2901
                mb = stage(mb)  # noqa: PLW2901
        run.results.append(mb)


@contextmanager
def _numbered(run: Run, microbatch: int) -> Iterator[None]:
    first = len(run.submissions)
    yield
    for submission in run.submissions[first:]:
        run.microbatch_of[submission.id] = microbatch


def execute(meshes: list[cuplace.Mesh], microbatches: list[np.ndarray]) -> Iterator[Run]:
    """Run the pipeline; yields the run after it was enqueued and again after each microbatch that is done."""
    with cuplace.profile() as profile:
        run = Run(submissions=profile.records, profile=profile)
        enqueue(run, meshes, microbatches)
    yield run
    for i, result in enumerate(run.results, 1):
        cuplace.block_until_ready(result)
        if i == len(run.results):
            _ = profile.spans  # times are known on all platforms from here on
        run.done = i
        yield run
