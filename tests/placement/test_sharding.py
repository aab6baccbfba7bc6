from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given

from cuplace import errors
from cuplace.placement.mesh import EMPTY_MESH, AbstractMesh, AxisType, Mesh, make_mesh
from cuplace.placement.sharding import _KEPT_LAYOUTS, NamedSharding, Sharding, SingleDeviceSharding
from cuplace.placement.spec import P
from tests.placement.pretend import DEVICES, PretendedDevice, grid, line, placements

REVERSED = make_mesh((8,), ("x",), devices=DEVICES[7::-1])
ABSTRACT = line(8).abstract_mesh


def named(mesh: Mesh | AbstractMesh, *spec: object, kind: str | None = None) -> NamedSharding:
    return NamedSharding(mesh, P(*spec), kind)


def test_reprs_are_those_of_jax():
    assert (
        repr(named(line(8), "x"))
        == str(named(line(8), "x"))
        == ("NamedSharding(mesh=Mesh('x': 8, axis_types=(Explicit,)), spec=P('x',), memory_kind=device)")
    )
    assert repr(named(ABSTRACT, "x")) == (
        "NamedSharding(mesh=AbstractMesh('x': 8, axis_types=(Explicit,), device_kind=cpu, num_cores=None, "
        "platform=cpu), spec=P('x',))"
    )
    assert repr(SingleDeviceSharding(DEVICES[0])) == (
        "SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device)"
    )


def test_equal_shardings_are_one_object():
    assert named(line(8), "x") is named(line(8), ("x",), kind="device")
    assert SingleDeviceSharding(DEVICES[1]) is SingleDeviceSharding(DEVICES[1], memory_kind="device")
    others = {
        named(line(8), "x"),
        named(line(8), "x", None),
        named(line(8)),
        named(REVERSED, "x"),
        named(line(8, kind=AxisType.Auto), "x"),
        named(line(8), "x", kind="pinned_host"),
        named(line(1)),
        SingleDeviceSharding(DEVICES[0]),
        SingleDeviceSharding(DEVICES[1]),
        SingleDeviceSharding(DEVICES[0], memory_kind="pinned_host"),
    }
    assert len(others) == 10


def test_what_a_named_sharding_tells():
    sharding = named(grid(2, 4), "y")
    assert (sharding.mesh, sharding.spec, sharding.memory_kind) == (grid(2, 4), P("y"), "device")
    assert sharding.mesh_or_none is sharding.mesh
    assert sharding.num_devices == 8
    assert sharding.flat_devices == tuple(DEVICES[:8])
    assert sharding.flat_ids == tuple(range(8))
    assert sharding.device_set == sharding.addressable_devices == set(DEVICES[:8])
    assert sharding.is_fully_addressable
    assert sharding.has_addressable_devices
    assert sharding.replicated_axes == {"x"}
    assert not sharding.is_fully_replicated
    assert named(grid(2, 4), None).is_fully_replicated
    assert named(line(1), "x").is_fully_replicated


def test_what_a_single_device_sharding_tells():
    sharding = SingleDeviceSharding(DEVICES[3])
    assert (sharding.num_devices, sharding.memory_kind, sharding.mesh_or_none) == (1, "device", None)
    assert (sharding.flat_devices, sharding.flat_ids) == ((DEVICES[3],), (3,))
    assert sharding.is_fully_replicated
    assert sharding.shard_shape((3, 4)) == (3, 4)
    assert sharding.devices_indices_map((3, 4)) == {DEVICES[3]: (slice(None), slice(None))}
    assert not hasattr(sharding, "mesh")
    assert not hasattr(sharding, "spec")


def test_devices_of_other_processes():
    far = PretendedDevice(1, process_index=1)
    sharding = named(Mesh([DEVICES[0], far], "x"), "x")
    assert sharding.addressable_devices == {DEVICES[0]}
    assert sharding.addressable_devices_indices_map((2,)) == {DEVICES[0]: (slice(0, 1),)}
    assert sharding.has_addressable_devices
    assert not sharding.is_fully_addressable
    assert not SingleDeviceSharding(far).has_addressable_devices


