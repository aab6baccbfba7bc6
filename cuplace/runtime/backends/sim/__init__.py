"""The sim platform: the whole product on one thread, in seeded orders, in memory that is really reused."""

from __future__ import annotations

from cuplace.runtime.backends.sim.backend import SimBackend


def open_backend(seed: int = 0, eagerness: float | None = None) -> SimBackend:
    """A new simulator. ``seed`` chooses the order of execution; ``eagerness`` (0 to 1, by default chosen by the
    seed) how readily work runs before somebody waits for it."""
    return SimBackend(seed, eagerness)
