"""Mesh: devices in a grid with named axes, the unit of placement."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from cuplace.errors import DuplicateDeviceError, EmptyMeshError, MeshRankError, MixedPlatformsError, TooFewDevicesError
from cuplace.placement.abstract_mesh import EMPTY_ABSTRACT_MESH, AbstractDevice, AbstractMesh, intern_abstract_mesh
from cuplace.placement.axes import AxisType, NamedAxes, checked_names, checked_sizes, checked_types
from cuplace.placement.device import DeviceLike, check_device
from cuplace.placement.value import Interner

__all__ = ["EMPTY_MESH", "AbstractMesh", "AxisType", "Mesh", "make_mesh"]


@final
class Mesh(NamedAxes):
    """A grid of devices with named axes.

    `devices` is an array (or nested list) of devices with one dimension for each name in `axis_names`. Axes are
    Auto where no types are given (`make_mesh` makes them Explicit). Equal meshes are one object: the same devices in
    the same order, the same names, the same types. Two orders of the same devices are two meshes.

    >>> import cuplace
    >>> Mesh(cuplace.devices()[:1], 'x')
    Mesh(axis_sizes=(1,), axis_names=('x',), axis_types=(Auto,))

    Attributes:
        devices: the devices, a read-only object array in the shape of the mesh.
        flat_devices: the devices, a tuple, row-major.
        flat_ids: their ids, a tuple, row-major.
        abstract_mesh: the mesh without its devices, as it stands in the types of arrays.

    Raises:
        MeshRankError: a ValueError, where the dimensions of `devices` are not as many as the names.
        EmptyMeshError: a ValueError, for no devices.
        DuplicateDeviceError, MixedPlatformsError: ValueErrors, for a device that appears twice, and for devices of
            different platforms.
        ForeignDeviceError: a TypeError, for something that is not a device.
        AxisNameError, AxisNameTypeError, AxisTypesError, AxisTypeTypeError: for bad names and types.
    """

    __slots__ = ("__weakref__", "_shardings", "abstract_mesh", "devices", "flat_devices", "flat_ids")

    devices: NDArray[np.object_]
    flat_devices: tuple[Any, ...]
    flat_ids: tuple[int, ...]
    abstract_mesh: AbstractMesh
    _shardings: dict[Any, Any]

    def __new__(
        cls,
        devices: Any,
        axis_names: str | Sequence[str],
        axis_types: AxisType | Sequence[AxisType] | None = None,
    ) -> Mesh:
        names = checked_names(axis_names)
        array = _device_array(devices, "Mesh")
        if array.ndim != len(names):
            raise MeshRankError(
                "Mesh requires the ndim of its first argument (`devices`) to equal the length of its second "
                f"argument (`axis_names`), but got devices.ndim == {array.ndim} and len(axis_names) == {len(names)}.\n"
                "Each dimension of the grid of devices has one name."
            )
        types = checked_types(axis_types, names, AxisType.Auto)
        return _interned(tuple(array.ravel().tolist()), array.shape, names, types)

    @property
    def empty(self) -> bool:
        """Whether this is the mesh without devices, which stands for having no mesh."""
        return not self.flat_devices

    @property
    def device_ids(self) -> NDArray[np.int64]:
        """The ids of the devices, in the shape of the mesh."""
        return np.array(self.flat_ids, dtype=np.int64).reshape(self.devices.shape)

    @property
    def local_devices(self) -> list[Any]:
        """The devices of this process, row-major."""
        return [device for device in self.flat_devices if device.local_hardware_id is not None]

    @property
    def is_multi_process(self) -> bool:
        """Whether the devices belong to more than one process."""
        return len({device.process_index for device in self.flat_devices}) > 1

    def update(
        self,
        devices: Any = None,
        axis_names: str | Sequence[str] | None = None,
        axis_types: AxisType | Sequence[AxisType] | None = None,
    ) -> Mesh:
        """The mesh with devices, names or types replaced. Raises as the constructor does."""
        return Mesh(
            self.devices if devices is None else devices,
            self.axis_names if axis_names is None else axis_names,
            self.axis_types if axis_types is None else axis_types,
        )

    def __enter__(self) -> Mesh:
        """Does nothing but warn, as in JAX, where it has no effect on where arrays are placed either."""
        warnings.warn(
            "`with mesh:` context manager has been deprecated. Please use `with jax.set_mesh(mesh):` instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        return

    def __repr__(self) -> str:
        types = "" if self.empty else f", axis_types={self.axis_types}"
        return f"Mesh(axis_sizes={self.axis_sizes}, axis_names={self.axis_names}{types})"

    def __str__(self) -> str:
        return "Mesh()" if self.empty else f"Mesh({self._labels() or '()'}, axis_types={self.axis_types})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Devices pickle by platform and id, and say so themselves where they do not exist.
        if self.empty:
            return _empty_mesh, ()
        return _interned, (self.flat_devices, self.axis_sizes, self.axis_names, self.axis_types)


def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: str | Sequence[str],
    axis_types: AxisType | Sequence[AxisType] | None = None,
    *,
    devices: Any,
) -> Mesh:
    """A mesh of the given axis sizes over the first devices of a list or array, row-major, in the order given.

    Axes are Explicit where no types are given. Devices beyond the product of the sizes are left out. An array of
    devices of several dimensions is read row-major (JAX counts its first dimension only).

    >>> import cuplace
    >>> make_mesh((1, 1), ('x', 'y'), devices=cuplace.devices())
    Mesh(axis_sizes=(1, 1), axis_names=('x', 'y'), axis_types=(Explicit, Explicit))

    Raises:
        TooFewDevicesError: a ValueError, where the mesh needs more devices.
        AxisSizeError, AxisSizeTypeError: for sizes that are not positive integers.
        and what Mesh raises.
    """
    sizes = checked_sizes(axis_shapes)
    given = _device_array(devices, "make_mesh").ravel()
    needed = math.prod(sizes)
    if given.size < needed:
        raise TooFewDevicesError(
            f"Number of devices {given.size} must be >= the product of mesh_shape {sizes}\n"
            f"The mesh needs {needed}. Make the mesh smaller, or have more devices: "
            "cuplace.config.update('num_devices', n) before the first use."
        )
    types = AxisType.Explicit if axis_types is None else axis_types
    names = checked_names(axis_names)
    return Mesh(given[:needed].reshape(sizes), names, (types,) * len(names) if isinstance(types, AxisType) else types)


_meshes: Interner[Mesh] = Interner()


def _interned(
    flat: tuple[DeviceLike, ...], sizes: tuple[int, ...], names: tuple[str, ...], types: tuple[AxisType, ...]
) -> Mesh:
    return _meshes.get((flat, sizes, names, types), lambda: _make(flat, sizes, names, types))


def _make(
    flat: tuple[DeviceLike, ...], sizes: tuple[int, ...], names: tuple[str, ...], types: tuple[AxisType, ...]
) -> Mesh:
    _check_devices(flat)
    kinds = {(device.device_kind, device.platform) for device in flat}
    # Devices of several kinds have no kind in common; the abstract mesh then equals a hand-made one.
    abstract_device = AbstractDevice(flat[0].device_kind, None, flat[0].platform) if len(kinds) == 1 else None
    return _assemble(flat, sizes, names, types, intern_abstract_mesh(sizes, names, types, abstract_device))


def _assemble(
    flat: tuple[DeviceLike, ...],
    sizes: tuple[int, ...],
    names: tuple[str, ...],
    types: tuple[AxisType, ...],
    abstract_mesh: AbstractMesh,
) -> Mesh:
    grid = np.empty(len(flat), dtype=object)
    grid[:] = flat
    if flat:
        grid = grid.reshape(sizes)
    grid.flags.writeable = False
    mesh = object.__new__(Mesh)
    mesh._set(axis_sizes=sizes, axis_names=names, axis_types=types, abstract_mesh=abstract_mesh, _shardings={})
    mesh._set(devices=grid, flat_devices=flat, flat_ids=tuple([device.id for device in flat]))
    return mesh


def _check_devices(flat: tuple[DeviceLike, ...]) -> None:
    if not flat:
        raise EmptyMeshError("Mesh requires at least one device, but got none.\ncuplace.devices() lists the devices.")
    if len(set(flat)) < len(flat):
        twice = next(device for place, device in enumerate(flat) if device in flat[:place])
        places = [place for place, device in enumerate(flat) if device is twice]
        raise DuplicateDeviceError(
            f"Mesh requires different devices, but got {twice!r} at the places {places} (row-major).\n"
            "Each device has one place in a mesh."
        )
    first_of = {device.platform: device for device in reversed(flat)}
    if len(first_of) > 1:
        raise MixedPlatformsError(
            f"Mesh requires devices of one platform, but got devices of {len(first_of)}: "
            f"{', '.join(f'{device!r} of {name}' for name, device in sorted(first_of.items()))}.\n"
            "Make one mesh for each platform."
        )


def _device_array(devices: Any, where: str) -> NDArray[np.object_]:
    """The devices as an object array: of an array, a nested sequence, an iterator, or a single device."""
    if isinstance(devices, Iterator):
        devices = list(devices)
    array = np.array(devices, dtype=object)
    flat = array.ravel().tolist()
    # One specimen of each type is enough: what makes a device is in its class.
    for specimen in {type(device): device for device in flat}.values():
        check_device(specimen, where)
    return array


def _empty_mesh() -> Mesh:
    return EMPTY_MESH


EMPTY_MESH = _assemble((), (), (), (), EMPTY_ABSTRACT_MESH)
"""The mesh without devices and axes: what `get_mesh()` gives where no mesh is set."""
