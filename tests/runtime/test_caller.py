"""The user's line."""

from __future__ import annotations

import inspect
import os
import pickle

import pytest

import cuplace
from cuplace.runtime import caller as caller_module
from cuplace.runtime.caller import Line, caller

PACKAGE = os.path.dirname(cuplace.__file__)


def as_if_in(filename: str, source: str = "def call(function):\n    return function()\n") -> object:
    """A function that calls another one, compiled as if it stood in that file."""
    space: dict[str, object] = {}
    exec(compile(source, filename, "exec"), space)
    return space["call"]


def here() -> int:
    return inspect.currentframe().f_back.f_lineno


def test_it_is_the_line_of_the_call() -> None:
    line = caller()
    assert line is not None
    assert (line.file, line.lineno, line.function) == (__file__, here() - 2, "test_it_is_the_line_of_the_call")
    assert line.column == 11
    assert str(line) == f"{__file__}:{line.lineno} (test_it_is_the_line_of_the_call)"
    assert line.with_column() == f"{__file__}:{line.lineno}:11 (test_it_is_the_line_of_the_call)"


def test_inside_a_longer_expression_it_is_the_line_of_the_call() -> None:
    line = max(
        [
            caller()
        ]
    )  # fmt: skip
    assert (line.lineno, line.column) == (here() - 3, 12)


def test_two_calls_of_a_line_differ_by_column() -> None:
    a, b = caller(), caller()
    assert a.lineno == b.lineno
    assert (a.column, b.column) == (11, 21)
    assert a != b


def test_loops_give_equal_lines() -> None:
    lines = [caller() for _ in range(3)]
    assert lines[0] == lines[1] == lines[2]
    assert len(set(lines)) == 1


@pytest.mark.parametrize("inside", ["runtime/device.py", "numpy/anything.py", "__init__.py", "<cuplace segment>"])
def test_our_own_frames_are_skipped(inside: str) -> None:
    ours = as_if_in(inside if inside.startswith("<") else os.path.join(PACKAGE, inside))
    line = ours(lambda: ours(caller))
    assert line.file == __file__
    assert line.function == "<lambda>"
    assert ours(caller).function == "test_our_own_frames_are_skipped"


@pytest.mark.parametrize("outside", ["/somewhere/else.py", PACKAGE + "_tools/x.py", "<stdin>", "demo.py"])
def test_frames_elsewhere_are_the_users(outside: str) -> None:
    theirs = as_if_in(outside)
    assert theirs(caller).file == outside


@pytest.mark.parametrize("user", ["demo/pipeline.py", "cli.py"])
def test_our_command_line_is_a_user(user: str) -> None:
    filename = os.path.join(PACKAGE, user)
    assert as_if_in(filename)(caller).file == filename


def test_code_without_a_file_is_the_users_wherever_the_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PACKAGE)
    monkeypatch.setattr(caller_module, "_is_ours", {})
    assert as_if_in("<stdin>")(caller).file == "<stdin>"
    assert as_if_in("<ipython-input-1>")(caller).file == "<ipython-input-1>"


def test_a_line_without_columns_still_has_a_number() -> None:
    line = Line(as_if_in("/somewhere/else.py").__code__, 1 << 20)
    assert line.lineno == 1
    assert line.column == 0


def test_lines_are_small_values() -> None:
    line = caller()
    assert isinstance(line, tuple)
    assert hash(line) == hash(Line(*line))
    with pytest.raises(TypeError):
        pickle.dumps(line)  # code does not pickle: errors that travel carry text