def test_several_axes_on_a_dimension_cut_row_major():
    indices = named(grid(2, 4), ("y", "x")).devices_indices_map((8,))
    assert [index[0].start for index in indices.values()] == [0, 2, 4, 6, 1, 3, 5, 7]
    assert list(indices) == DEVICES[:8]


@given(placements())
def test_maps_follow_the_layout(placed):
    sharding, shape = placed
    layout = sharding.layout(shape)
    assert sharding.shard_shape(list(shape)) == layout.shard_shape
    assert sharding.devices_indices_map(shape) == dict(zip(sharding.flat_devices, layout.indices, strict=True))
    assert sharding.addressable_devices_indices_map(np.array(shape, dtype=int)) == sharding.devices_indices_map(shape)
    assert sharding.is_fully_replicated == all(box == layout.boxes[0] for box in layout.boxes) or 0 in shape


@given(placements())
def test_copies_are_the_sharding_itself(placed):
    for sharding in (placed.sharding, SingleDeviceSharding(placed.sharding.flat_devices[0])):
        copies = (copy.copy(sharding), copy.deepcopy(sharding), pickle.loads(pickle.dumps(sharding)))
        assert all(other is sharding for other in copies)


@given(placements(), placements())
def test_equivalent_means_the_same_boxes_on_the_same_devices(one, other):
    rank = len(one.shape)
    rebased = NamedSharding(one.sharding.mesh, P(*one.sharding.mesh.axis_names[:rank]))
    for sharding in (rebased, other.sharding):
        if len(sharding.spec) > rank:
            continue
        shape = tuple(np.multiply(one.sharding.tiling(rank).parts, sharding.tiling(rank).parts).tolist())
        same = (
            one.sharding.flat_devices == sharding.flat_devices
            and one.sharding.layout(shape).boxes == sharding.layout(shape).boxes
        )
        assert one.sharding.is_equivalent_to(sharding, rank) == same
        assert sharding.is_equivalent_to(one.sharding, rank) == same


@pytest.mark.parametrize(
    ("one", "other", "ndim", "equivalent"),
    [
        (named(line(8), "x"), named(line(8), "x", None), 2, True),
        (named(line(8), "x"), named(line(8), "x", None), 1, True),
        (named(line(8), "x"), named(line(8, kind=AxisType.Auto), "x"), 1, True),
        (named(line(8), "x"), named(line(8, "y"), "y"), 1, True),
        (named(line(8), "x"), named(grid(2, 4), ("x", "y")), 1, True),
        (named(line(8), "x"), named(grid(2, 4), ("y", "x")), 1, False),
        (named(line(1)), SingleDeviceSharding(DEVICES[0]), 0, True),
        (named(line(1)), SingleDeviceSharding(DEVICES[1]), 0, False),
        (named(line(8)), named(REVERSED), 1, False),
        (named(line(8), "x"), named(line(8), "x", kind="pinned_host"), 1, False),
        (named(line(8), "x"), named(ABSTRACT, "x"), 1, False),
        (named(ABSTRACT, "x"), named(ABSTRACT, "x", None), 2, True),
    ],
)
def test_equivalence_by_hand(one, other, ndim, equivalent):
    assert one.is_equivalent_to(other, ndim) is other.is_equivalent_to(one, ndim) is equivalent


def test_layouts_are_kept_but_not_all():
    sharding = named(line(2), "x")
    assert sharding.layout((2, 2)) is sharding.layout((2, 2))
    for size in range(2 * _KEPT_LAYOUTS):
        sharding.layout((2 * size,))
    assert len(sharding._layouts) == _KEPT_LAYOUTS
    assert sharding.layout((2, 2)).shard_shape == (1, 2)


def test_threads_get_one_layout():
    sharding = named(grid(2, 4), "x", "y")
    meet = threading.Barrier(8)
    got = []

    def ask() -> None:
        meet.wait()
        got.extend([sharding.layout((8 * size, 8)) for size in range(50)])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, got))) == 50


