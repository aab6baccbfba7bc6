"""The program by hand does what the one with cuplace does, and needs every wait that it has."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuplace.runtime.platform import Platform
from tests import fakecuda, fakegpus

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coming-from-cupy.md").read_text()
BY_HAND = re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
WITH_CUPLACE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
WAITS = re.findall(r"^ *\w+\.wait_event\(.*$", BY_HAND, re.MULTILINE)
BATCHES = [np.full((4, 4), i, np.float32) for i in range(6)]

Run = Callable[[list[np.ndarray]], list[np.ndarray]]

by_hand = pytest.mark.skipif(fakegpus.missing() is not None, reason=str(fakegpus.missing()))


def run_of(program: str) -> Run:
    namespace: dict[str, Any] = {"__name__": "program"}
    exec(compile(program, "coming-from-cupy.md", "exec"), namespace)
    run: Run = namespace["run"]
    return run


def check(results: list[np.ndarray]) -> None:
    for batch, result in zip(BATCHES, results, strict=True):
        np.testing.assert_allclose(result, np.sqrt(np.sin(batch) + 1), rtol=1e-5)


def test_the_program_with_cuplace(platform: Platform, capsys: pytest.CaptureFixture[str]) -> None:
    check(run_of(WITH_CUPLACE)(BATCHES))
    assert capsys.readouterr().out == "6 batches\n"


@by_hand
@pytest.mark.parametrize("mode", ["eager", "lazy", "random"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_the_program_by_hand(mode: str, gpus: int) -> None:
    fakecuda.reset()
    fakecuda.set_mode(mode, 1)
    with fakecuda.visible_devices(gpus):
        check(run_of(BY_HAND)(BATCHES))
    fakegpus.assert_no_reports()


@by_hand
@pytest.mark.parametrize("wait", WAITS, ids=str.strip)
def test_a_wait_that_is_left_out_is_a_race(wait: str) -> None:
    fakecuda.reset()
    fakecuda.set_mode("lazy")
    run_of(BY_HAND.replace(wait, ""))(BATCHES)
    assert fakecuda.take_reports()


def test_there_are_waits_to_leave_out() -> None:
    assert len(set(WAITS)) == 8
