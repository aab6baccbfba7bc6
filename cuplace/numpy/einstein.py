"""``einsum``: sums of products, written as the letters of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.array import Array
from cuplace.numpy.layout import out_sharding as wanted_sharding
from cuplace.numpy.layout import permuted
from cuplace.numpy.promotion import cast, number, promote
from cuplace.ops import elementwise as elementwise_ops
from cuplace.ops.contraction import DOT_GENERAL, DotDims
from cuplace.ops.creation import EYE
from cuplace.ops.manipulation import TRANSPOSE
from cuplace.ops.reductions import REDUCE_SUM
from cuplace.ops.reshape import RESHAPE
from cuplace.placement.sharding import NamedSharding
from cuplace.staging.eager import eager
from cuplace.staging.trace import bind
from cuplace.staging.tracer import Tracer


class Term(NamedTuple):
    """An operand, or a product of some, with a letter for each dimension."""

    letters: str
    value: Tracer


def einsum(
    subscripts: str,
    /,
    *operands: Any,
    out: None = None,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Sum products over the letters that the result lacks: ``einsum('ij,jk->ik', a, b)`` is the matrix product.

    Without ``->`` the result has the letters that occur once, in alphabetical order; ``...`` stands for leading
    dimensions. Operands are multiplied pairwise, in an order that needs few operations; ``optimize`` and
    ``precision`` are accepted for JAX's sake.

    Raises:
        SubscriptsError: a ValueError, for letters that do not fit the operands.
        ShardingTypeError: a TypeError, where a dimension that is summed over is sharded on both sides and
            ``out_sharding`` does not say where the sum shall go (Explicit axes).

    Example:
        >>> import cuplace.numpy as jnp
        >>> einsum('i,i', jnp.arange(3), jnp.arange(3))
        Array(5, dtype=int32)
    """
    if not isinstance(subscripts, str):
        raise errors.SubscriptsError(f"einsum takes its letters first, as a string; got {type(subscripts)}.")
    dtype = dtypes.requested_or_none(preferred_element_type, "einsum")
    return _einsum(operands, subscripts.replace(" ", ""), dtype, wanted_sharding(out_sharding))


@eager("_einsum", static=("subscripts", "dtype", "sharding"), sequences=("operands",))
def _einsum(operands: Any, subscripts: str, dtype: Any, sharding: Any) -> Any:
    inputs, output = _letters(subscripts, [x.ndim for x in operands])
    values = promote(*operands) if dtype is None else [cast(x, dtype) for x in operands]
    sizes = _sizes(inputs, [value.shape for value in values])
    terms = [
        _summed(_diagonal(_stretched(Term(letters, value), sizes)), _others(inputs, i) + output)
        for i, (letters, value) in enumerate(zip(inputs, values, strict=True))
    ]
    for pair in _order(terms, output):
        joined = [terms.pop(i) for i in sorted(pair, reverse=True)]
        needed = "".join(term.letters for term in terms) + output
        terms.append(_product(joined, needed, output, None if terms else sharding))
    (term,) = terms
    return _arranged(term, output, sharding)


def _others(inputs: Sequence[str], i: int) -> str:
    return "".join(letters for j, letters in enumerate(inputs) if j != i)