def test_with_memory_kind():
    sharding = named(line(8), "x")
    assert sharding.with_memory_kind("pinned_host").memory_kind == "pinned_host"
    assert sharding.with_memory_kind("pinned_host").with_memory_kind(None) is sharding
    single = SingleDeviceSharding(DEVICES[0])
    assert single.with_memory_kind("pinned_host").with_memory_kind("device") is single


def test_update_replaces_parts():
    sharding = named(line(8), "x")
    assert sharding.update(spec=P()) is named(line(8))
    assert sharding.update(spec="x") is sharding.update(spec=("x",)) is sharding
    assert sharding.update(mesh=grid(2, 4)) is named(grid(2, 4), "x")
    assert sharding.update(memory_kind="pinned_host") is sharding.with_memory_kind("pinned_host")


def test_an_abstract_mesh_gives_layouts_but_no_devices():
    sharding = named(ABSTRACT, "x")
    assert sharding.memory_kind is None
    assert sharding.num_devices == 8
    assert sharding.shard_shape((16,)) == (2,)
    assert sharding.layout((16,)).boxes == named(line(8), "x").layout((16,)).boxes
    assert named(ABSTRACT, "x", kind="pinned_host").memory_kind == "pinned_host"
    for ask in (
        lambda: sharding.device_set,
        lambda: sharding.flat_ids,
        lambda: sharding.is_fully_addressable,
        lambda: sharding.devices_indices_map((8,)),
    ):
        with pytest.raises(
            errors.AbstractMeshError, match=r"device_set is not implemented for `jax\.sharding\.AbstractMesh`"
        ) as caught:
            ask()
        assert isinstance(caught.value, ValueError)


def test_a_sharding_does_not_change():
    with pytest.raises(AttributeError, match="cannot assign to field 'spec'"):
        named(line(8), "x").spec = P()
    with pytest.raises(AttributeError):
        SingleDeviceSharding(DEVICES[0]).memory_kind = "other"


def test_the_base_cannot_be_made():
    with pytest.raises(TypeError):
        Sharding()


def test_a_mesh_with_its_shardings_goes_when_unused():
    mesh = Mesh([PretendedDevice(78)], "x")
    gone = [weakref.ref(mesh), weakref.ref(named(mesh, "x")), weakref.ref(SingleDeviceSharding(mesh.flat_devices[0]))]
    del mesh
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3


