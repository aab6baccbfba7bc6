"""Runs CuPy's own tests, which come with its source, on the fake: a check of the fake itself.

    python -m tests.fakecuda.run_cupy_tests                       # cuda_tests/test_stream.py, in all four modes
    python -m tests.fakecuda.run_cupy_tests --mode lazy core_tests/test_ndarray.py -k add

What it does not know goes to pytest. Each mode runs in a process of its own. The exit status is 0 if all have passed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from tests.fakecuda import build
from tests.fakecuda.schedules import MODES

DEFAULT = "cuda_tests/test_stream.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests in each wanted mode."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mode", choices=MODES, help="one mode only")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args(argv)
    if options.inside:
        return _run_inside(options.mode, rest)
    worst = 0
    for mode in [options.mode] if options.mode else MODES:
        print(f"--- {mode}", flush=True)
        command = [sys.executable, "-m", "tests.fakecuda.run_cupy_tests", "--inside", "--mode", mode, *rest]
        worst = max(worst, subprocess.run(command, check=False).returncode)
    return worst


def _run_inside(mode: str, rest: Sequence[str]) -> int:
    # Not a -p plugin of pytest: a `filterwarnings` setting that names a CuPy class makes pytest import CuPy before
    # it loads plugins.
    from tests import fakecuda

    fakecuda.install(mode=mode)
    import pytest

    tests = build.cupy_source() / "tests" / "cupy_tests"
    paths = [str(tests / word) if (tests / word.split("::")[0]).exists() else word for word in rest]
    if not any(path.startswith(str(tests)) for path in paths):
        paths.append(str(tests / DEFAULT))
    # Their own settings file is left out: its warnings filters are about CuPy's build.
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(tests), "-c", "/dev/null", *paths]))


if __name__ == "__main__":
    sys.exit(main())
