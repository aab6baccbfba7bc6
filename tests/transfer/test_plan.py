from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.errors import IndivisibleError
from cuplace.placement.box import Box
from cuplace.placement.sharding import NamedSharding, SingleDeviceSharding
from cuplace.placement.spec import P
from cuplace.transfer.plan import Move, plan_move
from tests.transfer.machines import TOPOLOGIES
from tests.transfer.shardings import DEVICES, PretendedDevice, mesh, transfers

F32 = np.dtype("float32")


def shards_of(array, sharding):
    return [array[box.slices()].copy() for box in sharding.layout(array.shape).boxes]


@given(transfers(), st.booleans(), st.sampled_from(TOPOLOGIES))
def test_a_plan_gives_every_target_shard_each_element_exactly_once(transfer, may_alias, topology):
    shape, source, target = transfer
    array = np.arange(np.prod(shape, dtype=int), dtype="float32").reshape(shape)
    old = shards_of(array, source)
    new = [np.full_like(shard, -1) for shard in shards_of(array, target)]
    written = [np.zeros(shard.shape, dtype=int) for shard in new]

    plan = plan_move(shape, F32, source, target, may_alias, topology)
    for number, move in enumerate(plan.moves):
        if move.after is not None:
            feeding = plan.moves[move.after]
            assert (feeding.box, feeding.target) == (move.box, move.source)
            assert move.after < number
        read = (old if move.after is None else new)[move.source]
        where = () if move.target_slices is None else move.target_slices
        new[move.target][where] = read if move.source_slices is None else read[move.source_slices]
        written[move.target][where] += 1
    for old_shard, new_shard in plan.aliases:
        assert source.flat_devices[old_shard] is target.flat_devices[new_shard]
        new[new_shard] = old[old_shard]
        written[new_shard] += 1

    for got, times, expected in zip(new, written, shards_of(array, target), strict=True):
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(times, 1)
    assert may_alias or not plan.aliases


@given(transfers())
def test_each_move_is_the_overlap_of_two_shards_and_comes_from_the_nearest_holder(transfer):
    shape, source, target = transfer
    boxes, new_boxes = source.layout(shape).boxes, target.layout(shape).boxes
    plan = plan_move(shape, F32, source, target)
    for move in plan.moves:
        assert boxes[move.source].intersect(new_boxes[move.target]) == move.box
        assert move.nbytes == move.box.size * 4
        assert (move.source_slices is None) == (move.box == boxes[move.source])
        assert (move.target_slices is None) == (move.box == new_boxes[move.target])
        wanted = target.flat_devices[move.target]
        froms = source.flat_devices
        distance = {
            shard: (froms[shard] is not wanted, froms[shard].gpu != wanted.gpu)
            for shard, box in enumerate(boxes)
            if box == boxes[move.source]
        }
        assert distance[move.source] == min(distance.values())
        assert move.path == ("local" if froms[move.source].gpu == wanted.gpu else "peer")
    assert plan.nbytes == sum(move.nbytes for move in plan.moves) == sum(plan.bytes_between.values())
    assert plan.num_moves == len(plan.moves)


@given(transfers())
def test_what_is_in_place_already_is_aliased(transfer):
    shape, source, target = transfer
    plan = plan_move(shape, F32, source, target)
    boxes, new_boxes = source.layout(shape).boxes, target.layout(shape).boxes
    in_place = [
        (s, t)
        for t, device in enumerate(target.flat_devices)
        for s, other in enumerate(source.flat_devices)
        if device is other and boxes[s] == new_boxes[t]
    ]
    assert list(plan.aliases) == in_place
    same = plan_move(shape, F32, source, source)
    assert same.is_identity
    assert same.nbytes == 0


def halves():
    return mesh(DEVICES[:4], (4,), ("x",)), mesh(DEVICES[4:8], (4,), ("x",))


def test_between_meshes_of_the_same_layout_whole_shards_move():
    a, b = halves()
    plan = plan_move((8,), F32, NamedSharding(a, P("x")), NamedSharding(b, P("x")))
    assert plan.moves == tuple(Move(i, i, Box((2 * i,), (2 * i + 2,)), "peer", 8, None, None) for i in range(4))
    assert plan.bytes_between[DEVICES[0], DEVICES[4]] == 8
    assert not plan.is_identity


def test_reversing_the_devices_moves_every_element():
    full = mesh(DEVICES[:8], (8,), ("x",))
    reverse = mesh(DEVICES[7::-1], (8,), ("x",))
    plan = plan_move((8,), F32, NamedSharding(full, P("x")), NamedSharding(reverse, P("x")))
    assert (plan.num_moves, plan.aliases) == (8, ())
    replicated = plan_move((8,), F32, NamedSharding(full, P()), NamedSharding(reverse, P()))
    assert (replicated.num_moves, len(replicated.aliases)) == (0, 8)
    assert not replicated.is_identity


def test_plans_are_cached_and_readable():
    a, b = halves()
    plan = plan_move((8, 4), F32, NamedSharding(a, P("x")), NamedSharding(b, P(None, "x")))
    assert plan is plan_move((8, 4), F32, NamedSharding(a, P("x")), NamedSharding(b, P(None, "x")))
    assert repr(plan) == (
        "TransferPlan(float32[8,4], P('x',) on [0, 1, 2, 3] -> P(None, 'x') on [4, 5, 6, 7]: "
        "16 moves, 128 bytes, 0 aliased)"
    )
    assert "[0:2, 0:1]  8 B  peer" in str(plan)
    with pytest.raises(AttributeError):
        plan.shape = (1,)


def test_a_sharding_that_does_not_fit_raises():
    a, b = halves()
    with pytest.raises(IndivisibleError):
        plan_move((8, 3), F32, NamedSharding(a, P("x")), NamedSharding(b, P(None, "x")))
    with pytest.raises(IndivisibleError):
        plan_move((6,), F32, NamedSharding(a, P("x")), SingleDeviceSharding(DEVICES[0]))


def test_a_large_plan_is_complete_without_being_spelled_out():
    devices = [PretendedDevice(i) for i in range(512)]
    grid = mesh(devices, (512,), ("x",))
    plan = plan_move((512, 512), F32, NamedSharding(grid, P("x")), NamedSharding(grid, P(None, "x")))
    assert plan.num_moves == 512 * 512
    assert plan.nbytes == 512 * 512 * 4
    assert "moves" not in vars(plan)
