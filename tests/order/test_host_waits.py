"""What the host has waited for is done, with all its effects: those on memory that no array knows, too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuplace
from cuplace import map_shards
from tests.array.places import numbers, on, places

pytestmark = pytest.mark.order


def blocks(run: Callable[[], Any]) -> Any:
    return run().block_until_ready()


def blocks_on_a_tree(run: Callable[[], Any]) -> Any:
    return cuplace.block_until_ready({"y": [run()]})["y"][0]


def polls(run: Callable[[], Any]) -> Any:
    y = run()
    while not y.is_ready():
        time.sleep(0)
    return y


def looks_at_a_profile(run: Callable[[], Any]) -> Any:
    with cuplace.profile() as profile:
        y = run()
    profile.spans
    return y


def reads_in_a_profile(run: Callable[[], Any]) -> Any:
    with cuplace.profile():
        y = run()
        np.testing.assert_array_equal(y, numbers(8, 4) + 1)
    return y


@pytest.mark.parametrize("waits", [blocks, blocks_on_a_tree, polls, looks_at_a_profile, reads_in_a_profile])
def test_effects_are_there_when_the_host_has_waited(platform: Any, waits: Callable[[Callable[[], Any]], Any]) -> None:
    x = cuplace.device_put(numbers(8, 4), on(places(platform).a, "x"))
    seen = np.zeros((8, 4), np.float32)

    def kernel(part: Any) -> Any:
        if isinstance(part, np.ndarray):  # a GPU's is called before its work is done
            time.sleep(1e-3)  # no worker is done before the host has asked for it
            seen[part[:, 0].astype(int) // 4] = part
        return part + 1

    y = waits(lambda: map_shards(kernel, x))
    if platform.name != "cuda":
        np.testing.assert_array_equal(seen, numbers(8, 4))
    np.testing.assert_array_equal(y, numbers(8, 4) + 1)
