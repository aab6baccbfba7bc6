"""A process that tries mutants one by one, each in a fork of its own; started by `guard.Worker`.

It has imported everything but the product, so a fork can begin at once. The mutated module is compiled in memory: the
files of the product stay as they are. Requests and verdicts are lines of JSON.
"""

from __future__ import annotations

import ast
import builtins
import importlib.abc
import importlib.machinery
import itertools
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import hypothesis  # noqa: F401  # imported here, so that no fork has to
import ml_dtypes  # noqa: F401
import numpy as np  # noqa: F401
import optree  # noqa: F401
import pytest

ROOT = Path(__file__).resolve().parents[2]
HANGS_AFTER = 25.0
"""Seconds without a test that begins, if hardly anything is computed meanwhile."""

ASLEEP = 2.0
"""Seconds of computing that are hardly anything: what waits looks now and then whether it may go on."""

SPINS_AFTER = 20.0
"""Seconds of computing in one test."""

FEW = 2
"""Seeds with which all tests are tried first: what breaks an order is told by detectors, which need no more."""

STARTS_WITHIN = 300.0
"""Seconds until the first test begins: the fake GPUs may have to be built."""


class Mutation:
    """Answers the import of one module with a mutant of it."""

    def __init__(self, module: str, path: str, place: Sequence[int], mutant: str) -> None:
        self.module = module
        self.path = path
        self.place = tuple(place)
        self.mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        spec.loader = _Loader(name, str(ROOT / self.path), self)
        return spec

    def code(self) -> CodeType:
        return compile(self.tree(), str(ROOT / self.path), "exec")

    def tree(self) -> ast.Module:
        """The module with the syntax node at ``place`` replaced."""
        tree = ast.parse((ROOT / self.path).read_text())
        replacer = _Replacer(self.place, self.mutant)
        mutated: ast.Module = ast.fix_missing_locations(replacer.visit(tree))
        assert replacer.count == 1, f"{self.path} has no such place: {self.place}"
        return mutated


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, mutation: Mutation) -> None:
        super().__init__(name, path)
        self.mutation = mutation

    def get_code(self, fullname: str) -> CodeType:
        return self.mutation.code()


class _Replacer(ast.NodeTransformer):
    def __init__(self, place: tuple[int, ...], mutant: str) -> None:
        self.place = place
        self.mutant = mutant
        self.count = 0

    def visit(self, node: ast.AST) -> Any:
        statement = self.mutant == "pass"
        if not isinstance(node, ast.stmt if statement else ast.expr) or _place(node) != self.place:
            return super().generic_visit(node)
        self.count += 1
        if statement:
            return ast.copy_location(ast.Pass(), node)
        if "{}" in self.mutant:
            new = ast.parse(self.mutant.format("_"), mode="eval").body
            assert isinstance(new, ast.Call)
            new.args = [node]
            return new
        return ast.parse(self.mutant, mode="eval").body


def _place(node: ast.AST) -> tuple[int, ...]:
    assert isinstance(node, ast.expr | ast.stmt)
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0


def complete(record: Any) -> Any:
    """What a mutant has in the place of `Lane.record`: it gives events that are complete at once."""
    from cuplace.runtime.backends.cuda.lane import CudaEvent

    lane = record.__self__
    return lambda stream, submission, error=None: CudaEvent(stream, submission, lane, 0, 0, error)


# ---------------------------------------------------------------------- one mutant, in the fork


class Verdict:
    """A plugin of pytest: runs the tests marked `order` in a good order, and stops at the first that tells.

    Where only values count, the detectors are off, and a failure of another kind tells nothing.
    """

    def __init__(self, request: dict[str, Any], out: int) -> None:
        self.first: str = request["platforms"][0]
        self.platform = self.first
        self.marked: bool = request.get("marked", True)
        self.only_values: bool = request["only_values"]
        self.wanted: tuple[str, ...] = ()
        self.seeds = range(0)
        self.out = out
        self.failure: dict[str, str] | None = None

    def tell(self, **message: Any) -> None:
        os.write(self.out, (json.dumps(message) + "\n").encode())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._serves(item)]
        items.sort(key=lambda item: getattr(_case(item), "seed", 0))
        if self.only_values:
            _blind()

    def _serves(self, item: pytest.Item) -> bool:
        """The named tests of the platform at hand, and with the first one those that choose for themselves."""
        case = _case(item)
        return (
            (not self.marked or item.get_closest_marker("order") is not None)
            and not (self.only_values and item.get_closest_marker("planted"))
            and item.nodeid.partition("[")[0].startswith(self.wanted)
            and self.platform == (self.first if case is None else case.name)
            and (0 if case is None else case.seed) in self.seeds
        )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tell(test=nodeid)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        yield
        if call.excinfo is None or self.failure is not None or call.excinfo.errisinstance(pytest.skip.Exception):
            return
        how = how_it_failed(call.excinfo.value)
        if self.only_values and how != "value":
            return
        text = str(call.excinfo.value).strip().split("\n")[0][:160]
        self.failure = {"test": item.nodeid, "how": how, "text": f"{call.excinfo.typename}: {text}"}
        self.tell(**self.failure)
        item.session.shouldstop = "killed"


