"""Which lines of the cuda backend no test runs: `python -m tests.cuda_coverage`. Needs the fake CUDA and coverage.

Prints the share of lines that are run, and each line that is not with its reason, which stands in `not_run.toml` beside
the tests of backends. It fails where a line has no reason, where a reason is of a line that is run or gone, and where a
test fails. Options go to pytest: with `-n 2` it takes two minutes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BACKEND = ROOT / "cuplace" / "runtime" / "backends" / "cuda"
TABLE = ROOT / "tests" / "runtime" / "backends" / "not_run.toml"

TESTS = (
    "tests/runtime/backends", "tests/runtime/test_garbage.py", "tests/runtime/test_host_memory.py",
    "tests/runtime/test_packing.py", "tests/runtime/test_topology.py", "tests/array/test_dlpack.py",
    "tests/array/test_foreign.py", "tests/staging/test_kernel.py", "tests/staging/test_map_shards.py",
    "tests/transfer/test_host_moves.py", "tests/test_testing.py",
)  # fmt: skip
"""Those that run all lines in a short time; of these, what runs on cuda."""

SETTINGS = """
[run]
source_pkgs = cuplace.runtime.backends.cuda
data_file = {folder}/data
parallel = true
patch = subprocess
[report]
exclude_also =
    if TYPE_CHECKING:
"""

Line = tuple[str, str]
"""A file of the backend, and a line of it without the space around."""


def reasons() -> dict[Line, str]:
    """Why lines are not run: from the table."""
    table = tomllib.loads(TABLE.read_text())
    return {(name, code): reason for name, lines in table.items() for code, reason in lines.items()}


def judge(missing: Iterable[Line], known: dict[Line, str]) -> tuple[list[Line], list[Line]]:
    """The lines that are not run and have no reason, and those that have one and need none.

    >>> judge([("a.py", "x = 1"), ("a.py", "y = 2")], {("a.py", "x = 1"): "...", ("a.py", "z = 3"): "..."})
    ([('a.py', 'y = 2')], [('a.py', 'z = 3')])
    """
    found = list(dict.fromkeys(missing))
    return [line for line in found if line not in known], [line for line in known if line not in found]


def measure(options: list[str]) -> tuple[int, int, list[tuple[str, int, str]]]:
    """The status of pytest, how many lines there are, and those that are not run: file, number and code."""
    import coverage

    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "settings"
        settings.write_text(SETTINGS.format(folder=folder))
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q"]
        command += ["-p", "no:cacheprovider", "-k", "cuda", *options, *TESTS]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        data = coverage.Coverage(config_file=str(settings))
        data.combine()
        count, missing = 0, []
        for path in sorted(BACKEND.glob("*.py")):
            _, statements, _, not_run, _ = data.analysis2(str(path))
            code = path.read_text().splitlines()
            count += len(statements)
            missing += [(path.name, number, code[number - 1].strip()) for number in not_run]
    return status, count, missing


def main(options: list[str]) -> int:
    """The exit status: 0 where all tests pass and each line that is not run has its reason."""
    status, count, missing = measure(options)
    known = reasons()
    share = 100 * (count - len(missing)) / count
    print(f"\n{count - len(missing)} of {count} lines of the cuda backend are run: {share:.1f}%")
    for name, number, code in missing:
        print(f"  {name}:{number}: {code}\n      {known.get((name, code), 'NO REASON')}")
    unexplained, needless = judge(((name, code) for name, _, code in missing), known)
    print(
        f"{len(unexplained)} lines are not run and have no reason; {len(needless)} reasons are of lines that are run."
    )
    for name, code in needless:
        print(f"  {name}: {code}")
    return 1 if status or unexplained or needless else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
