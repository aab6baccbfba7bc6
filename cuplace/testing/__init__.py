"""For tests of programs that use cuplace: faults on demand, and a pytest plugin that gives each test its platform.

`faults` is loaded at its first use; the plugin, `cuplace.testing.plugin`, is loaded by pytest. Importing this package
loads neither, so a program that runs without pytest is not touched by it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cuplace.testing.injection import faults

__all__ = ["faults"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'cuplace.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("cuplace.testing.injection"), name)
    return value
