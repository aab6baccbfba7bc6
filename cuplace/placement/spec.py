"""PartitionSpec, short P: which mesh axes cut which dimension of an array."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Set
from typing import Any, ClassVar, Final, final, overload

from cuplace.errors import NestedSpecError, RankError, SpecEntryError, SpecOverlapError
from cuplace.placement.value import Interner, Value


@final
class Unconstrained(Value):
    """The entry UNCONSTRAINED: the library may choose how this dimension is cut (Auto axes only)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCONSTRAINED"

    def __reduce__(self) -> str:
        return "UNCONSTRAINED"


UNCONSTRAINED: Final = Unconstrained()

Partition = None | str | tuple[str, ...] | Unconstrained
"""One entry as the user sees it: a tuple of one name is that name, an empty tuple is None."""

Entry = None | tuple[str, ...] | Unconstrained
"""One entry as layout code wants it: names always stand in a tuple, which is never empty."""

_NO_AXES: frozenset[str] = frozenset()


@final
class PartitionSpec(Value):
    """For each dimension of an array, the mesh axes over which it is cut, the first axis major.

    >>> P('x', None, ('y', 'z'))
    P('x', None, ('y', 'z'))
    >>> P(('x',)) is P('x'), P(()) == P(None), P('x') == P('x', None)
    (True, True, False)

    An entry is an axis name, a tuple or list of names, None (the dimension is whole on each device) or
    `P.UNCONSTRAINED`. Dimensions beyond the last entry are whole. Whether the names exist is checked where the spec
    meets a mesh. A spec is a sequence of its entries, but no tuple. Equal specs are one object.

    Raises:
        NestedSpecError: a ValueError, for a tuple inside a tuple.
        SpecEntryError: a TypeError, for an entry of another kind, and for unreduced axes that are no set of names.
        SpecOverlapError: a ValueError, for an axis that is both partitioned over and unreduced or reduced.
    """

    __slots__ = ("__weakref__", "_axes", "entries", "partitions", "reduced", "unreduced")

    UNCONSTRAINED: ClassVar[Unconstrained] = UNCONSTRAINED

    partitions: tuple[Partition, ...]
    entries: tuple[Entry, ...]
    unreduced: frozenset[str]
    reduced: frozenset[str]
    _axes: tuple[str, ...]

    def __new__(cls, *partitions: Any, unreduced: Set[str] = _NO_AXES, reduced: Set[str] = _NO_AXES) -> PartitionSpec:
        if unreduced or reduced:
            _check_partial(unreduced, reduced)
            return _interned(tuple(map(_normalised, partitions)), frozenset(unreduced), frozenset(reduced))
        try:
            return _cached(partitions)
        except TypeError:
            # A list among the partitions cannot be a cache key; other bad entries are named by _normalised.
            return _interned(tuple(map(_normalised, partitions)), _NO_AXES, _NO_AXES)

    @property
    def axes(self) -> tuple[str, ...]:
        """All mesh axes that cut some dimension, in order of appearance, repeated if the spec repeats them."""
        return self._axes

    def padded(self, ndim: int) -> PartitionSpec:
        """The spec with exactly one entry for each of `ndim` dimensions.

        >>> P('x').padded(3)
        P('x', None, None)

        Raises:
            RankError: a ValueError, where the spec has more entries than there are dimensions.
        """
        missing = ndim - len(self.partitions)
        if missing < 0:
            raise RankError(
                f"{self!r} has {len(self.partitions)} entries, but the array has {ndim} dimensions.\n"
                "A spec may be shorter than the array's rank, never longer."
            )
        return self if missing == 0 else self._with((*self.partitions, *[None] * missing))

    def trimmed(self) -> PartitionSpec:
        """The spec without its trailing None: the shortest spec that means the same.

        >>> P('x', None, None).trimmed()
        P('x',)
        """
        length = len(self.partitions)
        while length and self.partitions[length - 1] is None:
            length -= 1
        return self if length == len(self.partitions) else self._with(self.partitions[:length])

    def update(
        self,
        *,
        partitions: Iterable[Any] | None = None,
        unreduced: Set[str] | None = None,
        reduced: Set[str] | None = None,
    ) -> PartitionSpec:
        """The spec with some of its parts replaced."""
        return PartitionSpec(
            *(self.partitions if partitions is None else partitions),
            unreduced=self.unreduced if unreduced is None else unreduced,
            reduced=self.reduced if reduced is None else reduced,
        )

    def _with(self, partitions: tuple[Partition, ...]) -> PartitionSpec:
        if self.unreduced or self.reduced:
            return _interned(partitions, self.unreduced, self.reduced)
        return _cached(partitions)

    def __len__(self) -> int:
        return len(self.partitions)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.partitions)

    def __contains__(self, entry: object) -> bool:
        return entry in self.partitions

    @overload
    def __getitem__(self, index: int) -> Partition: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Partition, ...]: ...
    def __getitem__(self, index: int | slice) -> Partition | tuple[Partition, ...]:
        return self.partitions[index]

    def index(self, entry: Any) -> int:
        """The first position of an entry. Raises ValueError where there is none."""
        return self.partitions.index(_normalised(entry))

    def count(self, entry: Any) -> int:
        """How often an entry appears."""
        return self.partitions.count(_normalised(entry))

    def __add__(self, other: object) -> PartitionSpec:
        if isinstance(other, PartitionSpec):
            return PartitionSpec(
                *self.partitions,
                *other.partitions,
                unreduced=self.unreduced | other.unreduced,
                reduced=self.reduced | other.reduced,
            )
        if isinstance(other, tuple):
            return self.update(partitions=(*self.partitions, *other))
        return NotImplemented

    def __radd__(self, other: object) -> PartitionSpec:
        if isinstance(other, tuple):
            return self.update(partitions=(*other, *self.partitions))
        return NotImplemented

    def __repr__(self) -> str:
        comma = "," if len(self.partitions) == 1 and not (self.unreduced or self.reduced) else ""
        parts = [repr(entry) + comma for entry in self.partitions]
        if self.unreduced:
            parts.append(f"unreduced={_braces(self.unreduced)}, unreduced_kind=sum")
        if self.reduced:
            parts.append(f"reduced={_braces(self.reduced)}")
        return f"P({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _interned, (self.partitions, self.unreduced, self.reduced)


