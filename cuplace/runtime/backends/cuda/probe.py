"""The NumPy twins of the kernels in ``probe.cu``: a pattern and its checksum."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)


def pattern(count: int, seed: int) -> Words:
    """What the kernel ``fill`` writes: ``count`` words that no shift, repetition or constant resembles."""
    with np.errstate(over="ignore"):
        return _mix(np.arange(count, dtype=np.uint64) + np.uint64(seed))


def pattern_sum(words: Words) -> int:
    """What the kernel ``checksum`` adds up: every word counts, and so does its place."""
    with np.errstate(over="ignore"):
        places = np.arange(words.size, dtype=np.uint64) * _STEP
        return int(_mix(words + places).sum(dtype=np.uint64))


def _mix(x: Words) -> Words:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
