from __future__ import annotations

import threading

import numpy as np
import pytest

from cuplace import errors
from cuplace.array.put import device_put
from cuplace.array.type import ArrayType
from cuplace.ops.convert import CONVERT
from cuplace.ops.elementwise import ADD, SIN
from cuplace.runtime import context
from cuplace.staging.program import Literal
from cuplace.staging.trace import Trace, bind, current, lift, recording, recordings, tracing
from tests.array.places import numbers, on, places

F32 = ArrayType((4,), np.dtype("float32"))


def trace_of(*types, mesh=None, parent=None):
    return Trace("f", "f at here:1", types, lambda: ["x", "y"][: len(types)], mesh, parent)


def test_bound_operations_become_equations():
    with recording(trace_of(F32)) as trace:
        (x,) = trace.input_tracers()
        y = bind(ADD, bind(SIN, x), x)
        program = trace.close([trace.atom(y)])
    assert [e.op for e in program.equations] == [SIN, ADD]
    assert program.equations[0].line.function == "test_bound_operations_become_equations"


def test_the_current_trace_comes_back_whatever_happens():
    assert not tracing()
    with recording(trace_of(F32)) as outer:
        with pytest.raises(KeyError), recording(trace_of(F32, parent=outer)):
            raise KeyError
        assert current.trace is outer
        assert context.is_tracing()
    assert current.trace is None
    assert not recordings
    assert not context.is_tracing()


def test_other_threads_do_not_trace():
    found = []
    with recording(trace_of(F32)):
        thread = threading.Thread(target=lambda: found.append(tracing()))
        thread.start()
        thread.join()
    assert found == [False]


def test_numbers_become_literals_and_are_converted_at_once():
    with recording(trace_of()) as trace:
        two = lift(2)
        assert type(two.atom) is Literal
        half = bind(CONVERT, two, dtype=np.dtype("float32"), weak_type=False)
        assert (half.atom.value.dtype, half.weak_type) == (np.float32, False)
        assert trace.close([half.atom]).equations == ()


def test_arrays_are_captured_once(platform):
    x = device_put(numbers(4))
    with recording(trace_of()) as trace:
        total = bind(ADD, lift(x), lift(x))
        program = trace.close([total.atom])
    assert len(program.constants) == 1
    assert program.constants[0] is x


def test_numpy_arrays_are_captured_as_they_are_now():
    values = np.float32([1, 2, 3, 4])
    with recording(trace_of()) as trace:
        captured = lift(values)
        values[:] = 0
        program = trace.close([bind(SIN, captured).atom])
    np.testing.assert_array_equal(program.constants[0], [1, 2, 3, 4])


def test_deleted_arrays_are_not_captured(platform):
    x = device_put(numbers(4))
    x.delete()
    with recording(trace_of()), pytest.raises(errors.DeletedArrayError):
        lift(x)


def test_values_of_the_trace_around_are_captured():
    with recording(trace_of(F32)) as outer:
        (x,) = outer.input_tracers()
        with recording(trace_of(F32, parent=outer)) as inner:
            (y,) = inner.input_tracers()
            program = inner.close([bind(ADD, x, y).atom])
    assert program.constants == (x,)


def test_values_of_a_finished_trace_are_refused():
    with recording(trace_of(F32)) as first:
        (x,) = first.input_tracers()
    with recording(trace_of(F32)), pytest.raises(errors.UnexpectedTracerError, match="f at here:1"):
        bind(SIN, x)


def test_under_a_context_mesh_results_are_on_it_and_operands_must_be(platform):
    at = places(platform)
    full = at.full.abstract_mesh
    with recording(trace_of(F32, mesh=full)) as trace:
        (x,) = trace.input_tracers()
        assert bind(SIN, x).type.mesh is full
        elsewhere = lift(device_put(numbers(8), on(at.grid, "x")))
        with pytest.raises(ValueError, match=r"For primitive sin, context mesh AbstractMesh\('x': 8.*should match"):
            bind(SIN, elsewhere)


def test_what_is_no_array_is_refused():
    with recording(trace_of()), pytest.raises(TypeError, match="is not a valid JAX type"):
        lift("text")
