"""Right programs have no races: a thousand short random ones are checked, twenty thousand with --deep."""

from __future__ import annotations

import pytest

from cuplace.runtime.config import config
from cuplace.runtime.platform import activated, open_platform
from tests.order.random_program import RandomProgram as ArrayProgram
from tests.runtime.random_program import RandomProgram as BufferProgram

GROUPS, DEEP_GROUPS = 10, 200
OF_BUFFERS, OF_ARRAYS = 95, 5
"""Programs in a group; those of arrays share a platform, since each platform traces and places anew."""


@pytest.mark.parametrize(
    "group", [pytest.param(i, marks=[pytest.mark.deep] if i >= GROUPS else []) for i in range(DEEP_GROUPS)]
)
def test_short_programs_have_no_race(group: int, restored_config: None) -> None:
    config.update("check_order", True)
    for i in range(OF_BUFFERS):
        seed = 10_000 + OF_BUFFERS * group + i
        BufferProgram(open_platform("sim", 3, seed=seed), seed, steps=12).run()
    shared = open_platform("sim", 8, seed=group)
    with activated(shared):
        for i in range(OF_ARRAYS):
            ArrayProgram(shared, 10_000 + OF_ARRAYS * group + i, steps=6).run()
