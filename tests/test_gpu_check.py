"""`bench/gpu_check.sh`: it runs on fake GPUs, so that it runs on real ones, and says what fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import gpu_check
from tests import fakegpus, hardware

ROOT = Path(__file__).resolve().parent.parent
TIMES = ("seconds", "share", "gb_per_s", "faster", "_s")

pytestmark = pytest.mark.skipif(hardware.chosen(), reason="it is what runs these tests")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "bench" / "gpu_check.sh"), *arguments]
    given = {**os.environ, "PYTHON": sys.executable, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=given, cwd="/")


def figures(found: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every number or text of a JSON with its name."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield from figures(value, key)
    elif isinstance(found, list):
        for value in found:
            yield from figures(value, name)
    else:
        yield name, found


def test_it_runs_on_fake_gpus_without_times(tmp_path: Path) -> None:
    if fakegpus.missing():
        pytest.skip(fakegpus.missing())
    done = run("--out", str(tmp_path / "out"), "tests/gpu/test_memory.py::test_a_limit_is_kept")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert report["fake"] is True
    assert (report["tests"]["passed"], report["tests"]["failed"], report["failed"]) == (1, [], [])
    assert {"machine", "bandwidth", "overlap", "pipeline", "dispatch", "wait"} == set(report["figures"])
    for name, value in figures(report):
        assert (value is None) == name.endswith(TIMES) or name == "driver", (name, value)
    page = (tmp_path / "out" / "gpu_check.txt").read_text()
    assert done.stdout == page
    assert page.startswith("cuplace on fake GPUs: no times\n")
    assert page.endswith("\nAll passed.\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--minutes", "soon"), "argument --minutes: 'soon' is not a number of minutes up to 60"),
        (("--minutes", "-1"), "argument --minutes: '-1' is not a number of minutes up to 60"),
        (("--out", "README.md/x", "tests/nothing.py"), "there are no tests at 'tests/nothing.py'"),
        (("--out", "README.md"), "--out README.md is not a folder"),
        (("--color",), "unrecognized arguments: --color"),
    ],
)
def test_a_wrong_option_is_one_clear_line(arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gpu_check: {said} (see bash bench/gpu_check.sh --help)\n"


def test_what_is_missing_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_check, "_missing", lambda fake: "cupy cannot be imported: pip install it")
    assert gpu_check.main(["--out", str(tmp_path)]) == 1
    assert capsys.readouterr() == ("", "gpu_check: cupy cannot be imported: pip install it\n")


# ---------------------------------------------------------------------- what fails


TESTS = """
import pathlib, time, pytest
pytestmark = pytest.mark.gpu

def test_passes(): pass

def test_fails(): assert False

def test_skips(): pytest.skip("one GPU")

@pytest.fixture
def broken(): raise ValueError

def test_is_broken(broken): pass

def test_lasts():
    pathlib.Path("lasts").touch()
    time.sleep({sleep})
"""


def outcome(folder: Path, monkeypatch: pytest.MonkeyPatch, sleep: float, limit: float) -> dict[str, Any]:
    """What is found of a few tests of a checkout of their own."""
    (folder / "tests").mkdir()
    (folder / "tests" / "test_it.py").write_text(TESTS.format(sleep=sleep))
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -ra\nmarkers = gpu\n")
    monkeypatch.setattr(gpu_check, "ROOT", folder)
    return gpu_check.run_tests(["tests"], folder, limit)


def test_failures_are_named_and_skips_have_their_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = outcome(tmp_path, monkeypatch, sleep=0, limit=60)
    assert (tests["passed"], tests["skipped"], tests["not_run"]) == (2, 1, 0)
    assert "SKIPPED [1] tests/test_it.py:9: one GPU" in tests["reasons"]
    assert gpu_check.failures({"figures": {}, "tests": tests}) == [
        "test: tests/test_it.py::test_fails",
        "test: tests/test_it.py::test_is_broken",
    ]


def test_tests_that_take_too_long_are_ended_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    class Ended(subprocess.Popen[str]):
        def wait(self, timeout: float | None = None) -> int:
            while timeout and self.poll() is None and not (tmp_path / "lasts").exists():
                time.sleep(0.05)
            if timeout and self.poll() is None:
                raise subprocess.TimeoutExpired("pytest", timeout)
            return super().wait()

    monkeypatch.setattr(subprocess, "Popen", Ended)
    tests = outcome(tmp_path, monkeypatch, sleep=60, limit=4)
    assert (tests["passed"], tests["not_run"], tests["status"]) == (1, 1, None)
    found = gpu_check.failures({"figures": {}, "tests": tests})
    assert found[-1] == "tests: 1 had not run when the time was over"


def test_figures_that_fail_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "_run", lambda command, log, limit: (1, "Traceback ...\nRuntimeError: no GPU\n"))
    assert gpu_check.run_figures(False, tmp_path, 1) == {"error": "RuntimeError: no GPU", "log": "figures.log"}
    monkeypatch.setattr(gpu_check, "_run", lambda command, log, limit: (None, ""))
    report = {"figures": gpu_check.run_figures(False, tmp_path, 1), "tests": outcome_of_nothing()}
    assert gpu_check.failures(report) == ["figures: not ready after 1 s"]
    page = gpu_check.text({**report, "fake": False, "failed": gpu_check.failures(report)})
    assert page.endswith("\nFAILED figures: not ready after 1 s\n")


def test_a_run_that_could_not_begin_fails(tmp_path: Path) -> None:
    tests = {**outcome_of_nothing(), "status": 4, "log": "tests.log"}
    found = gpu_check.failures({"figures": {}, "tests": tests})
    assert found == ["tests: pytest ended with status 4, see tests.log"]


def outcome_of_nothing() -> dict[str, Any]:
    return {"status": 0, "passed": 0, "skipped": 0, "failed": [], "not_run": 0, "reasons": []}


# ---------------------------------------------------------------------- the page of text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.5e-6, "4.5 us"), (-3e-6, "-3 us"), (None, "-")]
)
def test_times_have_units(seconds: float | None, text: str) -> None:
    assert gpu_check._time(seconds) == text


def test_without_hypothesis_tests_of_properties_are_left_out() -> None:
    """Where only what users install, and pytest, is there."""
    program = (
        "import importlib.util as util, sys\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'hypothesis' else find(name, *rest)\n"
        "sys.modules['hypothesis'] = None\n"
        "import pytest\n"
        "sys.exit(pytest.main(['-q', '--collect-only', '-p', 'no:cacheprovider', 'tests/placement', 'tests/transfer']))"
    )
    given = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests/placement/test_axes.py" in done.stdout
    assert "tests/placement/test_box.py" not in done.stdout
    assert "tests/transfer/test_plan.py" not in done.stdout
