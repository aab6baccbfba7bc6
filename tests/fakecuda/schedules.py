"""Schedules: in which order the fake runs what was enqueued."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from tests.fakecuda import native

MODES = {"eager": 0, "lazy": 1, "random": 2, "threads": 3}


class Schedule(NamedTuple):
    """A mode and the seed of its choices."""

    mode: str
    seed: int


def set_mode(mode: str, seed: int = 0) -> None:
    """Finish all work, then schedule in another way.

    Args:
        mode: ``eager``: each operation runs as soon as it can, at the latest in the next call. ``lazy``: nothing runs
            until the host waits, then only what that wait needs. ``random``: any ready operation. ``threads``: three
            threads, with jitter. All but the last are deterministic for one host thread.
        seed: of the choices in ``random`` mode.
    """
    native.library().fake_set_mode(MODES[mode], seed)


def schedules(random_seeds: int = 20) -> Iterator[Schedule]:
    """Switch to one schedule after another; a test's result must be the same under all.

    Example::

        for schedule in fakecuda.schedules():
            run_program()
            assert fakecuda.take_reports() == [], schedule
    """
    chosen = [Schedule("eager", 0), Schedule("lazy", 0)]
    chosen += [Schedule("random", seed) for seed in range(random_seeds)]
    chosen += [Schedule("threads", 0), Schedule("threads", 1)]
    for schedule in chosen:
        set_mode(*schedule)
        yield schedule
    set_mode("eager")


def reset() -> None:
    """Finish all work; forget reports, counts, faults, lost devices, and the past that races are found in.

    What is allocated stays, and so do streams, events, enabled peer access and the mode.
    """
    native.library().fake_reset()


def set_latch_timeout(seconds: float) -> None:
    """How long a kernel named ``*latch*`` may wait for its flag. It is then left out, and reported."""
    native.library().fake_set_gate_timeout(seconds * 1e3)


@contextlib.contextmanager
def visible_devices(count: int) -> Iterator[None]:
    """Inside, the machine has only so many GPUs.

    CuPy remembers the number for each Python thread, so threads that start inside must end inside.
    """
    from tests.fakecuda import faults

    before = faults.device_count()
    native.library().fake_set_visible(count)
    try:
        yield
    finally:
        native.library().fake_set_visible(before)
