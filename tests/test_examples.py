"""Every example in a docstring does what it shows."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

from cuplace.runtime.platform import Platform

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [*(ROOT / "cuplace").rglob("*.py"), *(ROOT / "bench").glob("*.py")]
FILES = [path for path in sorted(SOURCES) if ">>>" in path.read_text()]
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in FILES]
MODULES += ["cuplace.kernels"]


# Examples name CPU devices where they show one.
@pytest.mark.parametrize("platform", ["cpu"], indirect=True)
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of(name: str, platform: Platform) -> None:
    module = import_module(name)
    import_module("cuplace._public")
    failures, tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert tried
    assert not failures, "see the captured output"
