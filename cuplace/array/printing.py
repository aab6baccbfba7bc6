"""How arrays print: their values as NumPy prints them, and their dtype; where they live does not show."""

from __future__ import annotations

import numpy as np


def array_repr(values: np.ndarray, weak_type: bool) -> str:
    """``Array([0., 1.], dtype=float32)``, broken where NumPy breaks lines.

    >>> array_repr(np.float32([0, 1]), False)
    'Array([0., 1.], dtype=float32)'
    >>> array_repr(np.zeros((0, 3), "int32"), False)
    'Array([], shape=(0, 3), dtype=int32)'
    """
    opening = "Array("
    tail = f"dtype={values.dtype.name}{', weak_type=True' if weak_type else ''})"
    width = np.get_printoptions()["linewidth"]
    if values.size:
        body = np.array2string(values, max_line_width=width, separator=", ", prefix=opening, suffix=",")
    else:
        body = f"[], shape={values.shape}"
    last_line = (opening + body).rpartition("\n")[2]
    fits = len(last_line) + len(", ") + len(tail) <= width
    return f"{opening}{body}, {tail}" if fits else f"{opening}{body},\n{' ' * len(opening)}{tail}"
