"""The pictures of the pages are what the script makes of runs; pages show all of them, and no others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs import pictures

ROOT = pictures.DOCS.parent
MADE = sorted(path.name for path in pictures.FOLDER.glob("*.svg"))
PAGES = [ROOT / "README.md", *sorted(pictures.DOCS.glob("*.md"))]
LINK = re.compile(r"\]\(([\w./:-]+)(?:#[\w-]*)?\)")


def test_they_are_what_the_script_makes(tmp_path: Path) -> None:
    """On the simulator, whose times depend on nothing else: so they are equal to the byte."""
    subprocess.run([sys.executable, "-m", "docs.pictures", str(tmp_path)], check=True, cwd=ROOT)
    assert sorted(path.name for path in tmp_path.iterdir()) == MADE
    for name in MADE:
        same = (tmp_path / name).read_text() == (pictures.FOLDER / name).read_text()
        assert same, f"{name} is another one now; python -m docs.pictures makes all of them anew"


@pytest.mark.parametrize("name", MADE)
def test_they_are_small_and_can_be_drawn(name: str) -> None:
    text = (pictures.FOLDER / name).read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert len(text) < 100_000


def test_the_timeline_shows_every_microbatch_in_every_stage() -> None:
    """Eight microbatches on eight devices: a piece of computing for each, with the number on it."""
    text = (pictures.FOLDER / "timeline.svg").read_text()
    computed = re.findall(r"<title>stage, data (\d),", text)
    assert sorted(computed) == sorted("01234567" * 8)


def test_the_plot_of_overlap_shows_what_the_readme_says() -> None:
    text = (pictures.FOLDER / "overlap.svg").read_text()
    least = min(int(label) for label in re.findall(r">(\d+)%</text>", text))
    assert f"at least {least}% of the shorter one" in (ROOT / "README.md").read_text()


def test_links_of_pages_lead_somewhere() -> None:
    shown = set()
    for page in PAGES:
        for target in LINK.findall(page.read_text()):
            if not target.startswith("https://"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
                shown.add(Path(target).name)
    assert shown >= set(MADE)
    assert shown >= {page.name for page in PAGES[1:]} - {"index.md"}