P = PartitionSpec

_specs: Interner[PartitionSpec] = Interner()


@functools.lru_cache(maxsize=4096)
def _cached(partitions: tuple[Any, ...]) -> PartitionSpec:
    """The spec of these entries as the user wrote them; a lookup in C for all that were seen lately."""
    return _interned(tuple(map(_normalised, partitions)), _NO_AXES, _NO_AXES)


def _interned(partitions: tuple[Partition, ...], unreduced: frozenset[str], reduced: frozenset[str]) -> PartitionSpec:
    return _specs.get((partitions, unreduced, reduced), lambda: _make(partitions, unreduced, reduced))


def _make(partitions: tuple[Partition, ...], unreduced: frozenset[str], reduced: frozenset[str]) -> PartitionSpec:
    entries: tuple[Entry, ...] = tuple([(part,) if isinstance(part, str) else part for part in partitions])
    axes = tuple([name for entry in entries if isinstance(entry, tuple) for name in entry])
    for kind, names in (("unreduced", unreduced), ("reduced", reduced)):
        if not names.isdisjoint(axes):
            raise SpecOverlapError(
                f"partitions cannot overlap with {kind} axes passed to PartitionSpec. "
                f"Got partitions: {partitions} and {kind} axes: {names}"
            )
    spec = object.__new__(PartitionSpec)
    spec._set(partitions=partitions, entries=entries, unreduced=unreduced, reduced=reduced, _axes=axes)
    return spec


def _normalised(partition: Any) -> Partition:
    """An entry in its one spelling. Raises as PartitionSpec does."""
    if partition is None or isinstance(partition, (str, Unconstrained)):
        return partition
    if not isinstance(partition, (tuple, list)):
        raise SpecEntryError(_bad_entry(partition))
    for name in partition:
        if isinstance(name, (tuple, list)):
            raise NestedSpecError(
                "A tuple inside PartitionSpec cannot contain a nested tuple. "
                f"Got partition: {partition} and the nested tuple: {name}"
            )
        if not isinstance(name, str):
            raise SpecEntryError(_bad_entry(name))
    if not partition:
        return None
    return partition[0] if len(partition) == 1 else tuple(partition)


def _check_partial(unreduced: Any, reduced: Any) -> None:
    """Raises as PartitionSpec does for its sets of axis names."""
    for kind, names in (("unreduced", unreduced), ("reduced", reduced)):
        if not isinstance(names, Set):
            raise SpecEntryError(
                f"{kind} argument of PartitionSpec should of type `frozenset` or `set`. Got type {names}\n"
                f"Write for example {kind}={{'x'}}."
            )
        if not all(isinstance(name, str) for name in names):
            raise SpecEntryError(f"{kind} axes of PartitionSpec are names, strings. Got: {names}")
    if not unreduced.isdisjoint(reduced):
        raise SpecOverlapError(
            "`unreduced` and `reduced` argument to PartitionSpec cannot overlap. "
            f"Got unreduced: {unreduced} and reduced: {reduced}"
        )


def _bad_entry(entry: object) -> str:
    return (
        f"PartitionSpec cannot take {entry!r} of type {type(entry).__name__}.\n"
        "An entry is the name of a mesh axis (a str), a tuple of names, None, or P.UNCONSTRAINED; "
        "write for example P('x', None)."
    )


def _braces(names: frozenset[str]) -> str:
    return "{" + ", ".join(map(repr, sorted(names))) + "}"
