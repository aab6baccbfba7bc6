from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given

from cuplace import errors
from cuplace.placement.mesh import EMPTY_MESH, AxisType, Mesh, make_mesh
from tests.placement.pretend import DEVICES, PretendedDevice, grid, line, meshes

FOREIGN_KIND = PretendedDevice(0, platform="gpu", device_kind="H200")


def test_repr_and_str_are_those_of_jax():
    assert repr(line(8)) == "Mesh(axis_sizes=(8,), axis_names=('x',), axis_types=(Explicit,))"
    assert repr(grid(2, 4)) == "Mesh(axis_sizes=(2, 4), axis_names=('x', 'y'), axis_types=(Explicit, Explicit))"
    assert str(grid(2, 4)) == "Mesh('x': 2, 'y': 4, axis_types=(Explicit, Explicit))"
    assert repr(Mesh(DEVICES[:2], "x")) == "Mesh(axis_sizes=(2,), axis_names=('x',), axis_types=(Auto,))"


def test_make_mesh_is_explicit_and_mesh_is_auto():
    assert make_mesh((8,), "x", devices=DEVICES).axis_types == (AxisType.Explicit,)
    assert Mesh(DEVICES[:8], ("x",)).axis_types == (AxisType.Auto,)
    assert make_mesh((2, 4), ("x", "y"), AxisType.Auto, devices=DEVICES).axis_types == (AxisType.Auto,) * 2


def test_equal_meshes_are_one_object():
    full = line(8)
    assert make_mesh((8,), ("x",), devices=full.devices) is full
    assert make_mesh([np.int64(8)], ["x"], devices=tuple(DEVICES)) is full
    assert Mesh(full.devices, "x", AxisType.Explicit) is full
    assert make_mesh((8,), ("x",), devices=iter(DEVICES)) is full


def test_what_makes_meshes_different():
    full = line(8)
    others = [
        make_mesh((8,), ("x",), devices=DEVICES[7::-1]),
        make_mesh((8,), ("y",), devices=DEVICES),
        Mesh(full.devices, "x"),
        line(8, first=1),
        make_mesh((8, 1), ("x", "y"), devices=DEVICES),
    ]
    assert all(full != other for other in others)
    assert full != full.abstract_mesh
    assert len({full, *others}) == 6


def test_the_first_devices_are_taken_in_the_order_given():
    assert make_mesh((3,), ("x",), devices=DEVICES).flat_ids == (0, 1, 2)
    assert make_mesh((2, 2), ("x", "y"), devices=DEVICES[7::-1]).device_ids.tolist() == [[7, 6], [5, 4]]
    square = np.array(DEVICES[:8], dtype=object).reshape(2, 4)
    assert make_mesh((8,), ("x",), devices=square) is line(8)


def test_slices_of_devices_make_smaller_meshes():
    full = line(8)
    half = make_mesh((4,), ("x",), devices=full.devices[4:])
    assert half.flat_devices == tuple(DEVICES[4:8])
    assert make_mesh((1,), ("x",), devices=full.devices[1:2]).flat_ids == (1,)


def test_attributes():
    mesh = grid(2, 4)
    assert mesh.shape == OrderedDict([("x", 2), ("y", 4)])
    assert (mesh.axis_sizes, mesh.axis_names, mesh.size) == ((2, 4), ("x", "y"), 8)
    assert mesh.devices.shape == (2, 4)
    assert mesh.devices[1, 0] is DEVICES[4]
    assert mesh.device_ids.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert mesh.local_devices == DEVICES[:8]
    assert not mesh.is_multi_process
    assert not mesh.empty
    assert mesh.flat_ids == tuple(range(8))


def test_devices_of_other_processes_are_not_local():
    mesh = Mesh([DEVICES[0], PretendedDevice(1, process_index=1)], "x")
    assert mesh.is_multi_process
    assert mesh.local_devices == [DEVICES[0]]


def test_a_mesh_without_axes_has_one_device():
    mesh = make_mesh((), (), devices=DEVICES)
    assert (mesh.size, mesh.empty, mesh.flat_ids, mesh.devices.shape) == (1, False, (0,), ())
    assert repr(mesh) == "Mesh(axis_sizes=(), axis_names=(), axis_types=())"
    assert Mesh(DEVICES[0], ()) is mesh


def test_the_empty_mesh():
    assert (EMPTY_MESH.empty, EMPTY_MESH.size, EMPTY_MESH.axis_names) == (True, 0, ())
    assert repr(EMPTY_MESH) == "Mesh(axis_sizes=(), axis_names=())"
    assert str(EMPTY_MESH) == "Mesh()"
    assert EMPTY_MESH.abstract_mesh.empty
    assert pickle.loads(pickle.dumps(EMPTY_MESH)) is EMPTY_MESH


def test_a_mesh_does_not_change():
    mesh = line(4)
    with pytest.raises(AttributeError, match="cannot assign to field 'axis_names'"):
        mesh.axis_names = ("y",)
    with pytest.raises(ValueError, match="read-only"):
        mesh.devices[0] = DEVICES[1]
    given = np.array(DEVICES[:4], dtype=object)
    kept = Mesh(given, "x")
    given[0] = DEVICES[9]
    assert kept.flat_ids == (0, 1, 2, 3)


