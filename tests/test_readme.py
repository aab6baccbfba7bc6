"""What README and docs/ say is true: their code prints what they show, the commands are those that are tested."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cuplace.runtime.config import OPTIONS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *[p for p in sorted((ROOT / "docs").glob("*.md")) if "\n```python\n" in p.read_text()]]
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SEPARATOR = "-- end of block --"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    blocks = BLOCK.findall(page.read_text())
    assert [kind for kind, _ in blocks] == ["python", "text"] * (len(blocks) // 2)
    program = tmp_path / "page.py"
    program.write_text(f"print({SEPARATOR!r})\n".join(code for kind, code in blocks if kind == "python"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUPLACE_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**environment, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(SEPARATOR + "\n") == [text for kind, text in blocks if kind == "text"]


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = re.findall(r"^    (pip install .*)$", README, re.MULTILINE)
    assert commands[0] == "pip install -e . && python -m cuplace demo"
    assert f'step "{commands[1]}"' in (ROOT / ".ci" / "run").read_text()


def test_every_option_is_in_the_table() -> None:
    table = README.partition("## Which devices")[2].partition("\n## ")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert named == set(OPTIONS)
