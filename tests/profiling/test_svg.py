from __future__ import annotations

import pytest

from cuplace.profiling.svg import _step


@pytest.mark.parametrize(
    ("least", "step"), [(0.1, 1e3), (1e3, 1e3), (1001, 2e3), (2.5e5, 5e5), (5e5, 5e5), (5.1e5, 1e6), (9.1e9, 1e10)]
)
def test_times_below_the_lanes_are_round(least: float, step: float) -> None:
    assert _step(least) == step
