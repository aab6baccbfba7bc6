from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest

from cuplace.ops.elementwise import ADD
from cuplace.staging.local import Constant, LocalOp, Register, Slot, quietly

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


def test_quietly_hides_numpys_warnings_and_leaves_the_users_setting():
    before = np.geterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(quietly(np.divide, np.float32(1), np.float32(0)))
    assert np.geterr() == before


def test_quietly_may_be_nested_and_run_in_any_thread():
    found = []

    def inner():
        found.append(quietly(quietly, np.log, np.float32(0)))

    thread = threading.Thread(target=inner)
    thread.start()
    thread.join()
    inner()
    assert found == [-np.inf, -np.inf]


def test_an_error_inside_passes_through():
    def fail():
        raise RuntimeError("no")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            quietly(fail)