@pytest.mark.parametrize(
    ("make", "error", "base", "text"),
    [
        (
            lambda: named(line(8), "y"),
            errors.UnknownAxisError,
            ValueError,
            "Resource axis: y of P('y',) is not found in mesh: ('x',).",
        ),
        (
            lambda: named(line(8), "x", "x"),
            errors.DuplicateSpecError,
            ValueError,
            (
                "A single NamedSharding spec specification can map every mesh axis to at most one positional "
                "dimension, but P('x', 'x') has duplicate entries for `x`"
            ),
        ),
        (lambda: named(line(8), ("x", "x")), errors.DuplicateSpecError, ValueError, "duplicate entries for `x`"),
        (
            lambda: named(line(8), P.UNCONSTRAINED),
            errors.UnconstrainedError,
            ValueError,
            (
                "P(UNCONSTRAINED,) cannot contain `P.UNCONSTRAINED` when no mesh axis_types are `Auto`. "
                "Got mesh axis_types: (Explicit,)"
            ),
        ),
        (
            lambda: named(line(8), "x", kind="bogus"),
            errors.MemoryKindError,
            ValueError,
            (
                "Could not find memory addressable by device cpu. Device cpu can address the following memory kinds: "
                "device, pinned_host. Got memory kind: bogus"
            ),
        ),
        (lambda: named(line(8), "x", kind=3), errors.MemoryKindError, ValueError, "Got memory kind: 3"),
        (lambda: named(line(8), "x", kind=[]), errors.MemoryKindError, ValueError, "Got memory kind: []"),
        (
            lambda: SingleDeviceSharding(DEVICES[0], memory_kind="bogus"),
            errors.MemoryKindError,
            ValueError,
            "Got memory kind: bogus",
        ),
        (
            lambda: named(line(8), "x").with_memory_kind("bogus"),
            errors.MemoryKindError,
            ValueError,
            "Got memory kind: bogus",
        ),
        (lambda: NamedSharding(line(8), "x"), errors.NotASpecError, TypeError, "got 'x' of type str.\nWrite P('x')"),
        (lambda: NamedSharding(line(8), ["x"]), errors.NotASpecError, TypeError, "got ['x'] of type list"),
        (lambda: NamedSharding(line(8), None), errors.NotASpecError, TypeError, "got None"),
        (lambda: NamedSharding(DEVICES[0], P()), errors.NotAMeshError, TypeError, "got CpuDevice(id=0) of type"),
        (lambda: NamedSharding(None, P()), errors.NotAMeshError, TypeError, "got None"),
        (lambda: NamedSharding(EMPTY_MESH, P()), errors.EmptyMeshError, ValueError, "No mesh is set"),
        (
            lambda: NamedSharding(line(8), P(unreduced={"x"})),
            errors.UnreducedError,
            NotImplementedError,
            "Got spec P(unreduced={'x'}, unreduced_kind=sum)",
        ),
        (lambda: SingleDeviceSharding(0), errors.ForeignDeviceError, TypeError, "got 0 of type int"),
        (lambda: SingleDeviceSharding([DEVICES[0]]), errors.ForeignDeviceError, TypeError, "of type list"),
        (lambda: named(line(8)).is_equivalent_to("x", 1), errors.NotAShardingError, TypeError, "got 'x'"),
    ],
)
def test_bad_shardings(make, error, base, text):
    with pytest.raises(error) as caught:
        make()
    assert isinstance(caught.value, base)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("ask", "error", "base", "text"),
    [
        (
            lambda: named(grid(2, 4), "x", "y").shard_shape((3, 8)),
            errors.IndivisibleError,
            ValueError,
            (
                "NamedSharding(mesh=Mesh('x': 2, 'y': 4, axis_types=(Explicit, Explicit)), spec=P('x', 'y'), "
                "memory_kind=device) implies that array axis 0 is partitioned 2 times, but the dimension size is 3 "
                "(full shape: (3, 8), per-dimension tiling factors: (2, 4) should evenly divide the shape)"
            ),
        ),
        (
            lambda: named(line(8), "x", None).layout((8,)),
            errors.RankError,
            ValueError,
            (
                "Length of sharding.spec (2) must be equal to aval's ndim (1). Got sharding.spec P('x', None), "
                "aval.ndim 1 and sharding NamedSharding("
            ),
        ),
        (lambda: named(line(8), "x").shard_shape(()), errors.RankError, ValueError, "aval's ndim (0)"),
        (lambda: named(line(8), "x").check_compatible_aval(()), errors.RankError, ValueError, "aval's ndim (0)"),
        (
            lambda: named(line(8), "x").is_equivalent_to(named(REVERSED, "x"), 0),
            errors.RankError,
            ValueError,
            "ndim (0)",
        ),
        (lambda: named(line(8), "x").shard_shape(8), errors.ShapeTypeError, TypeError, "got 8 of type int"),
        (lambda: named(line(8), "x").shard_shape((8.0,)), errors.ShapeTypeError, TypeError, "got (8.0,)"),
        (lambda: named(line(8), "x").shard_shape((-8,)), errors.ShapeError, ValueError, "0 or more, got (-8,)"),
    ],
)
def test_bad_shapes(ask, error, base, text):
    with pytest.raises(error) as caught:
        ask()
    assert isinstance(caught.value, base)
    assert text in str(caught.value)


def test_check_compatible_aval_divides_nothing():
    named(line(8), "x").check_compatible_aval((3,))
    SingleDeviceSharding(DEVICES[0]).check_compatible_aval(())
