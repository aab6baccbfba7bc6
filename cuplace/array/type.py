"""``ArrayType``: everything about an array that programs are traced on."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from cuplace import errors
from cuplace.array import dtypes
from cuplace.placement.abstract_mesh import AbstractMesh
from cuplace.placement.axes import AxisType
from cuplace.placement.spec import UNCONSTRAINED, PartitionSpec

DEFAULT_MEMORY = "device"

_interned: weakref.WeakValueDictionary[tuple[Any, ...], ArrayType] = weakref.WeakValueDictionary()
_lock = threading.Lock()


class ArrayType:
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

    __slots__ = ("__weakref__", "_text", "dtype", "memory_kind", "mesh", "shape", "spec", "weak_type")

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
        found = _interned.get(key)
        if found is not None:
            return found
        with _lock:
            found = _interned.get(key)
            if found is None:
                found = _interned[key] = _new(cls, key)
        return found

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def update(self, **changes: Any) -> ArrayType:
        """The same type with some attributes changed."""
        names = ("shape", "dtype", "weak_type", "spec", "mesh", "memory_kind")
        return ArrayType(**{name: changes.get(name, getattr(self, name)) for name in names})

    def strong(self) -> ArrayType:
        """The same type, not weak."""
        return self.update(weak_type=False) if self.weak_type else self

    def short(self) -> str:
        """The form with a short dtype name, as in ``f32[4@x,8]``."""
        return dtypes.short_name(self.dtype) + describe_shape(self.shape, self.spec, self.mesh)

    def __str__(self) -> str:
        if self._text is None:
            space = "" if self.memory_kind == DEFAULT_MEMORY else "<host>"
            object.__setattr__(
                self, "_text", f"{self.dtype.name}{space}{describe_shape(self.shape, self.spec, self.mesh)}"
            )
        return self._text

    def __repr__(self) -> str:
        return f"ShapedArray({self}{', weak_type=True' if self.weak_type else ''})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot assign to field {name!r}")

    def __copy__(self) -> ArrayType:
        return self

    def __deepcopy__(self, memo: Any) -> ArrayType:
        return self

    def __reduce__(self) -> Any:
        return ArrayType, (self.shape, self.dtype, self.weak_type, self.spec, self.mesh, self.memory_kind)


def _new(cls: type[ArrayType], key: tuple[Any, ...]) -> ArrayType:
    made = object.__new__(cls)
    for name, value in zip(("shape", "dtype", "weak_type", "spec", "mesh", "memory_kind"), key, strict=True):
        object.__setattr__(made, name, value)
    object.__setattr__(made, "_text", None)
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
    key = getattr(x, "_key", None)
    if key is not None and isinstance(key.type, ArrayType):
        return key.type
    if getattr(x, "_is_tracer", False):
        return x.type
    if isinstance(x, np.ndarray | np.generic):
        return ArrayType(x.shape, dtypes.canonicalize(dtypes.checked_dtype(x.dtype)))
    if isinstance(x, bool | int | float | complex):
        dtype, weak = dtypes.scalar_type(x)
        return ArrayType((), dtype, weak)
    raise errors.NotAnArrayError(x)
