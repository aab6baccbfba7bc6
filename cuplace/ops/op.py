"""``Op``: one operation on arrays, as one frozen record.

A record says everything that the rest of the library needs to know about an operation: the type of its
result, how it may be sharded, how one shard of it is computed, and what that costs. Nothing else in the
library knows any operation by name, so that a new one is added by writing one record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cuplace.array.type import ArrayType
from cuplace.ops.factors import Rule
from cuplace.placement.box import Box
from cuplace.runtime.task import Cost

Shape = tuple[int, ...]
Params = Mapping[str, Any]

OUT_SHARDING = "out_sharding"
"""The parameter, of any operation, that says where the user wants the result (a NamedSharding or None). It steers
``rule.resolve`` and never reaches ``compute``."""


class OutType(NamedTuple):
    """What ``infer`` answers: everything about a result except its placement, which ``rule.resolve`` gives."""

    shape: Shape
    dtype: np.dtype
    weak_type: bool = False


def size_of(shape: Shape) -> int:
    """The number of elements of an array of this shape."""
    return math.prod(shape)


def elementwise_cost(types: tuple[ArrayType, ...], out: OutType, params: Params) -> Cost:
    """One operation an element of the result; all operands are read once and the result is written once."""
    moved = sum(size_of(t.shape) * t.dtype.itemsize for t in types) + size_of(out.shape) * out.dtype.itemsize
    return Cost(float(size_of(out.shape)), float(moved))


@dataclass(frozen=True, eq=False)
class Op:
    """One operation. Records are compared by identity, and made once, at module level.

    Attributes:
        name: the name that error texts use; it is JAX's (``add``, ``dot_general``, ``reduce_sum``).
        infer: ``infer(types, params) -> OutType``. Raises JAX's shape and dtype errors. All operands have
            been converted to one dtype before, except where the operation says so.
        rule: how it may be sharded (see `cuplace.ops.factors` and `cuplace.ops.rule`).
        compute: ``compute(xp, *arrays, **params) -> array``, written against the array module ``xp``, which
            is NumPy or anything that mirrors it. It computes one shard, or the whole array where nothing is
            sharded, and gives exactly the dtype that ``infer`` told. The result may be a view of an operand
            where the operation only rearranges. The caller has floating-point warnings of NumPy switched off
            (``np.errstate(all="ignore")``).
        ufunc: the name of a function of ``xp`` that computes the operation elementwise and takes ``out=``,
            with no parameters; None where there is none.
        elementwise: each element of the result depends only on the elements at the same place of the
            operands (after broadcasting), so that the operation may be evaluated block by block.
        localize: ``localize(params, in_shapes, box) -> params``: the parameters for the shard of the result
            that covers ``box`` of it, made from operand shards of ``in_shapes``. None where parameters hold
            no shapes.
        positional: the local parameters depend on where the shard lies and not only on its shape.
        cost: ``cost(types, out, params) -> Cost`` of a call on whole arrays; pass local types for a shard.
        view: the result usually shares memory with the first operand.
        into: ``into(xp, out, *arrays, **params)``: computes the same into a contiguous array that is there already.
            None where that would save nothing.
        library: computed by a library that runs its own threads (a backend's ``library`` hook).
    """

    name: str
    infer: Callable[[tuple[ArrayType, ...], Params], OutType]
    rule: Rule
    compute: Callable[..., Any]
    ufunc: str | None = None
    elementwise: bool = False
    localize: Callable[[Params, tuple[Shape, ...], Box], Params] | None = None
    positional: bool = False
    cost: Callable[[tuple[ArrayType, ...], OutType, Params], Cost] = elementwise_cost
    view: bool = False
    into: Callable[..., None] | None = None
    library: bool = False

    def local_params(self, params: Params, in_shapes: tuple[Shape, ...], box: Box) -> dict[str, Any]:
        """The parameters with which ``compute`` makes the part ``box`` of the result.

        Args:
            params: the parameters of the whole operation.
            in_shapes: the shapes of the operand shards at hand.
            box: the part of the result (before any combination of partial results) to be computed.
        """
        kept = {name: value for name, value in params.items() if name != OUT_SHARDING}
        return kept if self.localize is None else dict(self.localize(kept, in_shapes, box))

    def __repr__(self) -> str:
        return f"Op({self.name})"
