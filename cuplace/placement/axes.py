"""Named axes: the grid of a mesh without its devices, and the checks of what users give for it."""

from __future__ import annotations

import enum
import math
import operator
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from cuplace.errors import (
    AxisNameError,
    AxisNameTypeError,
    AxisSizeError,
    AxisSizeTypeError,
    AxisTypesError,
    AxisTypeTypeError,
)
from cuplace.placement.value import Value


class AxisType(enum.Enum):
    """Who decides how arrays are cut along a mesh axis.

    `Auto`: the library chooses the layout of results. `Explicit`: the layout is part of an array's type, follows
    fixed rules, and ambiguity is an error. `Manual`: user code sees single shards, inside `shard_map` only.

    >>> AxisType.Explicit, str(AxisType.Auto)
    (Explicit, 'AxisType.Auto')
    """

    Auto = 1
    Explicit = 2
    Manual = 3

    def __repr__(self) -> str:
        return self.name


class NamedAxes(Value):
    """Sizes, names and types of the axes of a mesh, and what follows from them alone.

    `axis_sizes`, `axis_names` and `axis_types` are tuples of equal length, major axis first.
    """

    __slots__ = ("axis_names", "axis_sizes", "axis_types")

    axis_sizes: tuple[int, ...]
    axis_names: tuple[str, ...]
    axis_types: tuple[AxisType, ...]

    @property
    def shape_tuple(self) -> tuple[tuple[str, int], ...]:
        """Pairs of name and size, major axis first."""
        return tuple(zip(self.axis_names, self.axis_sizes, strict=True))

    @property
    def shape(self) -> OrderedDict[str, int]:
        """The size of each axis by its name, major axis first: a new dictionary each time."""
        return OrderedDict(self.shape_tuple)

    @property
    def size(self) -> int:
        """The number of places in the grid; 0 for an empty mesh."""
        return 0 if self.empty else math.prod(self.axis_sizes)

    @property
    def empty(self) -> bool:
        """Whether this stands for having no mesh at all."""
        raise NotImplementedError

    @property
    def auto_axes(self) -> tuple[str, ...]:
        """Names of the axes of type Auto."""
        return self._axes_of_type(AxisType.Auto)

    @property
    def explicit_axes(self) -> tuple[str, ...]:
        """Names of the axes of type Explicit."""
        return self._axes_of_type(AxisType.Explicit)

    @property
    def manual_axes(self) -> tuple[str, ...]:
        """Names of the axes of type Manual."""
        return self._axes_of_type(AxisType.Manual)

    @property
    def are_all_axes_auto(self) -> bool:
        """Whether the mesh has axes and all are Auto."""
        return set(self.axis_types) == {AxisType.Auto}

    @property
    def are_all_axes_explicit(self) -> bool:
        """Whether the mesh has axes and all are Explicit."""
        return set(self.axis_types) == {AxisType.Explicit}

    @property
    def are_all_axes_manual(self) -> bool:
        """Whether the mesh has axes and all are Manual."""
        return set(self.axis_types) == {AxisType.Manual}

    def _axes_of_type(self, wanted: AxisType) -> tuple[str, ...]:
        return tuple([name for name, kind in zip(self.axis_names, self.axis_types, strict=True) if kind is wanted])

    def _labels(self) -> str:
        """The axes as JAX prints them: `'x': 2, 'y': 4`."""
        return ", ".join([f"{name!r}: {size}" for name, size in self.shape_tuple])


def checked_names(axis_names: str | Sequence[str]) -> tuple[str, ...]:
    """Axis names as a tuple; a lone name is accepted.

    Raises:
        AxisNameError: a ValueError, for a name that is None or appears twice.
        AxisNameTypeError: a TypeError, for a name that is not a string, or no sequence of names.
    """
    if isinstance(axis_names, str):
        return (axis_names,)
    if not isinstance(axis_names, Iterable):
        raise AxisNameTypeError(
            f"Mesh axis names must be a sequence of strings. Got: {axis_names!r} of type "
            f"{type(axis_names).__name__}.\nWrite for example ('x', 'y')."
        )
    names = tuple(axis_names)
    if None in names:
        raise AxisNameError(f"Mesh axis names cannot be None. Got: {names}")
    for name in names:
        if not isinstance(name, str):
            raise AxisNameTypeError(
                f"Mesh axis names must be strings. Got: {name!r} of type {type(name).__name__} in {names}.\n"
                f"Write for example {str(name)!r}."
            )
    if len(set(names)) < len(names):
        raise AxisNameError(
            f"Mesh axis names must be different from each other. Got: {names}\n"
            "A PartitionSpec could not tell the equally named axes apart."
        )
    return names


def checked_types(axis_types: Any, names: tuple[str, ...], default: AxisType) -> tuple[AxisType, ...]:
    """Axis types as a tuple, `default` for each axis where None is given; a lone type is accepted.

    Raises:
        AxisTypeTypeError: a TypeError, for something that is not an AxisType.
        AxisTypesError: a ValueError, for another number of types than of names.
    """
    if axis_types is None:
        return (default,) * len(names)
    lone = isinstance(axis_types, (AxisType, str)) or not isinstance(axis_types, Iterable)
    types = (axis_types,) if lone else tuple(axis_types)
    if not all(isinstance(kind, AxisType) for kind in types):
        raise AxisTypeTypeError(
            "axis_types passed to Mesh must be of type `jax.sharding.AxisType`. "
            f"Got {types} of type {tuple(type(kind) for kind in types)}\n"
            "Write AxisType.Explicit or AxisType.Auto, from cuplace.sharding."
        )
    if len(types) != len(names):
        raise AxisTypesError(
            f"Number of axis names should match the number of axis_types. Got axis_names={names} and axis_types={types}"
        )
    return types


def checked_sizes(axis_sizes: Any) -> tuple[int, ...]:
    """Axis sizes as a tuple of positive integers.

    Raises:
        AxisSizeTypeError: a TypeError, for a size that is not an integer, or no sequence of sizes.
        AxisSizeError: a ValueError, for a size of zero or less.
    """
    if isinstance(axis_sizes, str) or not isinstance(axis_sizes, Iterable):
        raise AxisSizeTypeError(
            f"The axis sizes of a mesh must be a sequence of integers. Got {axis_sizes!r} of type "
            f"{type(axis_sizes).__name__}.\nWrite for example (8,)."
        )
    given = tuple(axis_sizes)
    sizes = tuple([_checked_size(size, given) for size in given])
    if any(size < 1 for size in sizes):
        raise AxisSizeError(
            f"The axis sizes of a mesh must be 1 or more. Got {sizes}.\nThere is no wildcard size: write each size out."
        )
    return sizes


def _checked_size(size: Any, given: tuple[Any, ...]) -> int:
    try:
        if not isinstance(size, bool):
            return operator.index(size)
    except TypeError:
        pass
    raise AxisSizeTypeError(
        f"The axis sizes of a mesh must be integers. Got {size!r} of type {type(size).__name__} in {given}."
    )
