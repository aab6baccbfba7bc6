from __future__ import annotations

import doctest
from importlib import import_module

import pytest

MODULES = ["box", "spec", "axes", "abstract_mesh", "mesh", "tiling", "layout", "sharding", "commitment", "device"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name, platform):
    module = import_module(f"cuplace.placement.{name}")
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
