from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import P
from cuplace.runtime.presets import PRESETS
from cuplace.runtime.topology import find_topology
from cuplace.transfer import choice
from cuplace.transfer.choice import rank_in_group
from cuplace.transfer.plan import plan_move
from tests.transfer.shardings import mesh

F32 = np.dtype("float32")
GPUS = find_topology(PRESETS["hgx-h200"]).devices
BOTH = find_topology(PRESETS["two-nodes"]).devices


def on(devices, *spec):
    return NamedSharding(mesh(devices, (len(devices),), ("x",)), P(*spec))


@pytest.mark.parametrize("weighed", [0, 2048])
def test_replicas_share_the_work(monkeypatch, weighed):
    monkeypatch.setattr(choice, "MOST_WEIGHED", weighed)
    plan_move.cache_clear()
    plan = plan_move((8, 8), F32, on(GPUS[:4]), on(GPUS[4:], "x"))
    assert Counter(move.source for move in plan.moves) == dict.fromkeys(range(4), 1)
    plan_move.cache_clear()


def test_a_holder_that_has_to_send_other_pieces_sends_less_of_what_others_hold_too():
    source = NamedSharding(mesh(GPUS[:4], (2, 2), ("x", "y")), P("x"))
    target = NamedSharding(mesh([GPUS[0], *GPUS[4:7]], (4,), ("z",)), P(None, "z"))
    plan = plan_move((8, 8), F32, source, target)
    load = Counter(move.source for move in plan.moves if move.path == "peer" for _ in range(move.nbytes))
    assert max(load.values()) == 2 * min(load[shard] for shard in range(4))  # seven pieces for four holders


def test_a_holder_in_the_same_node_goes_before_those_in_others():
    plan = plan_move((8,), F32, on([BOTH[3], BOTH[12]]), on(BOTH[8:12], "x"))
    assert {(move.source, move.path) for move in plan.moves} == {(1, "peer")}


@pytest.mark.parametrize("count", [3, 4, 6, 8])
def test_no_two_sources_go_to_one_target_at_a_time(count):
    plan = plan_move((24, 24), F32, on(GPUS[:count], "x"), on(GPUS[:count], None, "x"))
    far = [move for move in plan.moves if move.source != move.target]
    assert plan.moves[: len(far)] == tuple(far)
    for first in range(0, len(far), count):
        together = far[first : first + count]
        assert len({move.source for move in together}) == len({move.target for move in together}) == count


def test_copies_over_the_network_set_out_first():
    plan = plan_move((16, 16), F32, on(BOTH, "x"), on(BOTH, None, "x"))
    paths = [move.path for move in plan.moves]
    assert paths == sorted(paths, key=["network", "peer", "local"].index)


def test_ranks_count_equals_before():
    groups = np.array([4, 7, 4, 4, 7])
    assert rank_in_group(groups).tolist() == [0, 0, 1, 2, 1]
    assert rank_in_group(groups[:0]).tolist() == []
