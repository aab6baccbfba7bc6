from __future__ import annotations

import copy
import pickle

import pytest

from cuplace import errors
from cuplace.placement.abstract_mesh import EMPTY_ABSTRACT_MESH, AbstractDevice
from cuplace.placement.mesh import AbstractMesh, AxisType, Mesh
from tests.placement.pretend import DEVICES, PretendedDevice, line


def test_axes_are_explicit_unless_said_otherwise():
    assert repr(AbstractMesh((8,), ("x",))) == "AbstractMesh('x': 8, axis_types=(Explicit,))"
    mixed = AbstractMesh((2, 4), ("x", "y"), (AxisType.Auto, AxisType.Explicit))
    assert str(mixed) == "AbstractMesh('x': 2, 'y': 4, axis_types=(Auto, Explicit))"
    assert AbstractMesh((8,), "x") is AbstractMesh([8], ["x"])


def test_the_one_of_a_mesh_knows_the_kind_of_device():
    abstract = line(8).abstract_mesh
    assert repr(abstract) == (
        "AbstractMesh('x': 8, axis_types=(Explicit,), device_kind=cpu, num_cores=None, platform=cpu)"
    )
    assert abstract.abstract_device == AbstractDevice("cpu", None, "cpu")
    assert abstract != AbstractMesh((8,), ("x",))
    assert abstract != line(8)


def test_meshes_of_equal_axes_share_it():
    assert line(4).abstract_mesh is line(4, first=4).abstract_mesh
    assert line(4).abstract_mesh is Mesh(DEVICES[3::-1], "x", AxisType.Explicit).abstract_mesh
    assert line(4).abstract_mesh is not line(4, "y").abstract_mesh
    assert line(4).abstract_mesh is not line(4, kind=AxisType.Auto).abstract_mesh


def test_another_kind_of_device_makes_another_one():
    others = [PretendedDevice(number, device_kind="fast") for number in range(4)]
    assert Mesh(others, "x", AxisType.Explicit).abstract_mesh is not line(4).abstract_mesh
    mixed = Mesh([*others[:2], *DEVICES[2:4]], "x", AxisType.Explicit)
    assert mixed.abstract_mesh is AbstractMesh((4,), ("x",))


def test_empty():
    assert EMPTY_ABSTRACT_MESH is AbstractMesh((), ())
    assert repr(EMPTY_ABSTRACT_MESH) == "AbstractMesh((), axis_types=())"
    assert (EMPTY_ABSTRACT_MESH.empty, EMPTY_ABSTRACT_MESH.size) == (True, 0)
    assert not AbstractMesh((8,), ("x",)).empty
    assert Mesh(DEVICES[0], ()).abstract_mesh.size == 1


def test_it_is_its_own_abstract_mesh():
    mesh = line(4).abstract_mesh
    assert mesh.abstract_mesh is mesh
    assert mesh.update() is mesh
    assert mesh.update(axis_names="y", axis_sizes=(4,)) is line(4, "y").abstract_mesh


@pytest.mark.parametrize("name", ["devices", "device_ids", "local_devices"])
def test_it_has_no_devices(name):
    with pytest.raises(errors.AbstractMeshError, match=f"AbstractMesh does not implement {name}") as caught:
        getattr(line(4).abstract_mesh, name)
    assert isinstance(caught.value, ValueError)


def test_sizes_and_names_must_be_as_many():
    with pytest.raises(errors.MeshRankError, match="as many axis sizes as axis names") as caught:
        AbstractMesh((8, 8), ("x",))
    assert isinstance(caught.value, ValueError)


def test_copies_are_the_mesh_itself():
    mesh = line(4).abstract_mesh
    assert copy.copy(mesh) is copy.deepcopy(mesh) is pickle.loads(pickle.dumps(mesh)) is mesh
    with pytest.raises(AttributeError):
        mesh.axis_names = ("q",)
