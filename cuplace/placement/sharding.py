"""Shardings: a mesh and a spec, or one device, which together say where each piece of an array lives."""

from __future__ import annotations

import operator
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, final

from cuplace.errors import (
    AbstractMeshError,
    DuplicateSpecError,
    EmptyMeshError,
    MemoryKindError,
    NotAMeshError,
    NotAShardingError,
    NotASpecError,
    RankError,
    ShapeError,
    ShapeTypeError,
    UnconstrainedError,
    UnknownAxisError,
    UnreducedError,
)
from cuplace.placement.abstract_mesh import AbstractMesh
from cuplace.placement.axes import AxisType
from cuplace.placement.device import DeviceLike, check_device
from cuplace.placement.layout import Index, Layout
from cuplace.placement.mesh import Mesh
from cuplace.placement.spec import UNCONSTRAINED, PartitionSpec
from cuplace.placement.tiling import Tiling, tile
from cuplace.placement.value import Interner, Value

Shape = tuple[int, ...]

_KEPT_LAYOUTS = 128
"""How many layouts a sharding keeps: more shapes than a program uses in turn, few enough to stay small."""

_layouts_lock = threading.RLock()  # re-entrant: a destructor that makes arrays may run under it


class Sharding(Value, ABC):
    """Where each piece of an array lives: the base of NamedSharding and SingleDeviceSharding.

    Attributes:
        flat_devices: the devices, in mesh order. (Abstract: raises AbstractMeshError on an abstract mesh.)
        memory_kind: which memory of the devices; None on an abstract mesh that names none.
    """

    __slots__ = ("__weakref__", "_layouts", "_tilings", "memory_kind")

    memory_kind: str | None
    _layouts: dict[Shape, Layout]
    _tilings: dict[int, Tiling]

    @property
    @abstractmethod
    def flat_devices(self) -> tuple[Any, ...]:
        """The devices, in mesh order."""

    @property
    @abstractmethod
    def flat_ids(self) -> tuple[int, ...]:
        """The ids of the devices, in mesh order."""

    @property
    @abstractmethod
    def mesh_or_none(self) -> Mesh | AbstractMesh | None:
        """The mesh; None where the sharding has none."""

    @property
    @abstractmethod
    def num_devices(self) -> int:
        """The number of devices."""

    @property
    @abstractmethod
    def is_fully_replicated(self) -> bool:
        """Whether each device holds the whole array."""

    @abstractmethod
    def with_memory_kind(self, kind: str | None) -> Sharding:
        """The same placement in another memory of the devices.

        Raises:
            MemoryKindError: a ValueError, for a memory that the devices do not have.
        """

    @abstractmethod
    def _make_tiling(self, ndim: int) -> Tiling:
        """The tiling of arrays of `ndim` dimensions, which the sharding can cut."""

    @abstractmethod
    def _check_rank(self, ndim: int) -> None:
        """Raises RankError unless the sharding can cut arrays of `ndim` dimensions."""

    def tiling(self, ndim: int) -> Tiling:
        """Which block of an array of `ndim` dimensions each device holds, for an array of any size."""
        found = self._tilings.get(ndim)
        return found if found is not None else self._tilings.setdefault(ndim, self._make_tiling(ndim))

    def layout(self, shape: Shape) -> Layout:
        """Which box of an array of this shape, a tuple, each device holds. Kept: asking again costs a lookup.

        Raises:
            RankError: a ValueError, where the spec has more entries than the array has dimensions.
            IndivisibleError: a ValueError, where a dimension cannot be cut into equal pieces.
            ShapeError, ShapeTypeError: a ValueError and a TypeError, for what is no shape.
        """
        found = self._layouts.get(shape)
        return found if found is not None else self._make_layout(_checked_shape(shape))

    def _make_layout(self, shape: Shape) -> Layout:
        self._check_rank(len(shape))
        layout = Layout(shape, self.tiling(len(shape)), self)
        with _layouts_lock:
            if len(self._layouts) >= _KEPT_LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
            return self._layouts.setdefault(shape, layout)

    def shard_shape(self, global_shape: Sequence[int]) -> Shape:
        """The shape of the piece that each device holds. Raises as `layout` does.

        >>> NamedSharding(AbstractMesh((2, 4), ('x', 'y')), PartitionSpec('x')).shard_shape((4, 8))
        (2, 8)
        """
        return self.layout(_checked_shape(global_shape)).shard_shape

    def check_compatible_aval(self, aval_shape: Sequence[int]) -> None:
        """Raises RankError where the spec has more entries than the shape has dimensions; divides nothing."""
        self._check_rank(len(_checked_shape(aval_shape)))

    def devices_indices_map(self, global_shape: Sequence[int]) -> dict[Any, Index]:
        """For each device, in mesh order, the index of its piece in the whole array. Raises as `layout` does."""
        return dict(zip(self.flat_devices, self.layout(_checked_shape(global_shape)).indices, strict=True))

    def addressable_devices_indices_map(self, global_shape: Sequence[int]) -> dict[Any, Index]:
        """The part of `devices_indices_map` for the devices of this process."""
        indices = self.devices_indices_map(global_shape)
        return {device: index for device, index in indices.items() if _is_local(device)}

    @property
    def device_set(self) -> set[Any]:
        """The devices, without order."""
        return set(self.flat_devices)

    @property
    def addressable_devices(self) -> set[Any]:
        """The devices of this process, without order."""
        return set(filter(_is_local, self.flat_devices))

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all devices belong to this process."""
        return all(map(_is_local, self.flat_devices))

    @property
    def has_addressable_devices(self) -> bool:
        """Whether some device belongs to this process."""
        return any(map(_is_local, self.flat_devices))

    def is_equivalent_to(self, other: Sharding, ndim: int) -> bool:
        """Whether both place arrays of `ndim` dimensions alike: same devices in the same order, same pieces and memory.

        Names and types of mesh axes do not matter. A replicated array over the same devices in another order is
        placed differently, as in JAX.

        Raises:
            NotAShardingError: a TypeError, where `other` is not a sharding.
            RankError: a ValueError, where a spec cuts more dimensions than there are.
        """
        if not isinstance(other, Sharding):
            raise NotAShardingError(
                f"is_equivalent_to compares with a Sharding, got {other!r} of type {type(other).__name__}."
            )
        if self is other:
            return True
        ours, theirs = self.tiling(ndim), other.tiling(ndim)
        return self.memory_kind == other.memory_kind and self._places() == other._places() and ours == theirs

    def _places(self) -> object:
        """What stands for the devices in comparisons."""
        return self.flat_devices


@final
class NamedSharding(Sharding):
    """An array cut over a mesh: dimension by dimension, along the mesh axes that the spec names.

    >>> NamedSharding(AbstractMesh((8,), ('x',)), PartitionSpec('x'))
    NamedSharding(mesh=AbstractMesh('x': 8, axis_types=(Explicit,)), spec=P('x',))

    Equal shardings are one object: the same mesh, exactly the same spec, the same memory. `P('x')` and
    `P('x', None)` make different shardings, which are equivalent. On an abstract mesh a sharding has layouts, but
    whatever asks for devices raises AbstractMeshError.

    Raises:
        UnknownAxisError: a ValueError, for an axis that the mesh does not have.
        DuplicateSpecError: a ValueError, for a mesh axis used twice.
        UnconstrainedError: a ValueError, for UNCONSTRAINED on a mesh without Auto axes.
        UnreducedError: a NotImplementedError, for a spec with unreduced or reduced axes.
        EmptyMeshError: a ValueError, for the mesh without devices.
        MemoryKindError: a ValueError, for a memory that the devices do not have.
        NotAMeshError, NotASpecError: TypeErrors, for what is no mesh and no PartitionSpec.
    """

    __slots__ = ("_is_fully_replicated", "mesh", "spec")

    mesh: Mesh | AbstractMesh
    spec: PartitionSpec
    _is_fully_replicated: bool

    def __new__(cls, mesh: Mesh | AbstractMesh, spec: PartitionSpec, memory_kind: str | None = None) -> NamedSharding:
        try:
            found = mesh._shardings.get((spec, memory_kind))
        except (AttributeError, TypeError):  # what is no mesh, or an unhashable spec, is named in _checked
            found = None
        return found if found is not None else _checked(mesh, spec, memory_kind)

    @property
    def flat_devices(self) -> tuple[Any, ...]:
        return self._concrete_mesh().flat_devices

    @property
    def flat_ids(self) -> tuple[int, ...]:
        return self._concrete_mesh().flat_ids

    @property
    def mesh_or_none(self) -> Mesh | AbstractMesh | None:
        return self.mesh

    @property
    def num_devices(self) -> int:
        return self.mesh.size

    @property
    def is_fully_replicated(self) -> bool:
        return self._is_fully_replicated

    @property
    def replicated_axes(self) -> frozenset[str]:
        """The mesh axes along which all devices hold the same."""
        return frozenset(self.mesh.axis_names).difference(self.spec.axes)

    def with_memory_kind(self, kind: str | None) -> NamedSharding:
        return NamedSharding(self.mesh, self.spec, kind)

    def update(
        self,
        mesh: Mesh | AbstractMesh | None = None,
        spec: PartitionSpec | Iterable[Any] | None = None,
        memory_kind: str | None = None,
    ) -> NamedSharding:
        """The sharding with its mesh, spec or memory replaced; a spec may be given as its sequence of entries.

        Raises as the constructor does.
        """
        if isinstance(spec, str):
            spec = PartitionSpec(spec)
        elif spec is not None and not isinstance(spec, PartitionSpec):
            spec = PartitionSpec(*spec)
        return NamedSharding(
            self.mesh if mesh is None else mesh,
            self.spec if spec is None else spec,
            self.memory_kind if memory_kind is None else memory_kind,
        )

    def _make_tiling(self, ndim: int) -> Tiling:
        spec = self.spec.trimmed()
        if len(spec) > ndim:
            self._check_rank(ndim)
        return tile(self.mesh.axis_sizes, self.mesh.axis_names, spec.padded(ndim).entries)

    def _check_rank(self, ndim: int) -> None:
        if len(self.spec) > ndim:
            raise RankError(
                f"Length of sharding.spec ({len(self.spec)}) must be equal to aval's ndim ({ndim}). "
                f"Got sharding.spec {self.spec!r}, aval.ndim {ndim} and sharding {self!r}\n"
                "A spec may have fewer entries than the array has dimensions, never more."
            )

    def _concrete_mesh(self) -> Mesh:
        if isinstance(self.mesh, Mesh):
            return self.mesh
        raise AbstractMeshError(
            "device_set is not implemented for `jax.sharding.AbstractMesh`.\n"
            f"{self!r} has no devices; use a Mesh, as cuplace.make_mesh() makes it."
        )

    def _places(self) -> object:
        return self.mesh.flat_devices if isinstance(self.mesh, Mesh) else self.mesh

    def __repr__(self) -> str:
        kind = "" if self.memory_kind is None else f", memory_kind={self.memory_kind}"
        return f"NamedSharding(mesh={self.mesh!s}, spec={self.spec!r}{kind})"

    def __reduce__(self) -> tuple[Any, ...]:
        return NamedSharding, (self.mesh, self.spec, self.memory_kind)


@final
class SingleDeviceSharding(Sharding):
    """A whole array on one device, without a mesh.

    >>> import cuplace
    >>> SingleDeviceSharding(cuplace.devices()[0]).memory_kind
    'device'

    Equal ones are one object. It is equivalent to a NamedSharding on a mesh of that device alone, but not equal to it.

    Raises:
        ForeignDeviceError: a TypeError, for something that is not a device.
        MemoryKindError: a ValueError, for a memory that the device does not have.
    """

    __slots__ = ("flat_devices", "flat_ids")

    flat_devices: tuple[Any, ...]
    flat_ids: tuple[int, ...]

    def __new__(cls, device: DeviceLike, *, memory_kind: str | None = None) -> SingleDeviceSharding:
        check_device(device, "SingleDeviceSharding")
        kind = device.memory_kinds[0] if memory_kind is None else memory_kind
        return _singles.get((device, kind), lambda: _make_single(device, kind))

    @property
    def mesh_or_none(self) -> None:
        return None

    @property
    def num_devices(self) -> int:
        return 1

    @property
    def is_fully_replicated(self) -> bool:
        return True

    def with_memory_kind(self, kind: str | None) -> SingleDeviceSharding:
        return SingleDeviceSharding(self.flat_devices[0], memory_kind=kind)

    def _make_tiling(self, ndim: int) -> Tiling:
        return tile((1,), ("",), (None,) * ndim)

    def _check_rank(self, ndim: int) -> None:
        return

    def __repr__(self) -> str:
        return f"SingleDeviceSharding(device={self.flat_devices[0]!r}, memory_kind={self.memory_kind})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _single, (self.flat_devices[0], self.memory_kind)


_singles: Interner[SingleDeviceSharding] = Interner()


def _single(device: DeviceLike, kind: str) -> SingleDeviceSharding:
    return SingleDeviceSharding(device, memory_kind=kind)


def _make_single(device: DeviceLike, kind: str) -> SingleDeviceSharding:
    check_memory_kind(device, kind)
    sharding = object.__new__(SingleDeviceSharding)
    sharding._set(memory_kind=kind, _layouts={}, _tilings={}, flat_devices=(device,), flat_ids=(device.id,))
    return sharding


def _checked(mesh: Any, spec: Any, memory_kind: str | None) -> NamedSharding:
    """The sharding of arguments not seen before. A mesh keeps its shardings: there are as many as distinct specs."""
    _check_mesh(mesh)
    _check_spec(mesh, spec)
    kind = memory_kind
    if isinstance(mesh, Mesh):
        device = mesh.flat_devices[0]
        kind = device.memory_kinds[0] if memory_kind is None else memory_kind
        check_memory_kind(device, kind)
    size_of = mesh.shape
    replicated = all(size_of[name] == 1 for name in spec.axes)
    made = object.__new__(NamedSharding)
    made._set(mesh=mesh, spec=spec, memory_kind=kind, _layouts={}, _tilings={}, _is_fully_replicated=replicated)
    sharding: NamedSharding = mesh._shardings.setdefault((spec, kind), made)
    mesh._shardings[spec, memory_kind] = sharding
    return sharding


def _check_mesh(mesh: object) -> None:
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise NotAMeshError(
            f"NamedSharding takes a Mesh, got {mesh!r} of type {type(mesh).__name__}.\n"
            "Make one with cuplace.make_mesh((n,), ('x',)); for a single device use SingleDeviceSharding(device)."
        )
    if mesh.empty:
        raise EmptyMeshError(
            f"NamedSharding needs a mesh with devices, got {mesh}.\n"
            "No mesh is set; make one with cuplace.make_mesh((n,), ('x',)), or set it with cuplace.set_mesh(mesh)."
        )


def _check_spec(mesh: Mesh | AbstractMesh, spec: object) -> None:
    if not isinstance(spec, PartitionSpec):
        raise NotASpecError(
            f"NamedSharding takes a PartitionSpec, got {spec!r} of type {type(spec).__name__}.\n"
            "Write P('x'), with cuplace.P."
        )
    if spec.unreduced or spec.reduced:
        raise UnreducedError(f"cuplace has no arrays with unreduced or reduced axes. Got spec {spec!r}.")
    if UNCONSTRAINED in spec.entries and AxisType.Auto not in mesh.axis_types:
        raise UnconstrainedError(
            f"{spec!r} cannot contain `P.UNCONSTRAINED` when no mesh axis_types are `Auto`. "
            f"Got mesh axis_types: {mesh.axis_types}"
        )
    seen = set()
    for name in spec.axes:
        if name not in mesh.axis_names:
            raise UnknownAxisError(
                f"Resource axis: {name} of {spec!r} is not found in mesh: {mesh.axis_names}.\n"
                "Name an axis of the mesh, or None for a dimension that stays whole."
            )
        if name in seen:
            raise DuplicateSpecError(
                "A single NamedSharding spec specification can map every mesh axis to at most one positional "
                f"dimension, but {spec!r} has duplicate entries for `{name}`\n"
                "Name None where a dimension stays whole, or make a mesh with one axis more."
            )
        seen.add(name)


def check_memory_kind(device: DeviceLike, kind: str) -> None:
    """Raises MemoryKindError, a ValueError, for a memory that the device does not have."""
    kinds = device.memory_kinds
    if kind not in kinds:
        name = device.device_kind
        raise MemoryKindError(
            f"Could not find memory addressable by device {name}. Device {name} can address the following memory "
            f"kinds: {', '.join(kinds)}. Got memory kind: {kind}"
        )


def _checked_shape(shape: Any) -> Shape:
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        raise ShapeTypeError(
            f"A shape is a sequence of integers, got {shape!r} of type {type(shape).__name__}.\n"
            "Write for example (8,) for an array of one dimension."
        ) from None
    if any(size < 0 for size in sizes):
        raise ShapeError(f"The sizes of a shape are 0 or more, got {sizes}.")
    return sizes


def _is_local(device: Any) -> bool:
    return device.local_hardware_id is not None
