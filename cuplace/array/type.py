"""``ArrayType``: everything about an array that programs are traced on."""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np

from cuplace import errors
from cuplace.array import dtypes
from cuplace.placement.abstract_mesh import AbstractMesh
from cuplace.placement.axes import AxisType
from cuplace.placement.memory_space import DEVICE, MemorySpace, space_of
from cuplace.placement.spec import UNCONSTRAINED, PartitionSpec
from cuplace.placement.value import Interner, Value

DEFAULT_MEMORY = DEVICE


@final
class ArrayType(Value):
    """Shape, dtype, weakness, spec, abstract mesh and memory kind of an array; JAX's ``ShapedArray``.

    Equal types are the same object, so that they are compared and hashed by identity.

    Attributes:
        shape: a tuple of ints.
        dtype: a NumPy dtype (of ml_dtypes for bfloat16 and the like).
        weak_type: whether the dtype gives way to the dtype of what it is combined with.
        spec: the PartitionSpec, one entry a dimension; Auto axes are in it, though they are not shown.
        mesh: the abstract mesh, or None for an array on a single device.
        memory_kind: ``'device'``, or the kind of a host memory.

    Example:
        >>> import numpy as np
        >>> ArrayType((2, 3), np.dtype("float32"))
        ShapedArray(float32[2,3])
    """

    __slots__ = ("__weakref__", "dtype", "memory_kind", "mesh", "shape", "spec", "weak_type")

    shape: tuple[int, ...]
    dtype: np.dtype
    weak_type: bool
    spec: PartitionSpec
    mesh: AbstractMesh | None
    memory_kind: str

    def __new__(
        cls,
        shape: tuple[int, ...],
        dtype: Any,
        weak_type: bool = False,
        spec: PartitionSpec | None = None,
        mesh: AbstractMesh | None = None,
        memory_kind: str = DEFAULT_MEMORY,
    ) -> ArrayType:
        spec = (PartitionSpec() if spec is None else spec).padded(len(shape))
        key = (tuple(shape), np.dtype(dtype), weak_type, spec, mesh, memory_kind)
        return _types.get(key, lambda: _make(*key))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def memory_space(self) -> MemorySpace:
        """Whether it is memory of the device, or of the host."""
        return space_of(self.memory_kind)

    def update(self, **changes: Any) -> ArrayType:
        """The same type with some attributes changed."""
        names = ("shape", "dtype", "weak_type", "spec", "mesh", "memory_kind")
        return ArrayType(**{name: changes.get(name, getattr(self, name)) for name in names})

    def strong(self) -> ArrayType:
        """The same type, not weak."""
        return self.update(weak_type=False) if self.weak_type else self

    def unplaced(self) -> ArrayType:
        """The same type without spec and mesh: that of a value which is on no device yet."""
        return self.update(spec=None, mesh=None)

    def short(self) -> str:
        """The form with a short dtype name, as in ``f32[4@x,8]``."""
        return dtypes.short_name(self.dtype) + describe_shape(self.shape, self.spec, self.mesh)

    def __str__(self) -> str:
        space = "" if self.memory_kind == DEFAULT_MEMORY else "<host>"
        return f"{self.dtype.name}{space}{describe_shape(self.shape, self.spec, self.mesh)}"

    def __repr__(self) -> str:
        return f"ShapedArray({self}{', weak_type=True' if self.weak_type else ''})"

    def __reduce__(self) -> Any:
        return ArrayType, (self.shape, self.dtype, self.weak_type, self.spec, self.mesh, self.memory_kind)


_types: Interner[ArrayType] = Interner()


def _make(
    shape: tuple[int, ...],
    dtype: np.dtype,
    weak_type: bool,
    spec: PartitionSpec,
    mesh: AbstractMesh | None,
    memory_kind: str,
) -> ArrayType:
    made = object.__new__(ArrayType)
    made._set(shape=shape, dtype=dtype, weak_type=weak_type, spec=spec, mesh=mesh, memory_kind=memory_kind)
    return made


def explicit_entry(entry: Any, mesh: AbstractMesh | None) -> tuple[str, ...]:
    """The Explicit mesh axes of one normalised entry of a spec."""
    if entry is None or entry is UNCONSTRAINED or mesh is None:
        return ()
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return tuple(axis for axis in entry if kinds.get(axis) is AxisType.Explicit)


def explicit_spec(spec: PartitionSpec, mesh: AbstractMesh | None) -> PartitionSpec:
    """The spec with Auto axes left out: the part that types show and that must agree."""
    return PartitionSpec(*(explicit_entry(entry, mesh) or None for entry in spec.entries))


def describe_shape(shape: tuple[int, ...], spec: PartitionSpec, mesh: AbstractMesh | None) -> str:
    """A shape with its Explicit axes, as in ``[4@x,8@(y,z)]``."""
    dims = []
    for size, entry in zip(shape, spec.padded(len(shape)).entries, strict=True):
        axes = explicit_entry(entry, mesh)
        if not axes:
            dims.append(str(size))
        elif len(axes) == 1:
            dims.append(f"{size}@{axes[0]}")
        else:
            dims.append(f"{size}@({','.join(axes)})")
    return f"[{','.join(dims)}]"


def typeof(x: Any) -> ArrayType:
    """The type of an array, a traced value, a NumPy array or a Python scalar.

    Raises:
        NotAnArrayError: a TypeError, where ``x`` is no array.

    Example:
        >>> typeof(1.0)
        ShapedArray(float32[], weak_type=True)
    """
    if getattr(type(x), "_is_tracer", False):
        return x.type  # type: ignore[no-any-return]
    key = getattr(x, "_key", None)
    if key is not None and isinstance(key.type, ArrayType):
        return key.type
    if isinstance(x, np.ndarray | np.generic):
        return ArrayType(x.shape, dtypes.canonicalize(dtypes.checked_dtype(x.dtype)))
    if isinstance(x, bool | int | float | complex):
        dtype, weak = dtypes.scalar_type(x)
        return ArrayType((), dtype, weak)
    raise errors.NotAnArrayError(x)
