"""Trace: the recording of one function into a program, and the stack of recordings of a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cuplace import errors
from cuplace.array.array import Array
from cuplace.ops.convert import CONVERT
from cuplace.runtime.caller import caller
from cuplace.staging import infer
from cuplace.staging.operand import abstract, captured_host_value, is_scalar, literal
from cuplace.staging.program import Atom, Equation, Literal, Program, Var
from cuplace.staging.tracer import Tracer

if TYPE_CHECKING:
    from cuplace.array.type import ArrayType
    from cuplace.ops.op import Op
    from cuplace.placement.mesh import AbstractMesh
    from cuplace.placement.sharding import NamedSharding


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

    def input_tracers(self) -> list[Tracer]:
        return [Tracer(self, var) for var in self.inputs]

    def bind(
        self, op: Op, operands: Sequence[Any], params: dict[str, Any], out_sharding: NamedSharding | None
    ) -> Tracer:
        """Record ``op`` of the operands; the result's value in this trace."""
        atoms = tuple([self.atom(operand) for operand in operands])
        if op is CONVERT and type(atoms[0]) is Literal:
            return Tracer(self, literal(atoms[0].value, **params))
        out = infer.output_type(op, [atom.type for atom in atoms], params, self.mesh, out_sharding)
        return self.emit(op, atoms, (out,), params, out_sharding)[0]

    def emit(
        self, op: Op, atoms: tuple[Atom, ...], types: Sequence[ArrayType], params: dict[str, Any],
        out_sharding: NamedSharding | None = None,
    ) -> list[Tracer]:  # fmt: skip
        """Record one equation whose result types are known."""
        outs = tuple([Var(type) for type in types])
        self._equations.append(Equation(op, atoms, outs, params, out_sharding, caller()))
        return [Tracer(self, var) for var in outs]

    def atom(self, value: Any) -> Atom:
        """What stands for ``value`` in this trace; values from outside are captured as constants."""
        if isinstance(value, Tracer):
            if value.trace is self:
                return value.atom
            self._check_reachable(value)
            if type(value.atom) is Literal:
                return value.atom
            return self._capture(value.atom, value.atom.type, value.atom)
        if is_scalar(value):
            return literal(value)
        if isinstance(value, Array):
            value._check_alive()
            return self._capture(value, value._key.type, value)
        return self._capture(value, abstract(value), captured_host_value(value))

    def _capture(self, identity: Any, type: ArrayType, value: Any) -> Var:
        var = self._capture_of.get(id(identity))
        if var is None:
            var = Var(type)
            # The captured value keeps `identity` alive, so that its id stays its own.
            self._captured[var] = value if value is identity else (value, identity)
            self._capture_of[id(identity)] = var
        return var

    def _check_reachable(self, tracer: Tracer) -> None:
        trace = self.parent
        while trace is not None:
            if trace is tracer.trace:
                return
            trace = trace.parent
        raise errors.UnexpectedTracerError(tracer.type, tracer.trace.source)

    def close(self, outputs: Sequence[Any]) -> Program:
        """Finish the recording with these outputs."""
        atoms = tuple([self.atom(value) for value in outputs])
        self.open = False
        captured = {v: c[0] if type(c) is tuple else c for v, c in self._captured.items()}
        return Program(self.name, self.inputs, captured, self._equations, atoms)

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


@contextmanager
def recording(trace: Trace) -> Iterator[Trace]:
    """Make ``trace`` the thread's current one; the one before comes back whatever happens."""
    before = current.trace
    current.trace = trace
    try:
        yield trace
    finally:
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
    assert trace is not None, "lift outside of a trace"
    return value if type(value) is Tracer and value.trace is trace else Tracer(trace, trace.atom(value))


def bind(op: Op, *operands: Any, out_sharding: NamedSharding | None = None, **params: Any) -> Tracer:
    """Record one op in the current trace and return its result.

    Operands are values of the trace, numbers (they become literals of weak type) or arrays (captured).
    ``out_sharding`` asks for the sharding of the result where the op's rule leaves a choice.

    Raises:
        TypeError, ValueError: the op's own errors about shapes and types.
        ShardingTypeError: the operands' shardings do not combine on Explicit axes.
        MeshMismatchError: operands are on different abstract meshes.
    """
    trace = current.trace
    assert trace is not None, "bind outside of a trace"
    return trace.bind(op, operands, params, out_sharding)


__all__ = ["Trace", "Tracer", "bind", "current", "lift", "recording", "tracing"]
