"""scan: a loop whose body is traced once and runs as a part of the program around it."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import optree

from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.pytree import flatten, map_leaves, unflatten
from cuplace.array.type import ArrayType, typeof
from cuplace.ops.convert import CONVERT
from cuplace.placement.mesh import AxisType
from cuplace.placement.spec import PartitionSpec
from cuplace.runtime.context import context_key
from cuplace.staging.arguments import argument_names
from cuplace.staging.carry import check_carry, same_structure
from cuplace.staging.jit import function_name, function_source
from cuplace.staging.loop import SCAN
from cuplace.staging.operand import is_scalar, quick_key
from cuplace.staging.program import Program
from cuplace.staging.staged import Bound, Staged, keep
from cuplace.staging.trace import Trace, bind, current, lift, recording
from cuplace.staging.tracer import Tracer

_staged: weakref.WeakKeyDictionary[Any, tuple[Staged, dict[Any, Bound]]] = weakref.WeakKeyDictionary()


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: int | None = None,
    reverse: bool = False, unroll: int | bool = 1,
) -> tuple[Any, Any]:  # fmt: skip
    """Run ``carry, y = f(carry, x)`` for each ``x`` along the leading dimension of ``xs``.

    ``f`` is traced once. The loop runs where its committed operands are, as one program.

    Args:
        f: the body; it gets the carry and an element of ``xs``, and returns the next carry and a result.
        init: the first carry, a pytree of arrays and numbers.
        xs: what is looped over, a pytree of arrays of one leading size; None loops ``length`` times.
        length: how many iterations, where ``xs`` does not tell.
        reverse: start with the last element.
        unroll: accepted for JAX's sake; there is no compiler that it could guide.

    Returns:
        The last carry, and the results stacked along a new leading dimension.

    Raises:
        LoopError: a ValueError, for no length, lengths that differ, or a sharded leading dimension.
        LoopTypeError: a TypeError; ``f`` is no function, or does not return a pair.
        CarryTypeError: a TypeError; the carry changes its type or its structure.
        IncompatibleDevicesError: a ValueError, where operands are committed to different devices or the body moves
            data to others.

    >>> import cuplace, cuplace.numpy as jnp
    >>> cuplace.lax.scan(lambda total, x: (total + x, total), 0.0, jnp.arange(4.0))
    (Array(6., dtype=float32), Array([0., 0., 1., 3.], dtype=float32))
    """
    if not callable(f):
        raise errors.LoopTypeError("lax.scan: f argument should be a callable.")
    leaves, structure = flatten((init, xs))
    num_carry = len(optree.tree_leaves(init))
    count = _length(leaves[num_carry:], length)
    key = (structure, count, bool(reverse))

    def body(tracers: Sequence[Tracer]) -> Any:
        inner_init, inner_xs = unflatten(structure, tracers)
        return record_scan(f, inner_init, inner_xs, count, bool(reverse))

    if current.trace is not None:
        return body([lift(leaf) for leaf in leaves])
    return _run(f, body, key, leaves)


def _run(f: Callable[..., Any], body: Callable[..., Any], key: Any, leaves: list[Any]) -> Any:
    """The loop as an eager call of the name ``scan``, kept as long as ``f`` lives."""
    staged, bound = _of(f)
    full = (key, tuple([quick_key(leaf) for leaf in leaves]), context_key())
    found = bound.get(full)
    if found is None:
        found = staged.bind(key, leaves, lambda: [f"args[{i}]" for i in range(len(leaves))], body, passes=False)
        keep(bound, full, found)
    return found(leaves)


def _of(f: Callable[..., Any]) -> tuple[Staged, dict[Any, Bound]]:
    try:
        found = _staged.get(f)
        if found is None:
            found = _staged[f] = Staged("scan", function_source(f)), {}
        return found
    except TypeError:  # not hashable, or not weakly referable
        return Staged("scan", function_source(f)), {}


def _length(xs: Sequence[Any], length: Any) -> int:
    shapes = []
    for x in xs:
        shape = () if is_scalar(x) else typeof(x).shape
        if not shape:
            raise errors.LoopError(f"scan got value with no leading axis to scan over: {x}.")
        shapes.append(shape)
    sizes = list(dict.fromkeys(shape[0] for shape in shapes))
    if length is not None:
        if getattr(type(length), "_is_tracer", False):
            raise length._not_concrete(
                "The `length` argument to `scan` expects a concrete `int` value. For scan-like iteration with a "
                "dynamic length, use `while_loop` or `fori_loop`."
            )
        try:
            given = operator.index(length)
        except TypeError:
            raise errors.LoopTypeError(f"The `length` argument to `scan` is an int, got {length!r}.") from None
        if any(size != given for size in sizes):
            raise errors.LoopError(
                f"scan got `length` argument of {given} which disagrees with leading axis sizes {sizes}."
            )
        return max(given, 0)
    if len(sizes) > 1:
        raise errors.LoopError(
            f"scan got values with different leading axis sizes: {', '.join(map(str, sizes))}."
        )
    if not sizes:
        raise errors.LoopError("scan got no values to scan over and `length` not provided.")
    return sizes[0]


def record_scan(f: Callable[..., Any], init: Any, xs: Any, length: int, reverse: bool) -> Any:
    """Record the loop in the trace that is going on."""
    carry, carry_structure = flatten(init)
    inputs, xs_structure = flatten(xs)
    elements = [_element_type(x.type) for x in inputs]

    body, structure = _trace_body(f, carry_structure, xs_structure, [c.type for c in carry], elements)
    promoted = _promoted([c.type for c in carry], [atom.type for atom in body.outputs[: len(carry)]])
    if promoted is not None:
        carry = [bind(CONVERT, c, dtype=t.dtype, weak_type=t.weak_type) for c, t in zip(carry, promoted, strict=True)]
        body, structure = _trace_body(f, carry_structure, xs_structure, promoted, elements)
    outputs = [atom.type for atom in body.outputs]
    check_carry(argument_names(f, _pair(carry_structure, xs_structure)), [c.type for c in carry], outputs)

    trace = current.trace
    assert trace is not None
    stacked = [_stacked_type(of, length) for of in outputs[len(carry) :]]
    results = trace.emit(
        SCAN,
        tuple([trace.atom(value) for value in (*body.constants, *carry, *inputs)]),
        [*[c.type for c in carry], *stacked],
        {"body": body, "num_carry": len(carry), "length": length, "reverse": reverse},
    )
    return unflatten(structure, results)


def _trace_body(
    f: Callable[..., Any], carry_structure: Any, xs_structure: Any, carry: Sequence[ArrayType],
    elements: Sequence[ArrayType],
) -> tuple[Program, Any]:  # fmt: skip
    outer = current.trace
    assert outer is not None

    def names() -> list[str]:
        return argument_names(f, _pair(carry_structure, xs_structure))

    trace = Trace(function_name(f), function_source(f), [*carry, *elements], names, outer.mesh, outer)
    with recording(trace):
        tracers = trace.input_tracers()
        inner_carry = unflatten(carry_structure, tracers[: len(carry)])
        x = unflatten(xs_structure, tracers[len(carry) :])
        result = f(inner_carry, x)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise errors.LoopTypeError(f"scan body output must be a pair, got {_shown(result)}.")
        same_structure(names(), carry_structure, result[0])
        leaves, structure = flatten((result[0], result[1]))
        return trace.close([trace.atom(leaf) for leaf in leaves]), structure


def _pair(carry_structure: Any, xs_structure: Any) -> Any:
    """The structure of the body's arguments, as ``argument_names`` wants it."""
    trees = [structure.unflatten([0] * structure.num_leaves) for structure in (carry_structure, xs_structure)]
    return optree.tree_structure((tuple(trees), {}))


