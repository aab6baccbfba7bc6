"""`pytest -m gpu` where GPUs answer; here fake ones play the GPUs of the machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fakegpus, hardware

ROOT = Path(__file__).resolve().parent.parent

PRETEND = """
import sys
import pytest


class FakeGpus:
    def pytest_load_initial_conftests(self):  # no sooner: pytest wants to import cuplace first, which is a plugin
        from tests import fakecuda, hardware

        fakecuda.install(devices={gpus}, mode="lazy")
        from cuplace.runtime.backends.cuda import hooks

        hooks.library = fakecuda.library_call
        hardware.count = lambda: {gpus}


sys.exit(pytest.main(["-v", "-p", "no:cacheprovider", *{arguments}], plugins=[FakeGpus()]))
"""


def run(gpus: int, *arguments: str) -> tuple[int, dict[str, str]]:
    """The exit status of pytest on so many GPUs, and the outcome of each test."""
    if fakegpus.missing():
        pytest.skip(fakegpus.missing())
    program = PRETEND.format(gpus=gpus, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.findall(r"^tests/\S*::(\S+\[\S+\]|\S+) ([A-Z]+)", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    return done.returncode, dict(found)


def test_on_one_gpu_what_needs_several_is_skipped() -> None:
    status, outcomes = run(1, "-m", "gpu", "tests/test_page.py", "tests/gpu/test_copies.py", "-k", "page or pair")
    assert status == 0
    assert outcomes["test_every_snippet_prints_what_the_page_prints[cuda-one]"] == "PASSED"
    assert outcomes["test_each_pair_delivers_and_says_how[cuda-all]"] == "SKIPPED"
    assert not [name for name in outcomes if "cpu" in name or "sim" in name]


def test_on_several_gpus_tests_run_on_one_and_on_all() -> None:
    status, outcomes = run(3, "-m", "gpu", "tests/test_page.py", "tests/gpu/test_copies.py", "-k", "page or pair")
    assert status == 0
    assert outcomes["test_every_snippet_prints_what_the_page_prints[cuda-one]"] == "PASSED"
    assert outcomes["test_every_snippet_prints_what_the_page_prints[cuda-all]"] == "PASSED"
    assert outcomes["test_each_pair_delivers_and_says_how[cuda-all]"] == "PASSED"


def test_no_gpu_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_ASK", "import ctypes; ctypes.CDLL('libnothing.so')")
    assert hardware.count.__wrapped__() == 0
    monkeypatch.setattr(hardware, "_ASK", "print(3)")
    assert hardware.count.__wrapped__() == 3


@pytest.mark.parametrize(("expression", "gpus", "chosen"), [("gpu", 2, True), ("gpu", 0, False), ("", 2, False)])
def test_hardware_is_chosen_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, expression: str, gpus: int, chosen: bool
) -> None:
    monkeypatch.setattr(hardware, "count", lambda: gpus)
    monkeypatch.setattr(hardware, "_chosen", False)
    hardware.choose(expression)
    assert hardware.chosen() is chosen
