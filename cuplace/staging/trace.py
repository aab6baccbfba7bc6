"""Trace: the recording of one function into a program, and the stack of recordings of a thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cuplace import errors
from cuplace.array.array import Array
from cuplace.array.type import typeof
from cuplace.ops.convert import CONVERT
from cuplace.ops.rule import infer
from cuplace.runtime.caller import caller
from cuplace.runtime.context import tracing as context_tracing
from cuplace.staging.operand import captured_host_value, is_scalar, literal
from cuplace.staging.program import Atom, Equation, Literal, Program, Var
from cuplace.staging.tracer import Tracer

if TYPE_CHECKING:
    from cuplace.array.type import ArrayType
    from cuplace.ops.op import Op
    from cuplace.placement.mesh import AbstractMesh


class Trace:
    """One function being recorded.

    Attributes:
        name: the function's name, as errors print it.
        source: ``name at FILE:LINE``, for errors about values that leave the function.
        names: gives the name of each input leaf, as errors print it.
        mesh: the abstract mesh of the context in which it is recorded, or None.
        parent: the recording that goes on around it (a loop's body is recorded of its own), or None.
        open: False once recorded; values of a closed trace have leaked.
    """

    def __init__(
        self, name: str, source: str, input_types: Sequence[ArrayType], names: Callable[[], Sequence[str]],
        mesh: AbstractMesh | None = None, parent: Trace | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.source = source
        self.names = names
        self.mesh = mesh
        self.parent = parent
        self.open = True
        self.inputs = tuple(Var(type) for type in input_types)
        self._equations: list[Equation] = []
        self._captured: dict[Var, Any] = {}
        self._capture_of: dict[int, Var] = {}
        self._kept: list[Any] = []

    def input_tracers(self) -> list[Tracer]:
        return [Tracer(self, var) for var in self.inputs]

    def bind(self, op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Tracer:
        """Record ``op`` of the operands; the result's value in this trace."""
        atoms = tuple([self.atom(operand) for operand in operands])
        if op is CONVERT and type(atoms[0]) is Literal:
            return Tracer(self, literal(atoms[0].value, **params))
        types = tuple([atom.type for atom in atoms])
        if self.mesh is not None:
            _check_context(op, types, self.mesh)
        out = result_type(op, types, params)
        if out.mesh is None and self.mesh is not None:
            out = out.update(mesh=self.mesh)
        return self.emit(op, atoms, (out,), params)[0]

    def emit(
        self, op: Any, atoms: tuple[Atom, ...], types: Sequence[ArrayType], params: dict[str, Any]
    ) -> list[Tracer]:
        """Record one equation whose result types are known."""
        outs = tuple([Var(type) for type in types])
        self._equations.append(Equation(op, atoms, outs, params, caller()))
        return [Tracer(self, var) for var in outs]

    def atom(self, value: Any) -> Atom:
        """What stands for ``value`` in this trace; values from outside are captured as constants."""
        if isinstance(value, Tracer):
            if value.trace is self:
                return value.atom
            self._check_reachable(value)
            if type(value.atom) is Literal:
                return value.atom
            return self._capture(value.atom, value.atom.type, value)
        if is_scalar(value):
            return literal(value)
        if type(value) is Array:
            value._live()
            return self._capture(value, value._key.type, value)
        return self._capture(value, typeof(value), captured_host_value(value))

    def _capture(self, identity: Any, type: ArrayType, value: Any) -> Var:
        var = self._capture_of.get(id(identity))
        if var is None:
            var = Var(type)
            self._captured[var] = value
            self._capture_of[id(identity)] = var
            self._kept.append(identity)  # so that its id stays its own while this trace is open
        return var

    def _check_reachable(self, tracer: Tracer) -> None:
        trace = self.parent
        while trace is not None:
            if trace is tracer.trace:
                return
            trace = trace.parent
        raise tracer.leaked()

    def close(self, outputs: Sequence[Atom]) -> Program:
        """Finish the recording with these outputs."""
        self.open = False
        return Program(self.name, self.inputs, self._captured, self._equations, tuple(outputs))

    def dependencies(self, atom: Atom) -> list[str]:
        """Names of the inputs that a value depends on, for errors."""
        needed = {atom}
        for equation in reversed(self._equations):
            if not needed.isdisjoint(equation.outs):
                needed.update(equation.ins)
        return [name for name, var in zip(self.names(), self.inputs, strict=True) if var in needed]


class _Current(threading.local):
    trace: Trace | None = None


current = _Current()


recordings: set[Trace] = set()
"""The traces that are being recorded, in all threads. Where it is empty, nothing is being traced."""


@contextmanager
def recording(trace: Trace) -> Iterator[Trace]:
    """Make ``trace`` the thread's current one; the one before comes back whatever happens."""
    before = current.trace
    current.trace = trace
    recordings.add(trace)
    context_tracing.depth += 1
    try:
        yield trace
    finally:
        context_tracing.depth -= 1
        recordings.discard(trace)
        current.trace = before
        trace.open = False


def tracing() -> bool:
    """Whether this thread is recording a function, so that nothing may be computed at once."""
    return current.trace is not None


def lift(value: Any) -> Tracer:
    """A value of the current trace: scalars become literals, arrays become captured constants.

    Raises:
        TypeError: it is no array and no number.
        UnexpectedTracerError: it is a value of a function that has been recorded already.
    """
    trace = current.trace
    if trace is None and type(value) is Tracer:
        raise value.leaked()
    assert trace is not None, "lift outside of a trace"
    return value if type(value) is Tracer and value.trace is trace else Tracer(trace, trace.atom(value))


def bind(op: Op, *operands: Any, **params: Any) -> Tracer:
    """Record one op in the current trace and return its result.

    Operands are values of the trace, numbers (they become literals of weak type) or arrays (captured).
    The parameter ``out_sharding`` (a NamedSharding or None) of any op asks for the sharding of the result.

    Raises:
        TypeError, ValueError: the op's own errors about shapes and types.
        ShardingTypeError: the operands' shardings do not combine on Explicit axes.
        MeshMismatchError: operands are on different abstract meshes.
        ContextMeshError: an operand is on another mesh than the one that ``set_mesh`` chose.
    """
    trace = current.trace
    assert trace is not None, "bind outside of a trace"
    return trace.bind(op, operands, params)


def result_type(op: Op, types: tuple[ArrayType, ...], params: dict[str, Any]) -> ArrayType:
    """The type of an operation's result. Raises as `ops.rule.infer` does."""
    try:
        return _result_type(op, types, tuple(params.items()))
    except TypeError:  # a parameter that is not hashable, or the operation's own error
        return infer(op, types, params)[0]


@functools.lru_cache(maxsize=8192)
def _result_type(op: Op, types: tuple[ArrayType, ...], params: tuple[tuple[str, Any], ...]) -> ArrayType:
    return infer(op, types, dict(params))[0]


def _check_context(op: Op, types: Sequence[ArrayType], mesh: AbstractMesh) -> None:
    for of in types:
        if of.mesh is not None and of.mesh is not mesh:
            raise errors.ContextMeshError(
                f"For primitive {op.name}, context mesh {mesh} should match the aval mesh {of.mesh} for shape {of}.\n"
                "Leave the set_mesh block, or move the array to the context mesh with device_put first."
            )
