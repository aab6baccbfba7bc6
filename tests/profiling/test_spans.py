from __future__ import annotations

import numpy as np
import pytest

import cuplace
import cuplace.numpy as cnp
from cuplace.profiling.spans import COMPUTE, TRANSFER, Lane
from cuplace.runtime.platform import Platform


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
