"""``GETITEM`` and ``TAKE``: parts of an array, by static indices or by an array of positions."""

from __future__ import annotations

import enum
import operator
from typing import Any, NamedTuple

import numpy as np

from cuplace import errors
from cuplace.array.type import ArrayType
from cuplace.ops.factors import Factors, Kind, Labels, Problem, Rule
from cuplace.ops.op import Op, OutType, Params

Shape = tuple[int, ...]


class Span(NamedTuple):
    """A slice in normal form. ``length`` is the number of elements it picks; FULL and REVERSED pick all of them,
    whatever the size, so that they mean the same for a shard."""

    start: int | None
    stop: int | None
    step: int | None

    def slice(self) -> slice:
        return slice(*self)


FULL = Span(None, None, None)
REVERSED = Span(None, None, -1)


class Given(enum.Enum):
    """Stands in an index for an integer that is an operand, so that one program serves for all integers."""

    GIVEN = enum.auto()


GIVEN = Given.GIVEN
MOST_GIVEN = 3
"""How many integers of an index are operands at most; further ones stay parts of the program."""

Item = int | Span | Given | None
Index = tuple[Item, ...]


def integers_apart(index: Index) -> tuple[Index, list[int]]:
    """An index in normal form with its integers replaced by GIVEN, and these integers.

    >>> integers_apart((2, FULL))
    ((<Given.GIVEN: 1>, Span(start=None, stop=None, step=None)), [2])
    """
    items: list[Item] = []
    integers: list[int] = []
    for item in index:
        # Beyond 32 bits no operand can hold it where 64-bit types are off.
        apart = isinstance(item, int) and item < 2**31 and len(integers) < MOST_GIVEN
        if isinstance(item, int) and apart:
            integers.append(item)
        items.append(GIVEN if apart else item)
    return tuple(items), integers


def normalize_index(index: Any, shape: Shape) -> Index:
    """An index of integers, slices, None and one Ellipsis, with one item a dimension and all integers from the front.

    >>> normalize_index((..., -1), (4, 8))
    (Span(start=None, stop=None, step=None), 7)

    Raises:
        ArrayIndexError: an IndexError: an integer is out of range, or there are too many items.
        IndexTypeError: a TypeError: an item of another type.
    """
    items = index if isinstance(index, tuple) else (index,)
    if sum(item is Ellipsis for item in items) > 1:
        raise errors.ArrayIndexError("an index can only have a single ellipsis ('...')")
    taken = sum(item is not None and item is not Ellipsis for item in items)
    if taken > len(shape):
        raise errors.ArrayIndexError(f"Too many indices: array is {len(shape)}-dimensional, but {taken} were indexed")
    if Ellipsis not in [item if item is Ellipsis else None for item in items]:
        items = (*items, Ellipsis)
    found: list[Item] = []
    dim = 0
    for item in items:
        if item is None:
            found.append(None)
        elif item is Ellipsis:
            found += [FULL] * (len(shape) - taken)
            dim += len(shape) - taken
        else:
            found.append(_item(item, dim, shape[dim]))
            dim += 1
    return tuple(found)


def _item(item: Any, dim: int, size: int) -> Item:
    if isinstance(item, slice):
        return _span(item, size)
    if isinstance(item, bool) or not hasattr(item, "__index__"):
        if not isinstance(item, int | float | complex | np.ndarray | np.generic):
            raise errors.ArrayIndexError(
                "only integers, slices (`:`), ellipsis (`...`), newaxis (`None`) and integer or boolean arrays are "
                f"valid indices. Got {item!r}"
            )
        raise errors.IndexTypeError(
            f"Indexer must have integer or boolean type, got indexer with type {np.asarray(item).dtype}\n"
            f"The index {item!r} stands at position {dim}. Use integers, slices, None, an Ellipsis or an integer array."
        )
    position = operator.index(item)
    if not -size <= position < size:
        raise errors.ArrayIndexError(f"index {position} is out of bounds for axis {dim} with size {size}")
    return position % size


def _span(item: slice, size: int) -> Span:
    try:
        start, stop, step = item.indices(size)
    except TypeError:
        raise errors.IndexTypeError(
            f"Slice entries must be static integers or None, got {item}.\n"
            "The shape of a result cannot depend on traced values."
        ) from None
    length = len(range(start, stop, step))
    if length == size and step == 1:
        return FULL
    if length == size and step == -1 and size > 1:
        return REVERSED
    if length == 0:
        return Span(0, 0, 1)
    return Span(start, stop if stop >= 0 else None, step)


def _length(span: Span, size: int) -> int:
    return len(range(*span.slice().indices(size)))


def _infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    x = types[0]
    sizes = iter(x.shape)
    shape = []
    for item in params["index"]:
        if item is None:
            shape.append(1)
            continue
        size = next(sizes)
        if isinstance(item, Span):
            shape.append(_length(item, size))
    return OutType(tuple(shape), x.dtype, x.weak_type)


