"""The sim platform: the whole product on one thread, in seeded orders, in memory that is really reused, and timed."""

from __future__ import annotations

from cuplace.runtime.backends.sim.backend import SimBackend
from cuplace.runtime.machine import Machine
from cuplace.runtime.presets import find_machine


def open_backend(seed: int = 0, eagerness: float | None = None, machine: Machine | str | None = None) -> SimBackend:
    """A new simulator.

    Args:
        seed: chooses the order of execution.
        eagerness: how readily work runs before somebody waits for it, from 0 to 1; by default chosen by the seed.
        machine: what times are told for: a machine, its name, or a TOML file that describes it.

    Raises:
        MachineError: a ValueError; there is no such machine, or its file is wrong.
    """
    return SimBackend(seed, eagerness, find_machine(machine) if isinstance(machine, str) else machine)
