"""The programs of docs/examples run on every platform, check their own values, and say what their pages show."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from cuplace.runtime.platform import Platform

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "examples"
SMALL = {
    "pipelined_inference": ["--features", "16", "--rows", "8", "--microbatches", "3"],
    "streamed_regression": ["--rows", "4000", "--features", "3", "--batch", "400"],
    "parameters_to_serving": ["--width", "16"],
}
SHOWN = {
    "pipelined_inference": ["The results of 3 microbatches of 8 x 16 are NumPy's."],
    "streamed_regression": ["a device held at most", "3 unknowns from 4,000 rows: as NumPy finds them."],
    "parameters_to_serving": [
        "'in' of each layer: 1,024 bytes in 16 moves",
        "were allowed.",
        "served by 4 devices, is NumPy's.",
    ],
}


@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs(name: str, platform: Platform, capsys: pytest.CaptureFixture[str]) -> None:
    import_module(f"docs.examples.{name}").main(SMALL[name])
    printed = capsys.readouterr().out
    for line in SHOWN[name]:
        assert line in printed


def test_every_example_is_tested_and_short() -> None:
    programs = {path.stem: path for path in FOLDER.glob("*.py")}
    assert set(programs) == set(SMALL)
    for path in programs.values():
        assert len(path.read_text().splitlines()) < 120
