"""Progress: how far a benchmark is, on standard error, where a person looks at it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Progress:
    """Says nothing: what a benchmark has unless somebody looks at it."""

    def expect(self, steps: int) -> None:
        """So many steps there will be, which the benchmark only knows when it runs."""

    def step(self, text: str) -> None:
        """The next of the steps begins."""


class _Line(Progress):
    def __init__(self, title: str, steps: int) -> None:
        self._title = title
        self._steps = steps
        self._begun = 0

    def expect(self, steps: int) -> None:
        self._steps = steps

    def step(self, text: str) -> None:
        self._begun += 1
        line = f"{self._title}: {self._begun} of {self._steps}, {text}"
        print(f"{line:78.78}", end="\r", file=sys.stderr, flush=True)


class _Bar(Progress):
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task
        self._begun = 0

    def expect(self, steps: int) -> None:
        self._bar.update(self._task, total=steps)

    def step(self, text: str) -> None:
        self._bar.update(self._task, description=text, completed=self._begun)
        self._begun += 1


@contextmanager
def progress(title: str, steps: int) -> Iterator[Progress]:
    """A bar while the ``with`` block runs, if standard error is a terminal; without rich, a line."""
    if not sys.stderr.isatty():
        yield Progress()
    elif importlib.util.find_spec("rich") is None:
        yield _Line(title, steps)
        print(f"{'':78}", end="\r", file=sys.stderr, flush=True)
    else:
        with _bar(title, steps) as bar:
            yield bar


@contextmanager
def _bar(title: str, steps: int) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    counts = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    columns = (TextColumn(title), *counts, TextColumn("{task.description}"))
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar, bar.add_task("", total=steps))
