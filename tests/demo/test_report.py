from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest

from cuplace.demo import pipeline
from cuplace.demo.report import demo
from cuplace.runtime.platform import Platform

OPTIONS = Namespace(stages=2, microbatches=3, size=16)


def test_what_a_run_says(platform: Platform, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo(OPTIONS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"Platform  {platform.name}")
    assert lines[1] == f"Devices   8 x {platform.backend.device_class}"
    assert lines[2] == "Pipeline  2 stages of 4 devices, 3 microbatches of 16 x 16 float32 (1 KiB)"
    assert lines[3] == f"Running   [{'#' * 40}] 3 of 3 microbatches done"
    assert lines[4].startswith("Checked   the 3 results equal NumPy's, largest difference ")
    assert sum(" computes " in line for line in lines) == sum(" receives " in line for line in lines) == 8


def test_a_wrong_result_is_told_and_fails(
    platform: Platform, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "expected", lambda microbatch, stages: microbatch + np.float32(100))
    assert demo(OPTIONS) == 1
    assert "the 3 results DIFFER FROM NumPy's, largest difference 1.0e+02" in capsys.readouterr().out


def test_a_size_that_does_not_split_is_the_layouts_error(platform: Platform) -> None:
    with pytest.raises(ValueError, match="does not evenly divide the dimension size 3"):
        demo(Namespace(stages=2, microbatches=1, size=3))
