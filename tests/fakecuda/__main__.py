"""Builds the fake now, and tells how long each step takes: ``python -m tests.fakecuda``."""

from __future__ import annotations

from tests.fakecuda import build

if __name__ == "__main__":
    print("built in", build.build(log=print))
    print("CuPy's source in", build.cupy_source())
