"""A GPU that is lost, in a process of its own, since its context cannot be had back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import fakegpus, hardware

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]


def test_a_wild_pointer_loses_its_gpu_and_is_told() -> None:
    if not hardware.chosen() and fakegpus.missing():
        pytest.skip(fakegpus.missing())
    where, gpus = ("real", hardware.count()) if hardware.chosen() else ("fake", 8)
    command = [sys.executable, "-m", "tests.gpu.lost", where]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    for name in ("its result", "an array beside it", "a new array there"):
        assert told[name].startswith("GPU 0 (")
        assert " is lost: " in told[name]
    assert told.get("another GPU") == ("[0.0, 2.0, 4.0, 6.0]" if gpus > 1 else None)
    assert done.stdout.endswith("done\n")