def test_a_mesh_is_no_container():
    assert line(4)
    with pytest.raises(TypeError, match=r"has no len\(\)"):
        len(line(4))
    with pytest.raises(TypeError, match="not subscriptable"):
        line(4)[0]


def test_with_mesh_warns_and_does_nothing_else():
    with pytest.warns(DeprecationWarning, match="set_mesh"), line(4) as mesh:
        assert mesh is line(4)


def test_update_replaces_parts():
    assert line(4).update(axis_names="y") is line(4, "y")
    assert line(4).update(devices=DEVICES[4:8]) is line(4, first=4)
    assert line(4).update(axis_types=AxisType.Auto) is line(4, kind=AxisType.Auto)


@given(meshes())
def test_copies_are_the_mesh_itself(mesh):
    assert copy.copy(mesh) is copy.deepcopy(mesh) is pickle.loads(pickle.dumps(mesh)) is mesh
    assert mesh.update() is mesh
    assert tuple(mesh.devices.ravel()) == mesh.flat_devices


def test_a_mesh_and_its_devices_go_when_unused():
    device = PretendedDevice(77)
    gone = weakref.ref(Mesh([device], "x"))
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("make", "error", "base", "text"),
    [
        (
            lambda: Mesh(np.array(DEVICES[:8]).reshape(2, 4), ("x",)),
            errors.MeshRankError,
            ValueError,
            (
                "Mesh requires the ndim of its first argument (`devices`) to equal the length of its second argument "
                "(`axis_names`), but got devices.ndim == 2 and len(axis_names) == 1."
            ),
        ),
        (lambda: make_mesh((2, 2), ("x",), devices=DEVICES), errors.MeshRankError, ValueError, "devices.ndim == 2"),
        (
            lambda: make_mesh((9,), ("x",), devices=DEVICES[:8]),
            errors.TooFewDevicesError,
            ValueError,
            "Number of devices 8 must be >= the product of mesh_shape (9,)",
        ),
        (lambda: make_mesh((2,), ("x",), devices=[]), errors.TooFewDevicesError, ValueError, "Number of devices 0"),
        (lambda: Mesh([], ("x",)), errors.EmptyMeshError, ValueError, "at least one device"),
        (
            lambda: Mesh([DEVICES[2], DEVICES[0], DEVICES[2]], "x"),
            errors.DuplicateDeviceError,
            ValueError,
            "got CpuDevice(id=2) at the places [0, 2]",
        ),
        (
            lambda: Mesh([DEVICES[1], FOREIGN_KIND], "x"),
            errors.MixedPlatformsError,
            ValueError,
            "devices of 2: CpuDevice(id=1) of cpu, CpuDevice(id=0) of gpu",
        ),
        (lambda: Mesh([0, 1], "x"), errors.ForeignDeviceError, TypeError, "Mesh takes devices, got 1 of type int"),
        (lambda: Mesh("cpu", ()), errors.ForeignDeviceError, TypeError, "got 'cpu' of type str"),
        (lambda: Mesh(np.array(["a", "b"]), "x"), errors.ForeignDeviceError, TypeError, "got 'b' of type str"),
        (lambda: Mesh([DEVICES[0], None], "x"), errors.ForeignDeviceError, TypeError, "got None"),
        (lambda: Mesh(set(DEVICES[:2]), ()), errors.ForeignDeviceError, TypeError, "of type set"),
        (lambda: make_mesh((2,), "x", devices=[1, 2]), errors.ForeignDeviceError, TypeError, "make_mesh takes devices"),
        (lambda: make_mesh((0,), "x", devices=DEVICES), errors.AxisSizeError, ValueError, "1 or more. Got (0,)"),
        (lambda: make_mesh((-1,), "x", devices=DEVICES), errors.AxisSizeError, ValueError, "Got (-1,)"),
        (lambda: make_mesh((2.0,), "x", devices=DEVICES), errors.AxisSizeTypeError, TypeError, "Got 2.0 of type float"),
        (lambda: make_mesh(8, "x", devices=DEVICES), errors.AxisSizeTypeError, TypeError, "Got 8 of type int"),
        (lambda: make_mesh((2, 2), ("x", "x"), devices=DEVICES), errors.AxisNameError, ValueError, "('x', 'x')"),
        (lambda: make_mesh((2,), (3,), devices=DEVICES), errors.AxisNameTypeError, TypeError, "Got: 3 of type int"),
        (
            lambda: make_mesh((2, 2), ("x", "y"), (AxisType.Auto,), devices=DEVICES),
            errors.AxisTypesError,
            ValueError,
            "Got axis_names=('x', 'y') and axis_types=(Auto,)",
        ),
        (
            lambda: make_mesh((2,), ("x",), "auto", devices=DEVICES),
            errors.AxisTypeTypeError,
            TypeError,
            "Got ('auto',) of type (<class 'str'>,)",
        ),
    ],
)
def test_bad_meshes(make, error, base, text):
    with pytest.raises(error) as caught:
        make()
    assert isinstance(caught.value, base)
    assert text in str(caught.value)
