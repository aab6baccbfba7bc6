"""Random programs on real GPUs: NumPy's values whatever runs beside what."""

from __future__ import annotations

import pytest

from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform
from tests import hardware
from tests.order.random_program import RandomProgram

pytestmark = pytest.mark.gpu

PROGRAMS = 100 if hardware.chosen() else 1


def test_random_programs_give_numpys_values(platform: Platform) -> None:
    for seed in range(PROGRAMS):
        RandomProgram(platform, 7000 + seed).run()


def test_random_programs_give_numpys_values_where_memory_is_short(platform: Platform) -> None:
    config.update("max_device_bytes", 14_000)
    for seed in range(PROGRAMS):
        RandomProgram(platform, 8000 + seed, with_latches=False).run()


def test_random_programs_give_numpys_values_over_poisoned_memory(platform: Platform) -> None:
    config.update("poison", True)
    for seed in range(max(PROGRAMS // 2, 1)):
        RandomProgram(platform, 9000 + seed, steps=15).run()
