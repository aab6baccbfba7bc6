from __future__ import annotations

import numpy as np

from cuplace.ops.elementwise import ADD
from cuplace.staging.local import Constant, LocalOp, Register, Slot

F32 = np.dtype("float32")


def test_reads_are_the_registers_among_the_operands():
    op = LocalOp.of(ADD, [Register(3), Slot(0)], [(2,), ()], 7, (2,), F32, {})
    assert op.reads == [3]
    assert (op.outs, op.ufunc, op.elementwise) == ((7,), "add", True)


def test_renumbering_changes_registers_only():
    op = LocalOp.of(ADD, [Register(3), Constant(1.0)], [(2,), ()], 7, (2,), F32, {})
    other = op.renumbered({3: 0, 7: 1})
    assert (other.args, other.outs) == ((Register(0), Constant(1.0)), (1,))
    assert other.shapes == op.shapes
