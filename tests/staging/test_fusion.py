"""Chains give what the operations give one by one, whatever the shapes, dtypes and layouts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.ops.convert import CONVERT
from cuplace.ops.elementwise import ADD, GT, MUL, SELECT, SIN, SUB
from cuplace.ops.loops import host_function
from cuplace.staging import fusion
from cuplace.staging.fusion import Chain, assign_blocks
from cuplace.staging.local import Constant, LocalOp, Register, Slot
from cuplace.staging.script import Script

F32, BOOL, INT = np.dtype("float32"), np.dtype(bool), np.dtype("int32")


@st.composite
def chains(draw):
    """A random chain over three inputs of different layouts, and what the operations give one by one."""
    shape = draw(st.sampled_from([(5000,), (40, 1000), (7, 3, 2000), (3, 70000)]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    inputs = [
        rng.standard_normal(shape, dtype=np.float32),
        np.asfortranarray(rng.standard_normal(shape, dtype=np.float32)),
        rng.standard_normal(shape[-1:], dtype=np.float32),
        rng.standard_normal((1,) * len(shape), dtype=np.float32),
    ]
    values = dict(enumerate(inputs[: draw(st.integers(1, 4))]))
    numbers = (np.float32(1.5), np.float32(-2))
    ops = []
    for number in range(draw(st.integers(1, 8))):
        out = 10 + number
        floats = [r for r, v in values.items() if v.dtype == F32]
        op, sources, value = draw(_operation(values, floats, numbers, shape))
        shapes = [values[s.index].shape if type(s) is Register else () for s in sources]
        params = {"dtype": INT, "weak_type": False} if op is CONVERT else {}
        ops.append(LocalOp.of(op, sources, shapes, out, shape, value.dtype, params))
        values[out] = value
    made = [op.outs[0] for op in ops]
    read = {r for op in ops for r in op.reads}
    outputs = [r for r in made if r not in read or draw(st.booleans())]
    return ops, outputs, values, numbers


@st.composite
def _operation(draw, values, floats, numbers, shape):
    kind = draw(st.sampled_from([ADD, SUB, MUL, SIN, SELECT, CONVERT]))
    first = draw(st.sampled_from(floats))
    second = draw(st.sampled_from([Register(draw(st.sampled_from(floats))), Slot(0), Slot(1), Constant(np.float32(3))]))
    a = values[first]
    b = values[second.index] if type(second) is Register else getattr(second, "value", None)
    if type(second) is Slot:
        b = numbers[second.index]
    full = np.broadcast_to(np.float32(0), shape)
    if kind is SIN:
        return kind, [Register(first)], host_function("sin", F32, full.size)(a + full)
    if kind is CONVERT:
        return kind, [Register(first)], (np.trunc(a) + full).astype(INT)
    if kind is SELECT:
        flags = [r for r, v in values.items() if v.dtype == BOOL]
        if not flags:
            return GT, [Register(first), second], np.greater(a, b) | (full > 0)
        flag = draw(st.sampled_from(flags))
        return kind, [Register(flag), Register(first), second], np.where(values[flag], a, b).astype(F32) + full
    ufunc = {ADD: np.add, SUB: np.subtract, MUL: np.multiply}[kind]
    return kind, [Register(first), second], ufunc(a, b) + full


@given(chains(), st.sampled_from([1 << 10, 1 << 13, 1 << 16, 1 << 20]))
def test_a_chain_gives_what_its_operations_give(chain, block_bytes):
    ops, outputs, values, numbers = chain
    given_bytes, fusion.BLOCK_BYTES = fusion.BLOCK_BYTES, block_bytes
    try:
        built = Chain(ops, outputs)
        targets = [np.full(built.shape, 7, values[r].dtype) for r in outputs]
        inputs = [value for register, value in values.items() if register < 10]
        script = Script(len(inputs), np)
        script.chain(built, range(len(outputs)))
        script.compiled()(inputs, targets, numbers)
    finally:
        fusion.BLOCK_BYTES = given_bytes
    for register, target in zip(outputs, targets, strict=True):
        np.testing.assert_array_equal(target, values[register])


def chain_of(*dtypes):
    """Unary operations one after the other, from register 0."""
    return [
        LocalOp.of(SIN, [Register(i)], [(8,)], i + 1, (8,), np.dtype(dtype), {}) for i, dtype in enumerate(dtypes)
    ]


def test_intermediates_live_in_the_block_of_the_result():
    blocks = assign_blocks(chain_of("f4", "f4", "f4"), [3])
    assert {blocks[i].kind for i in (1, 2, 3)} == {"out"}


def test_scratch_is_shared_by_values_that_do_not_live_together():
    blocks = assign_blocks(chain_of("i4", "f4", "i4", "f4"), [4])
    assert blocks[1] == blocks[3]
    assert blocks[1].kind == "scratch"


def test_an_output_that_is_read_further_keeps_its_block():
    blocks = assign_blocks(chain_of("f4", "f4"), [1, 2])
    assert (blocks[1].index, blocks[2].index) == (1, 2)


@given(chains())
def test_two_values_that_live_together_never_share_a_block(chain):
    ops, outputs, _, _ = chain
    blocks = assign_blocks(ops, outputs)
    made = {op.outs[0]: i for i, op in enumerate(ops)}
    last = {r: len(ops) for r in outputs}
    for i, op in enumerate(ops):
        for register in op.reads:
            last[register] = max(last.get(register, i), i)
    for (a, a_made), (b, b_made) in itertools.combinations(made.items(), 2):
        if blocks[a] == blocks[b]:
            # One may begin where the other ends: elementwise operations write over what they read.
            assert a_made >= last[b] or b_made >= last[a]


@pytest.mark.parametrize("size", [1000, 200_000])
def test_what_computes_in_the_middle_of_a_chain_has_scratch_of_its_own(size):
    """As the destructor of garbage that is collected there, or the handler of a signal."""
    low, high = np.full(size, 1, np.float32), np.full(size, 3, np.float32)
    nested = np.zeros(size, np.int32)

    def convert(xp, x):
        if not nested.any():
            nested[:] = -1
            work([high, low], [nested], ())
        return x.astype(np.int32)

    shapes = {"shapes": [(size,)], "params": {}, "elementwise": True}
    ops = [
        LocalOp.of(SUB, [Register(0), Register(1)], [(size,)] * 2, 10, (size,), F32, {}),
        LocalOp("convert", convert, [Register(10)], [(size,)], [11], dtypes=[INT], **shapes),
    ]
    script = Script(2, np)
    script.chain(Chain(ops, [11]), [0])
    work = script.compiled()
    for _ in range(2):
        found = np.zeros(size, np.int32)
        nested[:] = 0
        work([low, high], [found], ())
        np.testing.assert_array_equal(found, -2)
        np.testing.assert_array_equal(nested, 2)


def test_scratch_of_huge_rows_is_not_kept(monkeypatch):
    monkeypatch.setattr(fusion, "KEPT_SCRATCH_BYTES", 1 << 10)
    block = fusion.Block("scratch", 0, F32)
    assert fusion._scratch(block, (1000,)).base is None