def _case(item: pytest.Item) -> Any:
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("platform") if callspec is not None else None
    return case if hasattr(case, "seed") else None


def how_it_failed(error: BaseException) -> str:
    """``value``, ``report``, ``hang``, or ``error`` for all other exceptions and ``assertion`` for other assertions."""
    kind = type(error).__name__
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    if kind == "RaceError" or "assert_no_reports" in frames:
        return "report"
    if kind == "DeadlockError":
        return "hang"
    if kind in ("WrongValueError", "WrongError") or "assert_array_compare" in frames:
        return "value"
    return "assertion" if isinstance(error, AssertionError) else "error"


def _blind() -> None:
    """Turn the detectors off: only values count."""
    from cuplace.runtime.platform import Platform
    from tests import fakegpus

    Platform.check_order = lambda self, wanted: None  # type: ignore[method-assign]
    fakegpus.assert_no_reports = lambda: None


def run_mutant(request: dict[str, Any], out: int) -> None:
    """Import the product with the mutant in it, run tests, and tell what happened."""
    site = request["site"]
    if site is not None:
        finder: Any = Mutation(site["module"], site["path"], site["place"], site["mutant"])
        sys.meta_path.insert(0, finder)
    builtins.GUARD_COMPLETE = complete  # type: ignore[attr-defined]
    verdict = Verdict(request, out)
    arguments = ["-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    # Where cuplace is installed, it is a plugin, and pytest would rewrite its modules in the place of the mutant.
    arguments += ["--assert=plain", "-W", "ignore::pytest.PytestAssertRewriteWarning", *request["options"]]
    rounds = (range(FEW), range(FEW, 1 << 30))[: 1 if request.get("quick") else 2]
    for seeds, platform, stage in itertools.product(rounds, request["platforms"], request["stages"]):
        # Stage after stage, since collecting tests takes its time, too.
        verdict.platform, verdict.seeds, verdict.wanted = platform, seeds, tuple(stage)
        files = [str(ROOT / file) for file in dict.fromkeys(name.partition("::")[0] for name in stage)]
        status = pytest.main([*arguments, "--platform", platform, *files], plugins=[verdict])
        if verdict.failure is not None:
            break
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            verdict.tell(test="", how="error", text=f"pytest ends with {status!r}")
            break
    verdict.tell(finished=True)


# ---------------------------------------------------------------------- the process that forks


def serve() -> None:
    """Answer requests until there are no more."""
    replies = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    if not os.environ.get("GUARD_VERBOSE"):
        os.dup2(null, 2)
    for line in sys.stdin:
        request = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            if os.environ.get("GUARD_VERBOSE"):
                os.dup2(2, 1)
            try:
                run_mutant(request, writing)
            except BaseException as error:
                os.write(writing, (json.dumps({"test": "", "how": "error", "text": repr(error)[:200]}) + "\n").encode())
            os._exit(0)
        os.close(writing)
        verdict = _listen(child, reading, request["seconds"])
        os.close(reading)
        replies.write(json.dumps(verdict) + "\n")
        replies.flush()


def _listen(child: int, reading: int, seconds: float) -> dict[str, Any]:
    """The verdict of a fork. One that tells nothing for long hangs; one that needs too long is stopped."""
    begin = time.monotonic()
    state: dict[str, Any] = {"how": "survived", "test": "", "text": ""}
    current, rest, told, used_before = "", b"", False, 0.0
    heard = begin
    while True:
        ready, _, _ = select.select([reading], [], [], 1.0)
        used = _cpu_seconds(child)
        silent = 0.0 if ready else time.monotonic() - heard
        if silent > (HANGS_AFTER if current and used - used_before < ASLEEP else STARTS_WITHIN):
            state = {"how": "hang", "test": current, "text": ""}
            break
        if current and used - used_before > SPINS_AFTER:
            state = {"how": "hang", "test": current, "text": ""}
            break
        if used > seconds:
            state = {"how": "stopped", "test": current, "text": ""}
            break
        if not ready:
            continue
        heard = time.monotonic()
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            if not told and current and not state.get("finished"):
                state = {"how": "crash", "test": current, "text": "the process ended"}
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for message in map(json.loads, lines):
            if "how" in message:
                state, told = message, True
            elif message.get("finished"):
                state["finished"] = True
            else:
                current, used_before = message["test"], _cpu_seconds(child)
        if told or state.get("finished"):
            break
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    state["seconds"] = round(time.monotonic() - begin, 1)
    state.pop("finished", None)
    return state


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    serve()
