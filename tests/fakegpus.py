"""The cuda platform on fake GPUs: what the fixture `platform` opens, and what it checks at the end.

`tests/fakecuda` runs the real CuPy; here it learns what only cuplace knows: which bytes our kernels and the host
touch, and by which Python hand-overs one thread's work comes before another's.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import cuplace
from cuplace.runtime.backends.condition import Condition
from cuplace.runtime.platform import Platform, open_platform
from cuplace.runtime.scheduler import Scheduler
from tests import fakecuda, hardware

NUM_DEVICES = 8
NUM_GPUS = 8


class Case(NamedTuple):
    """How the fake schedules, how many GPUs the eight devices lie on, and whether these reach each other."""

    mode: str
    seed: int = 0
    gpus: int = NUM_GPUS
    peers: bool = True

    @property
    def label(self) -> str:
        parts = [self.mode + (str(self.seed) if self.seed else "")]
        parts += [f"{self.gpus}gpu"] if self.gpus != NUM_GPUS else []
        parts += [] if self.peers else ["nopeers"]
        return "-".join(parts)


CASES = (
    Case("eager"),
    Case("lazy"),
    Case("lazy", gpus=1),
    Case("random", 1, peers=False),
    Case("random", 2, gpus=2),
    Case("random", 3),
    Case("random", 4, gpus=1),
    Case("threads"),
)
"""The first two for every test, all of them for tests marked `order`."""

DEEP_CASES = CASES + tuple(
    Case(mode, seed, gpus, peers)
    for mode in ("random", "threads")
    for seed in range(5, 10)
    for gpus in (1, 2, 8)
    for peers in (True, False)
    if peers or gpus > 1
)


@cache
def missing() -> str | None:
    """Why there are no fake GPUs here; None where there are. They are put in place at the first call.

    Where CUPLACE_REQUIRE names ``fakecuda``, their absence is an error.
    """
    if hardware.chosen():
        return "these tests run on the GPUs of this machine"
    reason = fakecuda.missing()
    if reason is None:
        try:
            fakecuda.install(devices=NUM_GPUS, library=[Path(cuplace.__file__).parent])
            _teach()
        except fakecuda.BuildError as error:
            reason = str(error)
    if reason is not None and "fakecuda" in os.environ.get("CUPLACE_REQUIRE", "").split(","):
        raise pytest.UsageError(f"CUPLACE_REQUIRE asks for fake GPUs, and there are none: {reason}")
    return reason


def open_fake(case: Case) -> Platform:
    """The cuda platform on fresh fake GPUs."""
    fakecuda.reset()
    fakecuda.set_mode(case.mode, case.seed)
    fakecuda.take_reports()
    if not case.peers:
        fakecuda.faults.no_peer()
    platform = open_platform("cuda", NUM_DEVICES, gpus=case.gpus)
    platform.scheduler.lock = fakecuda.watched(platform.scheduler.lock)
    backend: Any = platform.backend
    backend.ring._changed = Condition(fakecuda.watched(threading.RLock()))
    return platform


@contextmanager
def virtual_time(platform: Platform, **costs: float) -> Iterator[fakecuda.Clock]:
    """Inside, work takes as long as `fakecuda.virtual_time` is told, and the platform's host lives in the same time."""
    from cuplace.runtime.scheduler import doors, memory

    with fakecuda.virtual_time(**costs) as clock, pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform.backend, "now", clock.now)
        for module in (doors, memory):
            patch.setattr(module, "now_ns", clock.now)
        yield clock


def assert_no_reports() -> None:
    """Nothing raced, nothing used freed memory, nothing was called wrongly."""
    reports = fakecuda.take_reports()
    assert not reports, "\n".join(map(str, reports[:5]))


def _teach() -> None:
    from cuplace.runtime.backends.cuda import hooks, lane

    hooks.host_access = fakecuda.host_access
    hooks.kernel_access = fakecuda.kernel_access
    hooks.library = fakecuda.library_call

    is_done, complete = lane.CudaEvent.done.fget, lane.Lane.complete
    scheduler_init = Scheduler.__init__

    def watched_done(event: Any) -> bool:
        done: bool = is_done(event)
        if done:
            fakecuda.take_over(id(event.lane))
        return done

    def watched_complete(self: Any, seq: int) -> None:
        fakecuda.hand_on(id(self))  # before other threads can see it
        complete(self, seq)

    def watched_scheduler(self: Scheduler, backend: Any) -> None:
        scheduler_init(self, backend)
        self.graveyard = _WatchedGraveyard()

    lane.CudaEvent.done = property(watched_done)  # type: ignore[assignment]
    lane.Lane.complete = watched_complete  # type: ignore[method-assign]
    Scheduler.__init__ = watched_scheduler  # type: ignore[method-assign]


class _WatchedGraveyard(deque[Any]):
    """Whoever takes a block in comes after the thread in which its buffer died.

    It takes over block by block: a buffer may die in another thread while the scheduler takes in those before it.
    """

    def append(self, dead: Any) -> None:
        fakecuda.hand_on(id(self))
        super().append(dead)

    def appendleft(self, dead: Any) -> None:
        fakecuda.hand_on(id(self))
        super().appendleft(dead)

    def popleft(self) -> Any:
        dead = super().popleft()
        fakecuda.take_over(id(self))
        return dead
