"""The benchmarks: `python -m bench`. A benchmark is a module; `harness` says what it offers."""

from __future__ import annotations
