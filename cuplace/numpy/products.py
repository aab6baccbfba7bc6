"""Products of matrices and tensors.

Operands are promoted to one dtype, which the result has; float16 and bfloat16 are summed in float32. The result
is sharded as the free dimensions of the operands are. A dimension that is summed over may be sharded on one side;
where it is on both, ``out_sharding`` must say where the sum shall go (Explicit axes).

All functions raise TypeError where summed dimensions differ in size, and ShardingTypeError where the shardings
leave the result's open.

    >>> import cuplace.numpy as jnp
    >>> jnp.matmul(jnp.ones((2, 3)), jnp.ones(3))
    Array([3., 3.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.array import Array
from cuplace.numpy.layout import out_sharding as wanted_sharding
from cuplace.numpy.layout import permuted
from cuplace.numpy.promotion import cast, promote
from cuplace.ops import elementwise as elementwise_ops
from cuplace.ops.contraction import DOT_GENERAL, DotDims
from cuplace.ops.manipulation import TRANSPOSE
from cuplace.ops.reshape import RESHAPE
from cuplace.ops.shapes import normalize_axis
from cuplace.placement.sharding import NamedSharding
from cuplace.staging.eager import eager
from cuplace.staging.trace import bind
from cuplace.staging.tracer import Tracer


def _operands(a: Tracer, b: Tracer, dtype: np.dtype | None) -> list[Tracer]:
    return promote(a, b) if dtype is None else [cast(a, dtype), cast(b, dtype)]


def _transposed(x: Tracer, order: Sequence[int], sharding: NamedSharding | None = None) -> Tracer:
    if tuple(order) == tuple(range(x.ndim)):
        return x
    return bind(TRANSPOSE, x, permutation=tuple(order), out_sharding=sharding)


# --- matmul ------------------------------------------------------------------------------------------------


@eager("matmul")
def plain_matmul(a: Any, b: Any, /) -> Any:
    """`matmul` without options, which is called quicker."""
    return _matrix_product(a, b, None, None)


@eager("matmul", static=("dtype", "sharding"))
def _matmul(a: Any, b: Any, /, dtype: Any, sharding: Any) -> Any:
    return _matrix_product(a, b, dtype, sharding)


def _matrix_product(a: Tracer, b: Tracer, dtype: np.dtype | None, sharding: NamedSharding | None) -> Tracer:
    for position, x in enumerate((a, b)):
        if x.ndim == 0:
            raise errors.BroadcastError(f"matmul input operand {position} must have ndim at least 1, but it has ndim 0")
    a, b = _operands(a, b, dtype)
    if a.ndim == 1 or b.ndim == 1 or (a.ndim == 2 and b.ndim == 2):
        dims = DotDims((a.ndim - 1,), (max(b.ndim - 2, 0),))
        out = bind(DOT_GENERAL, a, b, dims=dims, out_sharding=sharding if a.ndim == 2 or b.ndim < 3 else None)
        return _matrix_dims_last(out, a, b, sharding)
    return _batched(a, b, sharding)


def _matrix_dims_last(out: Tracer, a: Tracer, b: Tracer, sharding: NamedSharding | None) -> Tracer:
    """Bring the batch dimensions of the right operand, which follow the rows, before them."""
    if b.ndim < 3 or a.ndim != 2:
        return out
    order = (*range(1, out.ndim - 1), 0, out.ndim - 1)
    return _transposed(out, order, sharding)


def _batched(a: Tracer, b: Tracer, sharding: NamedSharding | None) -> Tracer:
    """A matrix product over leading dimensions, which are broadcast against each other."""
    rank = max(a.ndim, b.ndim) - 2
    batch_a, batch_b = (1,) * (rank + 2 - a.ndim) + a.shape[:-2], (1,) * (rank + 2 - b.ndim) + b.shape[:-2]
    if any(m != n and 1 not in (m, n) for m, n in zip(batch_a, batch_b, strict=True)):
        raise errors.BroadcastError(f"Incompatible types for matmul arguments: {a.type} and {b.type}")
    shared = [i for i in range(rank) if batch_a[i] == batch_b[i]]
    only_a = [i for i in range(rank) if batch_a[i] != batch_b[i] and batch_b[i] == 1]
    only_b = [i for i in range(rank) if batch_a[i] != batch_b[i] and batch_a[i] == 1]
    left = _squeezed(a, batch_a, [i for i in range(rank) if i not in only_b])
    right = _squeezed(b, batch_b, [i for i in range(rank) if i not in only_a])
    kept_a = [i for i in range(rank) if i not in only_b]
    kept_b = [i for i in range(rank) if i not in only_a]
    dims = DotDims(
        (left.ndim - 1,),
        (right.ndim - 2,),
        tuple([kept_a.index(i) for i in shared]),
        tuple([kept_b.index(i) for i in shared]),
    )
    made = [*shared, *only_a, rank, *only_b, rank + 1]
    order = [made.index(i) for i in range(rank + 2)]
    out = bind(DOT_GENERAL, left, right, dims=dims, out_sharding=permuted(sharding, order))
    return _transposed(out, order, sharding)


def _squeezed(x: Tracer, batch: tuple[int, ...], kept: Sequence[int]) -> Tracer:
    shape = tuple([batch[i] for i in kept]) + x.shape[-2:]
    return x if shape == x.shape else bind(RESHAPE, x, shape=shape)


def matmul(
    a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None
) -> Array:
    """The product of matrices (the last two dimensions), over leading dimensions that are broadcast.

    A 1-D operand is a row on the left, a column on the right, and its dimension is dropped again.

    Args:
        a: an array of at least one dimension.
        b: an array of at least one dimension.
        precision: accepted for JAX's sake; products are exact to the dtype.
        preferred_element_type: a dtype in which to compute, and of the result.
        out_sharding: a NamedSharding, or a spec on the context mesh, of the result.

    Raises:
        BroadcastError: a ValueError, for a scalar, and for leading dimensions that do not fit.
        IncompatibleShapesError: a TypeError, where columns of ``a`` and rows of ``b`` differ in number.
        ShardingTypeError: a TypeError, where the result's sharding is left open.

    Example:
        >>> import cuplace.numpy as jnp
        >>> jnp.matmul(jnp.eye(2), jnp.arange(2))
        Array([0., 1.], dtype=float32)
    """
    if preferred_element_type is None and out_sharding is None:
        return plain_matmul(a, b)
    return _matmul(a, b, dtypes.requested_or_none(preferred_element_type, "matmul"), wanted_sharding(out_sharding))


# --- dot and its kin ---------------------------------------------------------------------------------------


@eager("dot", static=("dtype", "sharding"))
def _dot(a: Any, b: Any, /, dtype: Any, sharding: Any) -> Any:
    a, b = _operands(a, b, dtype)
    if a.ndim == 0 or b.ndim == 0:
        return bind(elementwise_ops.MUL, a, b, out_sharding=sharding)
    dims = DotDims((a.ndim - 1,), (max(b.ndim - 2, 0),))
    return bind(DOT_GENERAL, a, b, dims=dims, out_sharding=sharding)


def dot(
    a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None
) -> Array:
    """The sum of products over the last dimension of ``a`` and the last but one of ``b``; see `matmul`."""
    return _dot(a, b, dtypes.requested_or_none(preferred_element_type, "dot"), wanted_sharding(out_sharding))


@eager("vdot", static=("dtype",))
def _vdot(a: Any, b: Any, /, dtype: Any) -> Any:
    left = bind(elementwise_ops.CONJ, a) if dtypes.is_complex(a.dtype) else a
    a, b = (bind(RESHAPE, x, shape=(x.size,)) for x in (left, b))
    return bind(DOT_GENERAL, *_operands(a, b, dtype), dims=DotDims((0,), (0,)))


def vdot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """The sum of products of the flattened operands, of which the first is conjugated."""
    return _vdot(a, b, dtypes.requested_or_none(preferred_element_type, "vdot"))


@eager("inner", static=("dtype",))
def _inner(a: Any, b: Any, /, dtype: Any) -> Any:
    a, b = _operands(a, b, dtype)
    if a.ndim == 0 or b.ndim == 0:
        return bind(elementwise_ops.MUL, a, b)
    return bind(DOT_GENERAL, a, b, dims=DotDims((a.ndim - 1,), (b.ndim - 1,)))


def inner(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """The sum of products over the last dimension of both operands."""
    return _inner(a, b, dtypes.requested_or_none(preferred_element_type, "inner"))


@eager("outer")
def outer(a: Any, b: Any) -> Any:
    """All products of an element of the flattened ``a`` (rows) with one of the flattened ``b`` (columns)."""
    a, b = promote(a, b)
    return bind(elementwise_ops.MUL, bind(RESHAPE, a, shape=(a.size, 1)), bind(RESHAPE, b, shape=(1, b.size)))


@eager("tensordot", static=("axes", "dtype", "sharding"))
def _tensordot(a: Any, b: Any, /, axes: Any, dtype: Any, sharding: Any) -> Any:
    a, b = _operands(a, b, dtype)
    if isinstance(axes, int):
        if axes > min(a.ndim, b.ndim):
            raise errors.IncompatibleShapesError(
                "Number of tensordot axes (axes) must not exceed the number of dimensions of the operands, "
                f"got {axes} and shapes {a.shape} and {b.shape}."
            )
        axes = (tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes)))
    left = tuple([normalize_axis(axis, a.ndim) for axis in axes[0]])
    right = tuple([normalize_axis(axis, b.ndim) for axis in axes[1]])
    if len(left) != len(right):
        raise errors.IncompatibleShapesError(f"tensordot requires axes lists to have equal length, got {axes}.")
    return bind(DOT_GENERAL, a, b, dims=DotDims(left, right), out_sharding=sharding)


def tensordot(
    a: Any,
    b: Any,
    axes: Any = 2,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Array:
    """The sum of products over the last ``axes`` dimensions of ``a`` and the first of ``b``, or over two lists of them.

    Raises:
        IncompatibleShapesError: a TypeError, where the summed dimensions do not match.
        AxisArgumentError: a ValueError, for an axis out of range.
    """
    dtype = dtypes.requested_or_none(preferred_element_type, "tensordot")
    return _tensordot(a, b, _static_axes(axes), dtype, wanted_sharding(out_sharding))


def _static_axes(axes: Any) -> Any:
    if not isinstance(axes, list | tuple):
        return int(axes)
    return tuple([tuple(side) if isinstance(side, list | tuple) else (side,) for side in axes])
