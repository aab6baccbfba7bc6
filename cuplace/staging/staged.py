"""Staged: one Python function with the programs traced from it and the executables placed from these."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import optree

from cuplace import errors
from cuplace.array.pytree import flatten, unflatten
from cuplace.placement.sharding import NamedSharding
from cuplace.runtime.context import ContextKey, context_key
from cuplace.staging.home import Call
from cuplace.staging.operand import HostKey, Key, operand_key
from cuplace.staging.place import place
from cuplace.staging.program import Program, Var
from cuplace.staging.quick import Run, direct_run, quick_run, single_run
from cuplace.staging.trace import Trace, recording

if TYPE_CHECKING:
    from cuplace.array.type import ArrayType
    from cuplace.placement.mesh import Mesh
    from cuplace.placement.sharding import Sharding
    from cuplace.staging.executable import Executable, Plain
    from cuplace.staging.tracer import Tracer

Body = Callable[[Sequence["Tracer"]], Any]
"""Runs the function on the values of its operands, in order; returns a pytree of values."""


class CacheInfo(NamedTuple):
    """What a jitted function has kept.

    Attributes:
        traces: programs, one for each combination of types.
        executables: programs bound to devices, one for each placement.
        hits: calls that found their executable.
        misses: calls that had to look for a program, and to place it.
    """

    traces: int
    executables: int
    hits: int
    misses: int


class Traced(NamedTuple):
    """A program, and the structure of its results."""

    program: Program
    structure: Any


class Bound:
    """An executable, and how its results are given back.

    Attributes:
        run: the executable in its quickest form, a function of the list of operands.
        direct: a function of the operands themselves that gives what a call of this object gives.
        executable: the executable itself.
        structure: of the results.
        is_single: whether the result is one new array.
        program: what the executable was made of.
    """

    __slots__ = ("_passed", "direct", "executable", "is_single", "program", "run", "structure")

    def __init__(
        self, executable: Executable, structure: Any, passed: Sequence[tuple[int, int]], program: Program
    ) -> None:
        plain = executable.plain(len(program.inputs))
        self.run: Run = executable if plain is None else _with_captured(quick_run(*plain), executable)
        self.executable = executable
        self.structure = structure
        self.is_single = optree.treespec_is_leaf(structure) and not passed
        self.program = program
        self._passed = passed
        self.direct: Callable[..., Any] = self._find_direct(plain)

    def _find_direct(self, plain: Plain | None) -> Callable[..., Any]:
        run = self.run
        if not self.is_single:
            return lambda *operands: self(operands)
        if plain is not None and not self.executable.constants:
            found = direct_run(*plain, len(self.program.inputs))
            return single_run(*plain) if found is None else found
        return lambda *operands: run(operands)[0]

    def __call__(self, operands: Sequence[Any]) -> Any:
        """Run, and give the results their structure."""
        results = self.run(operands)
        if self.is_single:
            return results[0]
        for i, position in self._passed:
            results[i] = operands[position]
        return unflatten(self.structure, results)


def _with_captured(run: Run, executable: Executable) -> Run:
    captured = [array for _, array in executable.constants]
    return (lambda operands: run((*operands, *captured))) if captured else run


MAX_KEPT = 8192
"""What a cache holds at most; when it is full it starts anew."""


def keep(cache: dict[Any, Any], key: Any, value: Any) -> None:
    """Put something into a bounded cache."""
    if len(cache) >= MAX_KEPT:
        cache.clear()
    cache[key] = value


class Staged:
    """The programs of one function.

    Attributes:
        name: what errors call it.
        source: ``name at FILE:LINE``.
        programs: traced programs by static values and types.
    """

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self.programs: dict[Hashable, Traced] = {}

    def traced(
        self, key: Hashable, types: Sequence[ArrayType], names: Callable[[], Sequence[str]], body: Body,
        context: ContextKey,
    ) -> Traced:  # fmt: skip
        """The program for these types; ``key`` stands for everything else that the body depends on.

        Raises:
            What the body raises; nothing is kept then.
            TracedValueError: a TypeError; the body returns what is no array.
        """
        mesh = None if context.mesh.empty else context.mesh.abstract_mesh
        kind = (key, tuple(types), context.x64)
        found = self.programs.get((mesh, *kind)) or self.programs.get((context.mesh, *kind))
        if found is None:
            found = self._trace(types, names, body, mesh)
            # A bare spec was read on the context mesh: on another mesh of its shape it means other devices.
            tied = mesh is not None and _names_mesh(found.program, context.mesh)
            keep(self.programs, (context.mesh if tied else mesh, *kind), found)
        return found

    def _trace(
        self, types: Sequence[ArrayType], names: Callable[[], Sequence[str]], body: Body, mesh: Any
    ) -> Traced:
        trace = Trace(self.name, self.source, types, names, mesh)
        with recording(trace):
            result = body(trace.input_tracers())
            leaves, structure = flatten(result)
            for i, leaf in enumerate(leaves):
                leaves[i] = _output(trace, leaf, structure, i, self.source)
            return Traced(trace.close(leaves), structure)

    def bind(
        self, key: Hashable, operands: Sequence[Any], names: Callable[[], Sequence[str]], body: Body,
        in_shardings: Sequence[Sharding | None] | None = None,
        out_shardings: Callable[[Traced], Sequence[Sharding | None]] | None = None,
        passes: bool = True, keep_unused: bool = False,
    ) -> Bound:  # fmt: skip
        """The executable for a call of these operands. Raises as tracing and placing do.

        Where ``passes``, an operand that is returned as it is comes back as the same object. Where ``keep_unused``,
        operands that nothing depends on count for the choice of devices.
        """
        context = context_key()
        keys = [operand_key(operand) for operand in operands]
        types = [_type_under(of, asked) for of, asked in zip(keys, in_shardings or [None] * len(keys), strict=True)]
        traced = self.traced(key, types, names, body, context)
        program = traced.program
        if keep_unused:
            program.used = (True,) * len(program.inputs)
        asked = out_shardings(traced) if out_shardings is not None else [None] * len(program.outputs)
        call = Call(program, operands, keys, names, in_shardings or [None] * len(keys), asked, context)
        executable = place(call)
        passed = _passed(program, keys, executable) if passes else ()
        return Bound(executable, traced.structure, passed, program)


def _names_mesh(program: Program, mesh: Mesh) -> bool:
    """Whether some layout inside of the program is over this mesh."""
    values = (value for equation in program.walk() for value in equation.params.values())
    return any(isinstance(value, NamedSharding) and value.mesh is mesh for value in values)


def _type_under(key: Key, asked: Sharding | None) -> ArrayType:
    """The type of an operand in the program: a host array is in the memory that it is uploaded to."""
    if type(key) is HostKey and asked is not None and asked.memory_kind is not None:
        return key.type.update(memory_kind=asked.memory_kind)
    return key.type


def _output(trace: Trace, leaf: Any, structure: Any, index: int, source: str) -> Any:
    """One output as a value of the trace. Raises TracedValueError where it is none."""
    try:
        return trace.atom(leaf)
    except (errors.NotAnArrayError, errors.InvalidValueError):
        path = path_text(structure.accessors()[index])
        where = f" at output component {path}" if path else ""
        raise errors.TracedValueError(
            f"function {source} traced for jit returned a value of type {type(leaf)}{where}, which is not a valid "
            "JAX type"
        ) from None


def _passed(program: Program, keys: Sequence[Any], executable: Executable) -> list[tuple[int, int]]:
    """The results, by number, that are operands, by position: same values, same place, same commitment."""
    position = {var: i for i, var in enumerate(program.inputs)}
    found = []
    for i, (atom, (_, key)) in enumerate(zip(program.outputs, executable.results, strict=True)):
        if type(atom) is Var and atom in position and keys[position[atom]] is key:
            found.append((i, position[atom]))
    return found


def path_text(accessor: Any) -> str:
    """The path to a leaf of a pytree, as it is written in Python: ``['p'][0]``, ``.x``."""
    return "".join(
        f".{entry.field}" if isinstance(entry, optree.NamedTupleEntry) else f"[{entry.entry!r}]" for entry in accessor
    )
