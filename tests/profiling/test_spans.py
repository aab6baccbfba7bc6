from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuplace
import cuplace.numpy as cnp
from cuplace.profiling.spans import COMPUTE, HOST, TRANSFER, Lane, Span, depths_of
from cuplace.runtime.platform import Platform
from tests.array.places import numbers, on, places


@pytest.mark.parametrize("platform", ["sim"], indirect=True)
def test_a_lane_names_where_a_transfer_comes_from_and_goes_to(platform: Platform) -> None:
    with cuplace.profile() as profile:
        x = cuplace.device_put(np.ones((64, 64), np.float32), platform.devices[1])
        y = cuplace.device_put(cnp.sin(x), platform.devices[2])
        y.copy_to_host_async()
        cuplace.block_until_ready(y)
    assert [span.lane for span in profile.spans] == [
        Lane(TRANSFER, "host -> sim:1", 1),
        Lane(COMPUTE, "sim:1", 1),
        Lane(TRANSFER, "sim:1 -> sim:2", 2),
        Lane(TRANSFER, "sim:2 -> host", 2),
    ]


def test_what_the_host_computes_is_no_computing_of_a_device(platform: Platform) -> None:
    here = places(platform)
    x = cuplace.block_until_ready(cuplace.device_put(numbers(8), on(here.full).with_memory_kind("unpinned_host")))
    with cuplace.profile() as profile:
        y = cnp.sin(x)
    assert {span.lane.kind for span in profile.spans} == {HOST}
    assert profile.bubble is None
    assert profile.busy(*profile.lanes) > 0
    text = str(profile)
    for device in platform.devices:
        assert f"\n  {device} host" in text
    np.testing.assert_allclose(np.asarray(y), np.sin(numbers(8)), rtol=1e-6)


moments = st.integers(0, 20)
pieces = st.tuples(st.integers(0, 1), moments, moments).map(lambda p: (p[0], min(p[1:]), max(p[1:])))


@given(st.lists(pieces, max_size=8))
def test_no_piece_is_drawn_over_another_one_and_none_deeper_than_needed(many: list[tuple[int, int, int]]) -> None:
    record: Any = None
    spans = [Span(Lane(COMPUTE, str(lane), lane), 0, start, end, record) for lane, start, end in many]
    depths = depths_of(spans)
    for (one, depth), (other, its) in combinations(zip(spans, depths, strict=True), 2):
        apart = one.end <= other.start or other.end <= one.start
        assert apart or one.lane != other.lane or depth != its
    for span, depth in zip(spans, depths, strict=True):
        running = [s for s in spans if s.lane == span.lane and s.start <= span.start <= s.end]
        assert depth < len(running)
