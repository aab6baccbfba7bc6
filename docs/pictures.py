"""The pictures of the pages, from runs on the simulator, which are the same wherever they are made.

    python -m docs.pictures [FOLDER]

writes them anew, into docs/pictures where no folder is given: the timeline of the tour's pipeline, the plan of a move
between two layouts, and how much of transfers hides behind computing.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
FOLDER = DOCS / "pictures"
MACHINE = FOLDER / "eight-slow.toml"
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def timeline(folder: Path) -> None:
    """What the program of the tour draws."""
    program = "\n".join(PROGRAM.findall((DOCS / "tour.md").read_text()))
    code = compile(program, "tour.py", "exec")
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        exec(code, {"__name__": "tour"})


def plan(folder: Path) -> None:
    """Bytes between devices, from a training mesh of eight GPUs to a serving mesh of four."""
    arguments = ["float32[8192,8192]", "data=4,model=2/data,model/0-7", "model=4/-,model/4-7"]
    _run("cuplace", "plan", *arguments, "--machine", "hgx-h200", "--svg", str(folder / "plan.svg"))


def overlap(folder: Path) -> None:
    """The main plot of the benchmark of overlap."""
    _run("bench", "overlap", "--platform", "sim", "--machine", "hgx-h200", "--plot", str(folder / "overlap.svg"))


def _run(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    subprocess.run(command, check=True, cwd=DOCS.parent, stdout=subprocess.DEVNULL)


def main() -> None:
    """Make all of them."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    for name in [name for name in os.environ if name.startswith("CUPLACE_")]:
        del os.environ[name]
    os.environ.update(CUPLACE_PLATFORM="sim", CUPLACE_SIM_MACHINE=str(MACHINE))
    timeline(folder)
    del os.environ["CUPLACE_SIM_MACHINE"]
    plan(folder)
    overlap(folder)


if __name__ == "__main__":
    main()
