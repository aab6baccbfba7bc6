"""``Factors``: which dimensions of the operands and of the result of an operation go together.

Every dimension is labelled by a *factor*, as the letters of an einsum label dimensions. A matrix product is
``i k, k j -> i j``: the result may be sharded along ``i`` as the left operand is; along ``k`` each shard
gives a partial sum. One mechanism (`cuplace.ops.rule`) reads these labels and decides for every operation.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuplace.array.type import ArrayType
    from cuplace.placement.spec import PartitionSpec

Factor = Hashable
Labels = tuple[Factor | None, ...]
Params = Mapping[str, Any]


class Kind(Enum):
    """What happens to a dimension that arrives sharded."""

    PASS = "the result is sharded alike; shards are computed independently"
    REDUCE = "each shard gives a partial result; they are combined"
    WHOLE = "an error on Explicit axes; on Auto axes the dimension is gathered first"
    GATHER = "the dimension is gathered first"
    RESTORE = "the dimension is gathered first, and the result is sharded again as it was"


@dataclass(frozen=True)
class Factors:
    """The labels of one call.

    Attributes:
        operands: for each operand, the factor of each dimension. None: a dimension that takes no part (of
            size 1, say); it is gathered where it is sharded.
        out: the factor of each dimension of the result. None: never sharded by the operation itself.
        kinds: the kind of the factors that do not simply pass through.
        combine: how the partial results of reduced factors are combined (a key of
            `cuplace.ops.reductions.COMBINERS`).

    Example, ``sum(x, axis=1)`` of a matrix:
        >>> Factors((("i", "j"),), ("i",), {"j": Kind.REDUCE}, "sum").out
        ('i',)
    """

    operands: tuple[Labels, ...]
    out: Labels
    kinds: Mapping[Factor, Kind] = field(default_factory=dict)
    combine: str | None = None

    def kind(self, factor: Factor) -> Kind:
        return self.kinds.get(factor, Kind.PASS)


@dataclass(frozen=True)
class Problem:
    """What an error text may speak about when an operation cannot be sharded as its operands are.

    Attributes:
        name: the operation's name.
        types: the operands' types.
        specs: the Explicit part of the operands' specs, full rank.
        params: the call's parameters.
        out_shape: the shape of the result.
        operand, dim: the dimension in question, for problems with one dimension.
        entries: what the operands say of the factor in question, each None or a tuple of axis names.
    """

    name: str
    types: tuple[ArrayType, ...]
    specs: tuple[PartitionSpec, ...]
    params: Params
    out_shape: tuple[int, ...]
    operand: int = 0
    dim: int = 0
    entries: tuple[tuple[str, ...] | None, ...] = ()


def merging_text(problem: Problem) -> str:
    """For operands that disagree, in operations that merge specs: JAX's text."""
    rank = len(problem.out_shape)
    full = [(None,) * (rank - len(spec)) + tuple(spec) for spec in problem.specs if len(spec)]
    return (
        f"{problem.name} got incompatible shardings for broadcasting: {', '.join(map(str, full))}.\n"
        "Lay one operand out as the other is first: y = reshard(y, x.sharding)"
    )


def whole_text(problem: Problem) -> str:
    """For a sharded dimension that must be whole, where JAX has no text of its own."""
    kind = problem.types[problem.operand]
    return f"{problem.name} needs dimension {problem.dim} of its operand unsharded. Got operand type: {kind}"


def no_objection(problem: Problem) -> str | None:
    """The default of `Rule.refuse`: nothing beyond what the factors say."""
    return None


@dataclass(frozen=True)
class Rule:
    """The sharding rule of a record.

    Attributes:
        factors: ``factors(types, params) -> Factors``.
        same: operands that are placed on a mesh must all be sharded alike (``select``, ``concatenate``);
            otherwise specs merge: for each dimension, all that are not None must be equal.
        conflict: the text of the error for operands that disagree.
        whole: the text of the error for a sharded dimension that must be whole, or that cannot be divided.
        refuse: a reason of this operation's own to refuse Explicit specs (asked only where no
            ``out_sharding`` was given), or None.
        custom: ``custom(call) -> Resolution``, instead of the general algorithm (`cuplace.ops.rule.Call`).
    """

    factors: Callable[[tuple[ArrayType, ...], Params], Factors]
    same: bool = False
    conflict: Callable[[Problem], str] = merging_text
    whole: Callable[[Problem], str] = whole_text
    refuse: Callable[[Problem], str | None] = no_objection
    custom: Callable[[Any], Any] | None = None
