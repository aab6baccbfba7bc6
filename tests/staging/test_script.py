from __future__ import annotations

import numpy as np

from cuplace.ops.contraction import DOT_GENERAL, DotDims
from cuplace.ops.elementwise import ADD, SIN, SUB
from cuplace.ops.reductions import REDUCE_SUM
from cuplace.staging.local import Constant, LocalOp, Register, Slot
from cuplace.staging.script import Script

F32 = np.dtype("float32")


def local(op, args, out, shape=(3,), **params):
    return LocalOp.of(op, args, [shape] * len(args), out, shape, F32, params)


def test_a_script_computes_line_by_line():
    script = Script(2, np)
    script.operation(local(ADD, [Register(0), Slot(0)], 2), [None])
    script.operation(local(SUB, [Register(2), Register(1)], 3), [None])
    script.forget([2])
    script.operation(local(ADD, [Register(3), Constant(np.float32(10))], 4), [0])
    x, y, out = np.float32([1, 2, 3]), np.float32([5, 5, 5]), np.empty(3, np.float32)
    script.compiled()([x, y], [out], (np.float32(2),))
    np.testing.assert_array_equal(out, x + 2 - y + 10)


def test_computed_results_are_copied_to_their_place_and_used_from_there():
    script = Script(1, np)
    script.operation(local(REDUCE_SUM, [Register(0)], 1, (), axes=(0,), keepdims=False), [0])
    script.operation(local(SIN, [Register(1)], 2, ()), [1])
    total, sine = np.empty((), np.float32), np.empty((), np.float32)
    script.compiled()([np.float32([1, 2])], [total, sine], ())
    assert (total, sine) == (3, np.sin(np.float32(3)))


def test_values_that_never_became_variables_can_be_forgotten():
    script = Script(1, np)
    script.forget([99])
    script.compiled()([np.zeros(1)], [], ())


def test_a_script_without_inputs():
    script = Script(0, np)
    script.operation(local(ADD, [Constant(np.float32(1)), Slot(0)], 0, ()), [0])
    out = np.empty((), np.float32)
    script.compiled()([], [out], (np.float32(2),))
    assert out == 3


def test_what_can_write_in_place_does():
    dims = DotDims((1,), (0,))
    script = Script(2, np)
    product = LocalOp.of(DOT_GENERAL, [Register(0), Register(1)], [(4, 3), (3, 4)], 2, (4, 4), F32, {"dims": dims})
    script.operation(product, [0])
    total = LocalOp.of(REDUCE_SUM, [Register(2)], [(4, 4)], 3, (4,), F32, {"axes": (0,), "keepdims": False})
    script.operation(total, [1])
    a, b = np.random.default_rng(0).standard_normal((2, 12), dtype=np.float32)
    a, b = a.reshape(4, 3), b.reshape(3, 4)
    out, sums = np.empty((4, 4), np.float32), np.empty(4, np.float32)
    script.compiled()([a, b], [out, sums], ())
    np.testing.assert_allclose(out, a @ b, rtol=1e-6)
    np.testing.assert_allclose(sums, (a @ b).sum(axis=0), rtol=1e-5)
