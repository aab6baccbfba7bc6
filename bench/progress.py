"""Progress: how far a benchmark is, on standard error, where a person looks at it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Progress:
    """Says nothing: what a benchmark has unless somebody looks at it."""

    def step(self, text: str) -> None:
        """The next of the steps begins."""


class _Bar(Progress):
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task
        self._begun = 0

    def step(self, text: str) -> None:
        self._bar.update(self._task, description=text, completed=self._begun)
        self._begun += 1


@contextmanager
def progress(title: str, steps: int) -> Iterator[Progress]:
    """A bar while the ``with`` block runs, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    counts = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    columns = (TextColumn(title), *counts, TextColumn("{task.description}"))
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar, bar.add_task("", total=steps))
