from __future__ import annotations

import numpy as np

from cuplace.array.type import ArrayType
from cuplace.ops.elementwise import ADD, SIN
from cuplace.staging.loop import SCAN
from cuplace.staging.program import Equation, Literal, Program, Var

F32 = ArrayType((4,), np.dtype("float32"))


def equation(op, ins, outs, **params):
    return Equation(op, tuple(ins), tuple(outs), params, None)


def test_dead_code_and_unused_inputs_are_dropped():
    x, y, captured, unneeded = Var(F32), Var(F32), Var(F32), Var(F32)
    used, dead = Var(F32), Var(F32)
    equations = [equation(ADD, [x, captured], [used]), equation(SIN, [unneeded], [dead])]
    program = Program("f", (x, y), {captured: "a", unneeded: "b"}, equations, (used,))
    assert [e.op for e in program.equations] == [ADD]
    assert program.used == (True, False)
    assert (program.captured, program.constants) == ((captured,), ("a",))


def test_an_input_that_is_returned_is_used():
    x = Var(F32)
    assert Program("f", (x,), {}, [], (x,)).used == (True,)


def test_walk_enters_the_bodies_of_loops():
    x, y, z = Var(F32), Var(F32), Var(F32)
    body = Program("body", (x,), {}, [equation(SIN, [x], [y])], (y,))
    program = Program("f", (x,), {}, [equation(SCAN, [x], [z], body=body)], (z,))
    assert [e.op for e in program.walk()] == [SCAN, SIN]


def test_repr_lists_the_equations():
    x, y = Var(F32), Var(F32)
    two = Literal(np.float32(2), ArrayType((), np.dtype("float32")))
    program = Program("f", (x,), {}, [equation(ADD, [x, two], [y])], (y,))
    assert repr(program).splitlines()[0] == "f(float32[4]):"
    assert "add" in repr(program)
    assert "2" in repr(program)