def _letters(subscripts: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, with ``...`` replaced by capital letters that are free."""
    left, arrow, right = subscripts.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(ranks):
        raise errors.SubscriptsError(
            f"einsum got letters for {len(inputs)} operands, {subscripts!r}, but {len(ranks)} operands."
        )
    spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c not in subscripts]
    widest = max((rank - len(s.replace("...", "")) for s, rank in zip(inputs, ranks, strict=True) if "..." in s),
                 default=0)  # fmt: skip
    dots = "".join(spare[: max(widest, 0)])
    named = [_spelt(s, rank, dots) for s, rank in zip(inputs, ranks, strict=True)]
    if not arrow:
        once = sorted(c for c in set(left) - set(",.") if left.count(c) == 1)
        return named, dots + "".join(once)
    output = right.replace("...", dots)
    known = set("".join(named))
    if len(set(output)) != len(output) or not set(output) <= known:
        raise errors.SubscriptsError(f"The result of einsum({subscripts!r}) repeats a letter, or has one of its own.")
    return named, output


def _spelt(letters: str, rank: int, dots: str) -> str:
    missing = rank - len(letters.replace("...", ""))
    named = letters.replace("...", dots[len(dots) - missing :] if missing > 0 else "")
    if len(named) != rank or (not named.isalpha() and rank):
        raise errors.SubscriptsError(f"einsum got the letters {letters!r} for an operand of {rank} dimensions.")
    return named


def _sizes(inputs: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The size that each letter stands for; dimensions of size 1 fit any."""
    sizes: dict[str, int] = {}
    for i, (letters, shape) in enumerate(zip(inputs, shapes, strict=True)):
        for letter, size in zip(letters, shape, strict=True):
            known = sizes.get(letter, 1)
            if size != known and 1 not in (size, known):
                raise errors.SubscriptsError(
                    f"Size of label '{letter}' for operand {i} ({size}) does not match previous terms ({known})."
                )
            sizes[letter] = size if known == 1 else known
    return sizes


def _stretched(term: Term, sizes: dict[str, int]) -> Term:
    """A term without its dimensions of size 1 that others stretch: the products are the same without them."""
    kept = [i for i, (c, n) in enumerate(zip(term.letters, term.value.shape, strict=True)) if n == sizes[c]]
    if len(kept) == len(term.letters):
        return term
    shape = tuple([term.value.shape[i] for i in kept])
    return Term("".join(term.letters[i] for i in kept), bind(RESHAPE, term.value, shape=shape))


def _order(terms: Sequence[Term], output: str) -> list[tuple[int, ...]]:
    """Which terms are multiplied, in turn; NumPy finds an order of few operations."""
    if len(terms) <= 2:
        return [(0, 1)] if len(terms) == 2 else []
    shapes = [np.broadcast_to(np.int8(0), term.value.shape) for term in terms]
    subscripts = f"{','.join(term.letters for term in terms)}->{output}"
    path = np.einsum_path(subscripts, *shapes, optimize="greedy")[0][1:]
    return [pair for step in path for pair in ([step] if len(step) == 2 else [(0, 1)] * (len(step) - 1))]


def _diagonal(term: Term) -> Term:
    """Replace a letter that occurs twice in an operand by one, by taking the diagonal."""
    letters, x = term
    for letter in sorted(set(letters)):
        while letters.count(letter) > 1:
            i = letters.index(letter)
            j = letters.index(letter, i + 1)
            shape = tuple([x.shape[d] if d in (i, j) else 1 for d in range(x.ndim)])
            mask = bind(RESHAPE, bind(EYE, shape=(x.shape[i], x.shape[j]), dtype=dtypes.BOOL, k=0), shape=shape)
            kept = bind(elementwise_ops.SELECT, mask, x, number(0, x))
            x = bind(REDUCE_SUM, kept, axes=(j,), keepdims=False)
            letters = letters[:j] + letters[j + 1 :]
    return Term(letters, x)


def _summed(term: Term, needed: str) -> Term:
    """Sum over the letters that nothing else has."""
    axes = tuple([i for i, letter in enumerate(term.letters) if letter not in needed])
    if not axes:
        return term
    kept = "".join(letter for letter in term.letters if letter in needed)
    return Term(kept, bind(REDUCE_SUM, term.value, axes=axes, keepdims=False))


def _product(pair: Sequence[Term], needed: str, output: str, sharding: NamedSharding | None) -> Term:
    """The product of two terms, summed over the letters that only they have."""
    left, right = (_summed(term, other.letters + needed) for term, other in (pair, pair[::-1]))
    shared = [letter for letter in left.letters if letter in right.letters]
    batch = [letter for letter in shared if letter in needed]
    summed = [letter for letter in shared if letter not in needed]
    dims = DotDims(*(tuple([term.letters.index(letter) for letter in letters])
                     for letters in (summed, batch) for term in (left, right)))  # fmt: skip
    free = [c for term in (left, right) for c in term.letters if c not in shared]
    letters = "".join(batch + free)
    where = permuted(sharding, [letters.index(c) for c in output]) if sorted(letters) == sorted(output) else None
    return Term(letters, bind(DOT_GENERAL, left.value, right.value, dims=dims, out_sharding=where))


def _arranged(term: Term, output: str, sharding: NamedSharding | None) -> Tracer:
    """The dimensions in the order of the result."""
    if term.letters == output and sharding is None:
        return term.value
    order = tuple([term.letters.index(letter) for letter in output])
    return bind(TRANSPOSE, term.value, permutation=order, out_sharding=sharding)
