"""AbstractMesh: what of a mesh belongs to the type of an array, so that tracing need not know devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, final

from cuplace.errors import AbstractMeshError, MeshRankError
from cuplace.placement.axes import AxisType, NamedAxes, checked_names, checked_sizes, checked_types
from cuplace.placement.value import Interner


class AbstractDevice(NamedTuple):
    """What all devices of a mesh have in common. `num_cores` is always None: it is printed for JAX's sake."""

    device_kind: str
    num_cores: int | None
    platform: str

    def __repr__(self) -> str:
        return f"device_kind={self.device_kind}, num_cores={self.num_cores}, platform={self.platform}"


@final
class AbstractMesh(NamedAxes):
    """A mesh without its devices: axis names, sizes and types, and the kind of device if it came from a mesh.

    >>> AbstractMesh((2, 4), ('x', 'y'))
    AbstractMesh('x': 2, 'y': 4, axis_types=(Explicit, Explicit))

    Axes are Explicit where no types are given. Equal abstract meshes are one object; those of two meshes of equal
    axes are equal if their devices are of the same kind, whichever these are.

    Raises:
        MeshRankError, AxisNameError, AxisSizeError, AxisTypesError: ValueErrors for numbers, names and sizes that
            do not fit.
        AxisNameTypeError, AxisSizeTypeError, AxisTypeTypeError: TypeErrors for foreign objects.
    """

    __slots__ = ("__weakref__", "_shardings", "abstract_device")

    abstract_device: AbstractDevice | None
    _shardings: dict[Any, Any]

    def __new__(
        cls,
        axis_sizes: Sequence[int],
        axis_names: str | Sequence[str],
        axis_types: AxisType | Sequence[AxisType] | None = None,
        *,
        abstract_device: AbstractDevice | None = None,
    ) -> AbstractMesh:
        sizes = checked_sizes(axis_sizes)
        names = checked_names(axis_names)
        if len(sizes) != len(names):
            raise MeshRankError(
                "AbstractMesh requires as many axis sizes as axis names, "
                f"but got axis_sizes={sizes} and axis_names={names}."
            )
        types = checked_types(axis_types, names, AxisType.Explicit)
        return intern_abstract_mesh(sizes, names, types, abstract_device)

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The mesh itself."""
        return self

    @property
    def empty(self) -> bool:
        """Whether this stands for having no mesh at all, as outside of `set_mesh`."""
        return not self.axis_names and self.abstract_device is None

    def update(
        self,
        axis_sizes: Sequence[int] | None = None,
        axis_names: str | Sequence[str] | None = None,
        axis_types: AxisType | Sequence[AxisType] | None = None,
    ) -> AbstractMesh:
        """The mesh with sizes, names or types replaced. Raises as the constructor does."""
        return AbstractMesh(
            self.axis_sizes if axis_sizes is None else axis_sizes,
            self.axis_names if axis_names is None else axis_names,
            self.axis_types if axis_types is None else axis_types,
            abstract_device=self.abstract_device,
        )

    @property
    def devices(self) -> NoReturn:
        """Raises AbstractMeshError, a ValueError."""
        self._no("devices")

    @property
    def device_ids(self) -> NoReturn:
        """Raises AbstractMeshError, a ValueError."""
        self._no("device_ids")

    @property
    def local_devices(self) -> NoReturn:
        """Raises AbstractMeshError, a ValueError."""
        self._no("local_devices")

    def _no(self, name: str) -> NoReturn:
        raise AbstractMeshError(
            f"AbstractMesh does not implement {name}\nIt has no devices; use a Mesh, as cuplace.make_mesh() makes it."
        )

    def __repr__(self) -> str:
        device = "" if self.abstract_device is None else f", {self.abstract_device!r}"
        return f"AbstractMesh({self._labels() or '()'}, axis_types={self.axis_types}{device})"

    def __reduce__(self) -> tuple[Any, ...]:
        return intern_abstract_mesh, (self.axis_sizes, self.axis_names, self.axis_types, self.abstract_device)


_abstract_meshes: Interner[AbstractMesh] = Interner()


def intern_abstract_mesh(
    sizes: tuple[int, ...],
    names: tuple[str, ...],
    types: tuple[AxisType, ...],
    abstract_device: AbstractDevice | None,
) -> AbstractMesh:
    """The one abstract mesh of these parts, which have been checked."""

    def make() -> AbstractMesh:
        mesh = object.__new__(AbstractMesh)
        mesh._set(axis_sizes=sizes, axis_names=names, axis_types=types)
        mesh._set(abstract_device=abstract_device, _shardings={})
        return mesh

    return _abstract_meshes.get((sizes, names, types, abstract_device), make)


EMPTY_ABSTRACT_MESH = intern_abstract_mesh((), (), (), None)
