"""Random programs give NumPy's values whatever the order in which the streams run."""

from __future__ import annotations

import pytest

from cuplace import config
from cuplace.runtime.platform import Platform
from tests.order.random_program import RandomProgram


def _seed(request: pytest.FixtureRequest) -> int:
    return request.node.callspec.params["platform"].seed


@pytest.mark.order
def test_values_are_numpys(platform: Platform, request: pytest.FixtureRequest) -> None:
    counts = RandomProgram(platform, _seed(request)).run()
    assert counts.relayouts >= counts.steps / 5
    assert counts.pending_deaths >= 1
    assert counts.reuses >= 1


@pytest.mark.order
def test_values_are_numpys_where_memory_is_short(platform: Platform, request: pytest.FixtureRequest) -> None:
    config.update("max_device_bytes", 14_000)
    RandomProgram(platform, 1000 + _seed(request), with_latches=False).run()


@pytest.mark.order
def test_values_are_numpys_over_poisoned_memory(platform: Platform, request: pytest.FixtureRequest) -> None:
    config.update("poison", True)
    RandomProgram(platform, 2000 + _seed(request), steps=15).run()
