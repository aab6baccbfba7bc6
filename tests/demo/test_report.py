from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path

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


def test_the_timeline_is_drawn_too(platform: Platform, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "timeline.svg"
    assert demo(Namespace(**vars(OPTIONS), svg=str(picture))) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Picture   {picture}"
    names = re.findall(r"<title>(\w+), data \d", picture.read_text())
    assert names.count("stage") == 3 * 2 * 4
    with pytest.raises(ValueError, match=r"--svg .*no/such.* cannot be written: No such file"):
        demo(Namespace(**vars(OPTIONS), svg=str(tmp_path / "no" / "such")))


def test_a_wrong_result_is_told_and_fails(
    platform: Platform, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "expected", lambda microbatch, stages: microbatch + np.float32(100))
    assert demo(OPTIONS) == 1
    assert "the 3 results DIFFER FROM NumPy's, largest difference 1.0e+02" in capsys.readouterr().out


def test_a_size_that_does_not_split_is_the_layouts_error(platform: Platform) -> None:
    with pytest.raises(ValueError, match="does not evenly divide the dimension size 3"):
        demo(Namespace(stages=2, microbatches=1, size=3))