def _factors(types: tuple[ArrayType, ...], params: Params) -> Factors:
    labels = tuple(range(types[0].ndim))
    dims = iter(labels)
    out: list[int | None] = []
    kinds: dict[Any, Kind] = {}
    for item in params["index"]:
        if item is None:
            out.append(None)
            continue
        dim = next(dims)
        if item == FULL:
            out.append(dim)
        elif item == REVERSED:
            out.append(dim)
            kinds[dim] = Kind.RESTORE
        else:
            kinds[dim] = Kind.WHOLE
            out += [dim] * isinstance(item, Span)
    return Factors((labels, *[()] * (len(types) - 1)), tuple(out), kinds)


def _touched_text(problem: Problem) -> str:
    return _gather_text(problem.types[0], _indices_type(problem))


def _gather_text(operand: ArrayType, indices: str) -> str:
    return (
        "Use `.at[...].get(out_sharding=)` to provide output PartitionSpec for the gather indexing as out sharding "
        "could not be resolved unambiguously (or would require collectives on inputs). "
        f"Got operand={operand!r}, indices={indices}\n"
        "In cuplace: gather the dimension first with reshard(x, NamedSharding(mesh, P(...))), then index; to look at "
        "values, index numpy.asarray(x)."
    )


def _indices_type(problem: Problem) -> str:
    """The type that JAX shows for static indices: one column an indexed dimension, one row an element of a stride."""
    items = [item for item in problem.params["index"] if item is not None]
    touched = [(item, n) for item, n in zip(items, problem.types[0].shape, strict=True) if item != FULL]
    strided = [(item, n) for item, n in touched if isinstance(item, Span) and item.step != 1]
    rows = "".join(f"{_length(item, n)}," for item, n in strided)
    return f"ShapedArray(int32[{rows}{len(touched)}])"


def _compute(xp: Any, x: Any, *integers: Any, index: Index) -> Any:
    rest = map(int, integers)
    return x[
        tuple([
            item.slice() if isinstance(item, Span) else next(rest) if item is GIVEN else item for item in index
        ])
    ]  # fmt: skip


GETITEM = Op("gather", _infer, Rule(_factors, whole=_touched_text), _compute, view=True)
"""Operands: an array, and a number for each GIVEN of the index. Params: ``index`` (an `Index`). Only dimensions that
are taken whole may be sharded."""


# --- positions given by an array ---------------------------------------------------------------------------


def _take_infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    x, indices = types
    axis = params["axis"]
    if x.shape[axis] == 0 and indices.size:
        raise errors.ArrayIndexError("cannot do a non-empty take from an empty axes.")
    return OutType(x.shape[:axis] + indices.shape + x.shape[axis + 1 :], x.dtype, x.weak_type)


def _take_factors(types: tuple[ArrayType, ...], params: Params) -> Factors:
    x, indices = types
    axis = params["axis"]
    mine: Labels = tuple([("x", i) for i in range(x.ndim)])
    theirs: Labels = tuple([("indices", i) for i in range(indices.ndim)])
    kinds = {("x", axis): Kind.WHOLE} | dict.fromkeys(theirs, Kind.WHOLE)
    return Factors((mine, theirs), mine[:axis] + theirs + mine[axis + 1 :], kinds)


def _take_text(problem: Problem) -> str:
    return _gather_text(problem.types[0], repr(problem.types[1]))


def _take(xp: Any, x: Any, indices: Any, *, axis: int, fill: bool) -> Any:
    size = x.shape[axis]
    if size == 0:
        return xp.take(x, indices, axis=axis)
    wrapped = xp.where(indices < 0, indices + size, indices)
    taken = xp.take(x, xp.clip(wrapped, 0, size - 1), axis=axis)
    if not fill:
        return taken
    inside = ((wrapped >= 0) & (wrapped < size)).reshape(indices.shape + (1,) * (x.ndim - axis - 1))
    return xp.where(inside, taken, _filler(x.dtype))


def _filler(dtype: np.dtype) -> Any:
    """What stands for a missing element: NaN, the smallest signed or the largest unsigned integer, True."""
    if dtype.kind == "i":
        return dtype.type(np.iinfo(dtype).min)
    if dtype.kind == "u":
        return dtype.type(np.iinfo(dtype).max)
    return dtype.type(1) if dtype.kind == "b" else dtype.type(np.nan)


TAKE = Op("gather", _take_infer, Rule(_take_factors, whole=_take_text), _take)
"""Operands: an array and an integer array of positions. Params: ``axis``; ``fill``, what positions out of range give:
NaN or the like, else the nearest element. Positions may count from the end. They are not known when the operation is
called, so that those out of range cannot be an error."""
