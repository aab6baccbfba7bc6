"""Segments give what their operations give, and ask for no more memory than they need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.ops.elementwise import ADD, MUL, SIN
from cuplace.ops.manipulation import TRANSPOSE
from cuplace.ops.reductions import REDUCE_SUM
from cuplace.staging.local import LocalOp, Register, Slot
from cuplace.staging.segment import LARGE_BYTES, Segment, group

F32 = np.dtype("float32")


def unary(op, source, out, shape, **params):
    return LocalOp.of(op, [Register(source)], [shape], out, shape, F32, params)


def binary(op, left, right, out, shape):
    return LocalOp.of(op, [Register(left), Register(right)], [shape, shape], out, shape, F32, {})


def run(segment, reads, shapes, scalars=()):
    writes = [np.full(shape, 7, F32) for shape in shapes]
    temporaries = [np.full(t.shape, 7, t.dtype) for t in segment.temporaries]
    segment.work()(reads, [*writes, *temporaries], scalars)
    return writes


@st.composite
def segments(draw):
    """A random segment over square matrices, large or small, and NumPy's values of its registers."""
    n = draw(st.sampled_from([4, 256]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    values = {i: rng.standard_normal((n, n), dtype=np.float32) for i in range(2)}
    ops = []
    for out in range(2, 2 + draw(st.integers(1, 9))):
        source, other = draw(st.sampled_from(sorted(values))), draw(st.sampled_from(sorted(values)))
        kind = draw(st.sampled_from(["sin", "add", "mul", "transpose", "sum"]))
        x, y = values[source], values[other]
        if kind == "sin":
            ops.append(unary(SIN, source, out, (n, n)))
            values[out] = np.sin(x)
        elif kind == "transpose":
            ops.append(unary(TRANSPOSE, source, out, (n, n), permutation=(1, 0)))
            values[out] = x.T
        elif kind == "sum":
            shape = (n, 1)
            sum_params = {"axes": (1,), "keepdims": True}
            ops.append(LocalOp.of(REDUCE_SUM, [Register(source)], [(n, n)], 100 + out, shape, F32, sum_params))
            ops.append(
                LocalOp.of(ADD, [Register(other), Register(100 + out)], [(n, n), shape], out, (n, n), F32, {})
            )
            values[out] = y + x.sum(axis=1, keepdims=True)
        else:
            ops.append(binary(ADD if kind == "add" else MUL, source, other, out, (n, n)))
            values[out] = x + y if kind == "add" else x * y
    made = [op.outs[0] for op in ops if op.outs[0] < 100]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, unique=True))
    return n, ops, outputs, values


def renumbered(ops, outputs):
    numbers = {0: 0, 1: 1}
    for op in ops:
        numbers[op.outs[0]] = len(numbers)
    return [op.renumbered(numbers) for op in ops], [numbers[r] for r in outputs]


@given(segments())
def test_a_segment_gives_what_its_operations_give(case):
    n, ops, outputs, values = case
    numbered, registers = renumbered(_needed(ops, outputs), outputs)
    segment = Segment(2, numbered, registers)
    for found, register in zip(run(segment, [values[0], values[1]], [(n, n)] * len(outputs)), outputs, strict=True):
        np.testing.assert_allclose(found, values[register], rtol=1e-4, atol=1e-4)


def _needed(ops, outputs):
    needed, kept = set(outputs), []
    for op in reversed(ops):
        if needed.intersection(op.outs):
            kept.append(op)
            needed.update(op.reads)
    return kept[::-1]


def test_a_chain_of_large_arrays_needs_no_temporary():
    shape = (LARGE_BYTES,)
    segment = Segment(1, [unary(SIN, i, i + 1, shape) for i in range(5)], [5])
    assert segment.temporaries == ()


def test_large_intermediates_of_other_operations_share_temporaries():
    shape = (256, 256)
    flip = {"permutation": (1, 0)}
    ops = []
    for i in range(0, 8, 2):
        ops += [unary(SIN, i, i + 1, shape), unary(TRANSPOSE, i + 1, i + 2, shape, **flip)]
    assert len(Segment(1, ops, [8]).temporaries) == 2


def test_elementwise_operations_of_one_shape_are_brought_together():
    large = (1 << 16,)
    ops = [
        unary(SIN, 0, 1, large),
        LocalOp.of(REDUCE_SUM, [Register(0)], [large], 2, (), F32, {"axes": (0,), "keepdims": False}),
        unary(SIN, 1, 3, large),
        LocalOp.of(ADD, [Register(3), Register(2)], [large, ()], 4, large, F32, {}),
    ]
    assert [len(ops) for ops in group(ops)] == [2, 1, 1]


def test_small_operations_stay_alone():
    assert [len(ops) for ops in group([unary(SIN, i, i + 1, (4,)) for i in range(3)])] == [1, 1, 1]


@pytest.mark.parametrize("swapped", [False, True])
def test_a_number_passed_at_the_call(swapped):
    args = [Register(0), Slot(0)]
    op = LocalOp.of(ADD, args[::-1] if swapped else args, [(), ()], 1, (3,), F32, {})
    (out,) = run(Segment(1, [op], [1]), [np.zeros(3, F32)], [(3,)], (np.float32(2),))
    np.testing.assert_array_equal(out, [2, 2, 2])