def _shown(result: Any) -> str:
    return str(map_leaves(lambda leaf: typeof(leaf) if not isinstance(leaf, str) else leaf, result))


def _element_type(of: ArrayType) -> ArrayType:
    """The type of one element of an input. Raises LoopError where the leading dimension is sharded."""
    first = of.spec.entries[0]
    if of.mesh is not None and isinstance(first, tuple):
        kinds = dict(zip(of.mesh.axis_names, of.mesh.axis_types, strict=True))
        if any(kinds[axis] is AxisType.Explicit for axis in first):
            raise errors.LoopError(
                f"0th dimension of all xs should be replicated. Got {of.spec}\n"
                "Lay the input out anew first, with reshard and None for its first dimension."
            )
    return of.update(shape=of.shape[1:], spec=PartitionSpec(*of.spec.entries[1:]))


def _stacked_type(of: ArrayType, length: int) -> ArrayType:
    return of.update(shape=(length, *of.shape), spec=PartitionSpec(None, *of.spec.entries))


def _promoted(given: Sequence[ArrayType], returned: Sequence[ArrayType]) -> list[ArrayType] | None:
    """The types of a carry that starts weak and does not stay so; None where it stays as it is, or is not weak."""
    types = [_promoted_one(a, b) for a, b in zip(given, returned, strict=False)]
    return types if types != list(given) else None


def _promoted_one(given: ArrayType, returned: ArrayType) -> ArrayType:
    if not given.weak_type or (given.dtype == returned.dtype and returned.weak_type):
        return given
    dtype, weak = dtypes.promote([(given.dtype, True), (returned.dtype, returned.weak_type)])
    return given.update(dtype=dtype, weak_type=weak)
