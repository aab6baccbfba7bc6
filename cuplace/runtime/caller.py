"""The user's line: where in the caller's program an array was committed or work was enqueued."""

from __future__ import annotations

import os
import sys
import warnings
from types import CodeType, FrameType
from typing import NamedTuple

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_USER_PARTS = (_PACKAGE + "demo", _PACKAGE + "cli.py")  # our own command line is a user of the library
_is_ours: dict[str, bool] = {}


class Line(NamedTuple):
    """One place in a source file, kept as (code, instruction) and resolved only when somebody reads it.

    Taking one costs a few hundred nanoseconds; looking up its line number would cost more, and nearly
    all lines are never shown.
    """

    code: CodeType
    instruction: int

    @property
    def file(self) -> str:
        return self.code.co_filename

    @property
    def function(self) -> str:
        return self.code.co_name

    @property
    def lineno(self) -> int:
        return self._position()[0] or self.code.co_firstlineno

    @property
    def column(self) -> int:
        """Zero-based column where the calling expression starts, as in JAX's messages."""
        return self._position()[2] or 0

    def _position(self) -> tuple[int | None, int | None, int | None, int | None]:
        for i, position in enumerate(self.code.co_positions()):
            if i == self.instruction // 2:
                return position
        return (None, None, None, None)

    def __str__(self) -> str:
        return f"{self.file}:{self.lineno} ({self.function})"

    def with_column(self) -> str:
        """``FILE:LINE:COLUMN (function)``, the form that errors raised under ``jit`` use; the name is the full one."""
        return f"{self.file}:{self.lineno}:{self.column} ({self.code.co_qualname})"


_make_line = tuple.__new__  # the constructor of a NamedTuple costs twice as much


def caller() -> Line | None:
    """The innermost frame outside this package, or None when there is none (an embedded interpreter).

    >>> caller().function
    '<module>'
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        ours = _is_ours.get(code.co_filename)
        if ours is None:
            ours = _classify(code.co_filename)
        if not ours:
            return _make_line(Line, (code, frame.f_lasti))
        frame = frame.f_back
    return None


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn as if the user's line had; Python's filters of warnings see that line.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_caller("text", UserWarning)
    >>> caught[0].category is UserWarning, caught[0].lineno
    (True, 3)
    """
    line = caller()
    if line is None:
        warnings.warn(text, category, stacklevel=2)
    else:
        warnings.warn_explicit(text, category, filename=line.file, lineno=line.lineno)


def _classify(filename: str) -> bool:
    if filename.startswith("<"):  # code without a file: the user's, unless we generated it
        ours = filename.startswith("<cuplace ")
    else:
        path = os.path.abspath(filename)
        ours = path.startswith(_PACKAGE) and not path.startswith(_USER_PARTS)
    _is_ours[filename] = ours
    return ours
