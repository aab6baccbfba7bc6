"""The cpu platform: NumPy arrays, and strands over as many workers as there are cores."""

from __future__ import annotations

from collections.abc import Callable

from cuplace.runtime.backends.cpu.backend import CpuBackend


def open_backend(jitter: Callable[[], None] | None = None, workers: int | None = None) -> CpuBackend:
    """A new cpu backend. ``jitter`` is called before each queued item (tests delay at random with it)."""
    return CpuBackend(jitter, workers)
