"""Sites: the places in the product that order work or keep memory until work is done, found in its syntax trees.

A site is a call, a store or an argument that the rules below name: it waits, it records, it notes an event where later
work will look for it, it parks or frees memory, it keeps something alive until an event, or it adopts or lends. Each
has one mutant, which is the same program without it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("cuplace/runtime", "cuplace/transfer", "cuplace/array")

LEFT_OUT = {
    "cuplace/runtime/order": "the detector orders nothing",
    "cuplace/runtime/backends/base.py": "declares, and does nothing",
    "cuplace/runtime/submission.py": "records of what was done, and of who waited",
    "cuplace/runtime/backends/sim/clock.py": "waits of virtual time",
    "cuplace/runtime/backends/sim/fluid.py": "virtual time",
    "cuplace/runtime/backends/sim/links.py": "virtual time, and faults",
    "cuplace/runtime/backends/sim/machine.py": "a description in numbers",
    "cuplace/runtime/backends/cuda/gpu_clock.py": "events that tell times, for which nothing waits",
    "cuplace/runtime/backends/cuda/timing.py": "the same",
    "cuplace/runtime/backends/cpu/blas.py": "how many threads a library uses",
}

WAITS = {
    "wait", "synchronize", "_synchronize", "host_wait", "_wait_before_write", "_wait_for", "_wait_for_oldest",
    "wait_for_all_parked", "_bound_run_ahead", "streamWaitEvent", "streamSynchronize",
}  # fmt: skip
RECORDS = {"record", "_record", "_mark", "eventRecord", "ends_on", "ends_with", "release_held", "_release"}
NOTES = {"note_read", "_note_latest"}
PARKS = {
    "park", "_park", "tidy", "collect", "_collect", "_poll", "free", "_unpark", "release", "put_back", "_look_after",
    "_look_at_kept",
}  # fmt: skip
KEEPS = {"until_recorded", "export", "_tell_host"}
LENDS = {"adopt", "lend_out", "birth"}
QUERIES = {"query", "_query", "getrefcount"}

CALLS = {
    **dict.fromkeys(WAITS, "wait"), **dict.fromkeys(RECORDS, "record"), **dict.fromkeys(NOTES, "note"),
    **dict.fromkeys(PARKS, "park"), **dict.fromkeys(KEEPS, "keep"), **dict.fromkeys(LENDS, "lend"),
    **dict.fromkeys(QUERIES, "query"),
}  # fmt: skip

STORES = {
    "writes": "note", "reads": "note", "last": "record", "before": "record", "_tail": "record", "events": "note",
    "_watched": "record", "completed": "record", "buffer": "keep", "storage": "keep", "born": "note",
    "exports": "keep", "blockers": "wait", "_waits": "wait", "waits": "wait", "_event": "note",
}  # fmt: skip
"""Attributes that hold events, what stands for them, or what they keep."""

MEMBERS = {
    "_run_ahead": "keep", "marks": "keep", "events": "note", "graveyard": "park", "parked": "park", "parking": "park",
    "_held": "keep", "_pending": "wait", "_waits": "wait", "waiters": "wait", "_in_use": "keep", "spare_events": "park",
    "unpacked": "note", "arrived": "note", "copied": "note",
}  # fmt: skip
"""Collections of events, of blocks that wait for them, and of what they keep. Additions to them are sites."""

ADDITIONS = {"append", "add"}

NO_EVENTS = {"changed", "_changed", "lock", "clock", "latch"}
"""What threads sleep on, virtual time, and gates that the host opens: their waits and releases order no work."""


class Site(NamedTuple):
    """One place, and what its mutant does instead.

    Attributes:
        path: the file, from the root of the repository.
        line: where it is at present.
        function: the qualified name of the function around it.
        kind: ``wait``, ``record``, ``note``, ``park``, ``keep``, ``lend``, ``query`` or ``needs``.
        code: the source of the site.
        number: which of those with the same code in the same function, from 0.
        mutant: what stands there instead.
        place: (line, column, end line, end column) of the syntax node that is replaced.
    """

    path: str
    line: int
    function: str
    kind: str
    code: str
    number: int
    mutant: str
    place: tuple[int, int, int, int]

    @property
    def key(self) -> str:
        """A name that stays the same when other lines of the file change."""
        again = f" #{self.number + 1}" if self.number else ""
        return f"{self.path}::{self.function}::{self.code}{again}"

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


NOTHING = "pass"
COMPLETE = "GUARD_COMPLETE"
"""``GUARD_COMPLETE(lane)(stream, ...)`` stands for `Lane.record`: an event that is complete at once."""


def find_sites(root: Path = ROOT) -> list[Site]:
    """All sites of the product, file by file, in the order of their lines."""
    paths = [path for floor in FLOORS for path in sorted((root / floor).rglob("*.py"))]
    names = [path.relative_to(root).as_posix() for path in paths]
    return [site for name in names if not name.startswith(tuple(LEFT_OUT)) for site in sites_of(name, root)]


def sites_of(path: str, root: Path = ROOT) -> list[Site]:
    """The sites of one file."""
    source = (root / path).read_text()
    found = sorted(_Finder(path).visit_all(ast.parse(source)), key=lambda f: _place(f.node))
    counts: Counter[tuple[str, str]] = Counter()
    sites = []
    for finding in found:
        code = " ".join((ast.get_source_segment(source, finding.shown) or "").split())
        number = counts[finding.function, code]
        counts[finding.function, code] += 1
        sites.append(
            Site(path, finding.node.lineno, finding.function, finding.kind, code, number, finding.mutant,
                 _place(finding.node))
        )  # fmt: skip
    return sites


class _Finding(NamedTuple):
    node: ast.expr | ast.stmt
    shown: ast.AST
    function: str
    kind: str
    mutant: str


class _Finder:
    """Walks one file."""

    def __init__(self, path: str) -> None:
        self.on_lanes = "/backends/cuda/" in path
        self.found: list[_Finding] = []
        self._whole: set[ast.AST] = set()  # calls that are sites as statements

    def visit_all(self, tree: ast.Module) -> list[_Finding]:
        self._walk(tree, "")
        return self.found

    def _walk(self, node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = function
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{function}.{child.name}".lstrip(".")
            self._look(child, name)
            self._walk(child, name)

    def _look(self, node: ast.AST, function: str) -> None:
        for kind, target, mutant in self._rules(node, function):
            assert isinstance(target, ast.expr | ast.stmt)
            if isinstance(target, ast.Expr):
                self._whole.add(target.value)
            if not any(finding.node is target for finding in self.found):
                self.found.append(_Finding(target, node, function, kind, mutant))

    def _rules(self, node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST, str]]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from self._statement(node, node.value)
        elif isinstance(node, ast.Call):
            if node not in self._whole:
                yield from self._value(node)
            yield from _arguments(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            yield from _store(node, function)
        elif isinstance(node, ast.Return) and function.endswith(".record") and not self.on_lanes:
            yield from [("record", node.value, "None")] if isinstance(node.value, ast.Name | ast.Attribute) else ()

    def _statement(self, node: ast.Expr, call: ast.Call) -> Iterator[tuple[str, ast.AST, str]]:
        """A call for its effect alone: the mutant does without it."""
        name, receiver = _name(call.func), _receiver(call.func)
        kind = CALLS.get(name)
        if receiver in NO_EVENTS:
            return
        if name == "release" and len(call.args) == 2:
            yield from _release(call, node)
        elif kind is not None and (call.args or name not in ("wait", "release")):
            yield kind, node, NOTHING
        elif name in ADDITIONS and receiver in MEMBERS and not _is_record(call.args[0]):
            yield MEMBERS[receiver], node, NOTHING

    def _value(self, call: ast.Call) -> Iterator[tuple[str, ast.AST, str]]:
        """A call for its value: the mutant has the value of nothing to wait for."""
        name, receiver = _name(call.func), _receiver(call.func)
        kind = CALLS.get(name)
        if kind == "query" and call.args:
            yield "query", call, "True"
        elif name in ("record", "_record", "_mark") and call.args and receiver:
            if self.on_lanes and name == "record":
                yield "record", call.func, f"{COMPLETE}({{}})"
            else:
                yield "record", call, "None"
        elif name in ("_wait_before_write", "birth"):
            yield CALLS[name], call, "()"
        elif name in ("adopt", "lend_out"):
            yield "lend", call.args[name == "lend_out"], "None"
        elif name == "release" and len(call.args) == 2:
            yield from _release(call)
        elif kind == "keep" and name == "export":
            yield "keep", call, f"{call.args[1].id}" if isinstance(call.args[1], ast.Name) else "None"


def _release(call: ast.Call, statement: ast.stmt | None = None) -> Iterator[tuple[str, ast.AST, str]]:
    """A block comes back with the events of its users: the mutant does not know of them. Where there are none, the
    block does not come back."""
    users = call.args[1]
    if _receiver(call.func) == "_engine":  # that opens a latch
        return
    if not isinstance(users, ast.Tuple) or users.elts:
        yield "park", users, "()"
    elif statement is not None:
        yield "park", statement, NOTHING


def _arguments(call: ast.Call) -> Iterator[tuple[str, ast.AST, str]]:
    """What is handed on: the events that work needs, and functions that wait, ask or take back."""
    for argument in call.args:
        name = _name(argument)
        if name in ("needs", "_waits"):
            yield ("needs", argument, "()") if name == "needs" else ("wait", argument, "[]")
        elif not isinstance(argument, ast.Attribute):
            continue
        elif name in QUERIES:
            yield "query", argument, "lambda event: True"
        elif name in ("wait", "synchronize", "_synchronize", "ends_with"):
            yield CALLS[name], argument, "lambda event: None"


def _store(node: ast.Assign | ast.AnnAssign | ast.AugAssign, function: str) -> Iterator[tuple[str, ast.AST, str]]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if isinstance(node, ast.AugAssign) and _name(node.target) == "needs":
        yield "needs", node, NOTHING
    if function.endswith(".__init__") and not function.startswith("Export."):
        return
    for target in targets:
        attribute = target.value if isinstance(target, ast.Subscript) else target
        if not isinstance(attribute, ast.Attribute) or attribute.attr not in STORES:
            continue
        if not _is_record(node.value):  # else the call is a site itself
            yield STORES[attribute.attr], node, NOTHING


def _is_record(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) in ("record", "_record")


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _receiver(node: ast.AST) -> str:
    return _name(node.value) if isinstance(node, ast.Attribute) else ""


def _place(node: ast.AST) -> tuple[int, int, int, int]:
    assert isinstance(node, ast.expr | ast.stmt)
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0
