"""Pages say what is true on every platform, but for those that are about one, or about its figures.

`tests/test_readme.py` runs all pages as a user would, each in a process of its own, where no GPU answers. Here those
that choose no platform, and show no times and no memory of one, run on each, fake GPUs included: what they print
differs only in the names of devices.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cuplace.runtime.platform import Platform
from tests.test_readme import BLOCK, PAGES

EVERYWHERE = (
    "README.md", "coming-from-cupy.md", "coming-from-jax.md", "kernels.md", "placement.md", "tour.md", "transfers.md",
)  # fmt: skip


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_page_is_true_on_every_platform(
    name: str, platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = next(page for page in PAGES if page.name == name)
    namespace = {"__name__": "page"}
    for code, shown in _pairs(page):
        exec(compile(code, str(tmp_path / name), "exec"), namespace)
        assert capsys.readouterr().out == _named_after(platform, shown)


def _pairs(page: Path) -> list[tuple[str, str]]:
    blocks = [text for _, text in BLOCK.findall(page.read_text())]
    return list(zip(blocks[::2], blocks[1::2], strict=True))


def _named_after(platform: Platform, shown: str) -> str:
    """What a page shows of CPU devices, for the devices of a platform."""
    device = platform.devices[0]
    shown = shown.replace("CpuDevice", repr(device).partition("(")[0])
    shown = shown.replace("platform CPU", f"platform {device.platform.upper()}")
    return re.sub(r"\bcpu:", f"{device.platform}:", shown)
