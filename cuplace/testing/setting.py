"""Setting: which platform a test runs on, and how; and a platform that lives for the time of one test."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from cuplace.runtime import context
from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform, activated, open_platform
from cuplace.testing.injection import faults

_MOST_DELAY = 2e-3  # seconds
_DELAYED = 0.3  # of all that is queued


@dataclass(frozen=True)
class Setting:
    """One way to run a test.

    Attributes:
        platform: ``cpu``, ``sim`` or ``cuda``.
        devices: how many; None for as many as the platform has.
        seed: on sim it chooses the order of execution, on cpu it delays what is queued at random; None runs as
            programs do.
        machine: what the simulator tells times for, a name or a TOML file.
        faults: arguments of ``cuplace.testing.faults``, which holds during the test.
        check_order: whether a use of memory that nothing orders is an error.
    """

    platform: str
    devices: int | None = None
    seed: int | None = None
    machine: str | None = None
    faults: Mapping[str, Any] = field(default_factory=dict)
    check_order: bool = False

    @property
    def label(self) -> str:
        """A name for it: ``sim-seed3``."""
        return self.platform if self.seed is None else f"{self.platform}-seed{self.seed}"

    def __str__(self) -> str:
        parts = [self.platform, *([] if self.devices is None else [f"{self.devices} devices"])]
        parts += [] if self.seed is None else [f"seed {self.seed}"]
        parts += [] if self.machine is None else [f"machine {self.machine}"]
        parts += [f"{name}={value!r}" for name, value in self.faults.items()]
        return ", ".join([*parts, *(["order checked"] if self.check_order else [])])

    def open(self) -> Platform:
        """A new platform, not the current one.

        Raises:
            RuntimeError: there is no such platform here.
            ValueError: there is no such machine.
        """
        config.update("check_order", self.check_order)
        if self.platform == "sim":
            seed = config.sim_seed if self.seed is None else self.seed
            machine = config.sim_machine if self.machine is None else self.machine
            return open_platform("sim", self.devices, seed=seed, machine=machine)
        if self.platform == "cpu":
            return open_platform("cpu", self.devices, jitter=None if self.seed is None else delays(self.seed))
        return open_platform(self.platform, self.devices)

    @contextmanager
    def active(self) -> Iterator[Platform]:
        """A new platform inside the ``with`` block, with its faults, as the current one."""
        with fresh(self.open) as platform, faults(**self.faults) if self.faults else nullcontext():
            yield platform


@contextmanager
def fresh(open_it: Callable[[], Platform]) -> Iterator[Platform]:
    """What ``open_it`` opens is the current platform inside the ``with`` block, and is closed at its end; options and
    the thread's context are then what they were before."""
    with restored_options():
        opened = open_it()
        context.reset()
        try:
            with activated(opened):
                yield opened
                opened.scheduler.release_latches()
        finally:
            opened.close()


@contextmanager
def restored_options() -> Iterator[None]:
    """Options and the thread's context are after the ``with`` block what they were before."""
    saved = dict(config.__dict__)
    try:
        yield
    finally:
        context.reset()
        config.__dict__.clear()
        config.__dict__.update(saved)
        for listener in config._listeners:
            listener("")


def delays(seed: int) -> Callable[[], None]:
    """Something to call before each queued item: now and then it sleeps for up to two milliseconds."""
    chance = random.Random(seed)
    return lambda: time.sleep(chance.random() * _MOST_DELAY) if chance.random() < _DELAYED else None
