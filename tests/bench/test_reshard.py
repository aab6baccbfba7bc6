"""Plans come near to what links allow: virtual times on machines that are not here, so the same on every computer."""

from __future__ import annotations

import pytest

from bench import reshard
from cuplace.runtime.presets import PRESETS


@pytest.mark.parametrize("machine", ["pcie-8x", "hgx-h200", "two-nodes"])
def test_no_plan_takes_a_tenth_longer_than_its_bytes_need(machine: str) -> None:
    lines = list(reshard.measure(PRESETS[machine], with_naive=False))
    assert len(lines) == 15
    for line in lines:
        assert 1.0 - 1e-9 <= line.ratio <= reshard.BUDGET, line
        assert line.took == pytest.approx(line.planned, rel=0.05), line


def test_the_naive_plan_of_a_broadcast_to_another_node_is_several_times_slower() -> None:
    (line,) = reshard.measure(PRESETS["two-nodes"], "sharded to replicated, other half")
    assert line.naive > 5 * line.took
