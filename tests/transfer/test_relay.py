from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import P
from cuplace.runtime.presets import PRESETS
from cuplace.runtime.topology import find_topology
from cuplace.transfer import relay
from cuplace.transfer.plan import plan_move
from tests.transfer.machines import NODE
from tests.transfer.shardings import PretendedDevice, mesh

F32 = np.dtype("float32")
LARGE = (1 << 14, 1 << 14)  # 1 GiB
GPUS = find_topology(PRESETS["hgx-h200"]).devices
BOTH = find_topology(PRESETS["two-nodes"]).devices


def on(devices, *spec):
    return NamedSharding(mesh(devices, (len(devices),), ("x",)), P(*spec))


def bytes_into_node(plan, node):
    """Bytes that cross to a node, and how much of the array they are."""
    topology, tos = plan.topology, plan.target.flat_devices
    crossing = [
        move for move in plan.moves
        if topology.node(plan.device_of(move).gpu) != node == topology.node(tos[move.target].gpu)
    ]  # fmt: skip
    return sum(move.nbytes for move in crossing), len({move.box for move in crossing}) == len(crossing)


@pytest.mark.parametrize("source", [on(BOTH[:8], "x"), on(BOTH[:8]), on(BOTH[:1]), on(BOTH[2:6], None, "x")])
def test_each_byte_crosses_to_a_node_once(source):
    for devices in (BOTH[8:], BOTH):
        plan = plan_move(LARGE, F32, source, on(devices))
        assert bytes_into_node(plan, 1) == (4 * LARGE[0] * LARGE[1], True)


def test_between_partitions_each_byte_crosses_to_a_gpu_once():
    devices = [PretendedDevice(i) for i in range(8)]
    plan = plan_move((64, 64), F32, on(devices[:2], "x"), on(devices), topology=find_topology(NODE))
    into = defaultdict(int)
    for move in plan.moves:
        if plan.device_of(move).gpu != devices[move.target].gpu:
            into[devices[move.target].gpu] += move.nbytes
    assert into == dict.fromkeys((1, 2, 3), 64 * 64 * 4)


def test_small_arrays_and_balanced_plans_are_copied_straight():
    small = plan_move((8, 8), F32, on(GPUS[:1]), on(GPUS))
    balanced = plan_move(LARGE, F32, on(GPUS, "x"), on(GPUS))
    for plan in (small, balanced):
        assert all(move.after is None for move in plan.moves)
    assert any(move.after is not None for move in plan_move(LARGE, F32, on(GPUS[:1]), on(GPUS)).moves)


def test_large_plans_relay_by_rule(monkeypatch):
    monkeypatch.setattr(relay, "MOST_CHUNKED", 1)
    plan_move.cache_clear()
    plan = plan_move((16, 16), F32, on(BOTH[:8], "x"), on(BOTH))
    assert bytes_into_node(plan, 1) == (16 * 16 * 4, True)
    entries = {move.target for move in plan.moves if move.path == "network"}
    assert len(entries) == 8  # the shards take turns
    plan_move.cache_clear()


def test_a_plan_of_many_moves_is_bounded():
    plan = plan_move(LARGE, F32, on(BOTH, "x"), on(BOTH))
    assert plan.num_moves <= relay.MOST_CHUNKED + len(BOTH)
