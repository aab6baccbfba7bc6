from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

from cuplace import errors
from cuplace.placement.box import Box
from cuplace.placement.layout import Layout
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import P
from cuplace.placement.tiling import Tiling
from tests.placement.pretend import Placed, grid, line, placements


def held_by_each_device(placed: Placed) -> np.ndarray:
    """What each device holds, in mesh order, by reshape and transpose of an array of indices alone."""
    mesh, shape = placed.sharding.mesh, placed.shape
    array = np.arange(math.prod(shape)).reshape(shape)
    entries = placed.sharding.spec.padded(len(shape)).entries
    split, cuts, insides = [], {}, []
    for size, entry in zip(shape, entries, strict=True):
        for name in entry or ():
            cuts[name] = len(split)
            split.append(mesh.shape[name])
        insides.append(len(split))
        split.append(size // math.prod(mesh.shape[name] for name in entry or ()))
    axes = [name for name in mesh.axis_names if name in cuts]
    array = array.reshape(split).transpose([cuts[name] for name in axes] + insides)
    array = np.expand_dims(array, [place for place, name in enumerate(mesh.axis_names) if name not in cuts])
    inner = array.shape[len(mesh.axis_names) :]
    return np.broadcast_to(array, (*mesh.axis_sizes, *inner)).reshape(mesh.size, *inner)


@given(placements())
def test_boxes_and_indices_agree_with_brute_force(placed):
    layout = placed.sharding.layout(placed.shape)
    array = np.arange(math.prod(placed.shape)).reshape(placed.shape)
    expected = held_by_each_device(placed)
    assert layout.shard_shape == expected.shape[1:]
    for box, index, held in zip(layout.boxes, layout.indices, expected, strict=True):
        np.testing.assert_array_equal(array[box.slices()], held)
        np.testing.assert_array_equal(array[index], held)


@given(placements())
def test_distinct_boxes_cover_the_array_exactly_once(placed):
    layout = placed.sharding.layout(placed.shape)
    count = np.zeros(placed.shape, dtype=int)
    for box in layout.holders:
        count[box.slices()] += 1
    assert (count == 1).all()


@given(placements())
def test_replicas_hold_equal_boxes(placed):
    layout = placed.sharding.layout(placed.shape)
    for box, holders in layout.holders.items():
        assert {layout.boxes[holder] for holder in holders} == {box}
        assert [layout.replica_ids[holder] for holder in holders] == list(range(len(holders)))
    everyone = sorted(holder for holders in layout.holders.values() for holder in holders)
    assert everyone == list(range(placed.sharding.num_devices))
    firsts = [holders[0] for holders in layout.holders.values()]
    assert firsts == sorted(firsts)


@given(placements())
def test_parts_times_shards_is_the_whole(placed):
    layout = placed.sharding.layout(placed.shape)
    assert layout.shape == placed.shape
    assert tuple(np.multiply(layout.parts, layout.shard_shape)) == placed.shape
    assert all(box.shape == layout.shard_shape for box in layout.boxes)


@pytest.mark.parametrize(
    ("spec", "replica_ids"),
    [
        (P("x"), (0, 1, 2, 3, 0, 1, 2, 3)),
        (P("y"), (0, 0, 0, 0, 1, 1, 1, 1)),
        (P(), (0, 1, 2, 3, 4, 5, 6, 7)),
        (P(("x", "y")), (0,) * 8),
    ],
)
def test_replica_ids_count_in_mesh_order(spec, replica_ids):
    assert NamedSharding(grid(2, 4), spec).layout((8,)).replica_ids == replica_ids


def test_indices_are_spelt_as_in_jax():
    layout = NamedSharding(grid(2, 4), P("y")).layout((4, 8))
    assert repr(layout.indices[1]) == "(slice(1, 2, None), slice(None, None, None))"
    assert NamedSharding(line(1), P("x")).layout((3,)).indices == ((slice(None),),)
    assert NamedSharding(line(2), P()).layout(()).indices == ((), ())


def test_holders_of_a_box():
    layout = NamedSharding(grid(2, 2), P("y")).layout((4,))
    assert dict(layout.holders) == {Box((0,), (2,)): (0, 2), Box((2,), (4,)): (1, 3)}
    with pytest.raises(TypeError):
        layout.holders[Box((0,), (1,))] = (0,)


def test_an_array_without_elements_divides_evenly():
    layout = NamedSharding(grid(2, 4), P("x", "y")).layout((0, 8))
    assert layout.shard_shape == (0, 2)
    assert layout.indices[5] == (slice(0, 0), slice(2, 4))
    assert layout.replica_ids == (0, 0, 0, 0, 1, 1, 1, 1)
    assert layout.holders[Box((0, 2), (0, 4))] == (1, 5)


def test_uneven_sizes_are_refused():
    with pytest.raises(errors.IndivisibleError) as caught:
        Layout((4, 7), Tiling((2, 4), ((0, 0),) * 8), "SHARDING")
    assert str(caught.value).startswith(
        "'SHARDING' implies that array axis 1 is partitioned 4 times, but the dimension size is 7 "
        "(full shape: (4, 7), per-dimension tiling factors: (2, 4) should evenly divide the shape)\n"
    )
    assert "Pad the dimension to 8" in str(caught.value)


def test_a_layout_does_not_change_and_prints_short():
    layout = NamedSharding(line(8), P("x")).layout((8,))
    assert repr(layout) == "Layout(shape=(8,), parts=(8,), devices=8)"
    with pytest.raises(AttributeError):
        layout.shape = ()
