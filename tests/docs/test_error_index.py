"""The index of errors is what the code says: every class is there, with the message that its program gives."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuplace import errors
from docs import error_index

ROOT = Path(error_index.__file__).resolve().parent.parent
CLASSES = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}


def test_every_error_has_a_program() -> None:
    found = error_index.entries(error_index.PAGE.read_text())
    without = sorted(name for name in CLASSES if not found.get(name, ("", ""))[0])
    assert not without, f"write programs that raise {without} into docs/errors.md, then python -m docs.error_index"
    assert set(found) == CLASSES
    assert set(error_index.built()) < CLASSES


def test_the_page_is_what_its_programs_and_the_code_give(tmp_path: Path) -> None:
    """In a process of its own: its programs change options, and choose the simulator."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUPLACE_")}
    written = tmp_path / "errors.md"
    done = subprocess.run(
        [sys.executable, "-m", "docs.error_index", str(written)],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert written.read_text() == error_index.PAGE.read_text(), "python -m docs.error_index writes it anew"


def test_a_program_that_gives_another_error_is_told() -> None:
    other = ZeroDivisionError("division by zero")
    with pytest.raises(AssertionError, match="the program of AxisNameError gives ZeroDivisionError"):
        error_index.entry(errors.AxisNameError, "AxisNameError", "1 / 0\n", "", other)
