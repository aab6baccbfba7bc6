"""Figure: a measured value with its spread; and how values of all kinds are told."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SECONDS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
BYTES = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
SCALES: dict[str, tuple[tuple[str, float], ...]] = {
    "s": SECONDS, "B": BYTES, "B/s": (("GB/s", 1e9),), "flop/s": (("TFLOP/s", 1e12), ("GFLOP/s", 1e9)),
    "share": (("%", 0.01),), "x": (("x", 1.0),), "": (("", 1.0),),
}  # fmt: skip
"""The units that a benchmark may give, and what they are told in: the first that is not too large."""


@dataclass(frozen=True)
class Figure:
    """The median of samples, and their range.

    Attributes:
        unit: one of `SCALES`: `s`, `B`, `B/s`, `flop/s`, `share` (of 1), `x` (times), or nothing.
    """

    median: float
    low: float
    high: float
    unit: str = "s"

    @classmethod
    def of(cls, samples: Iterable[float], unit: str = "s") -> Figure | None:
        """None where there are no samples, as on fake GPUs."""
        found = sorted(samples)
        return cls(statistics.median(found), found[0], found[-1], unit) if found else None

    def __str__(self) -> str:
        text = told(self.median, self.unit)
        if self.low == self.high:
            return text
        name, scale = scale_of(self.median, self.unit)
        low, high = (_digits(end / scale, name) for end in (self.low, self.high))
        return f"{text} [{low}..{high}]"


def scale_of(value: float, unit: str) -> tuple[str, float]:
    """The unit that suits a value, and how much one of it is."""
    scales = SCALES[unit]
    return next((pair for pair in scales if abs(value) >= pair[1]), scales[-1])


def told(value: float, unit: str) -> str:
    """A value with its unit.

    >>> told(0.0123, "s"), told(3 * 2**20, "B"), told(0.957, "share"), told(2.5, "x"), told(0, "s")
    ('12.3 ms', '3 MiB', '95.7%', '2.5x', '0 s')
    """
    if not value or not math.isfinite(value):
        return f"{value:g}{_joined(SCALES[unit][0][0])}"
    name, scale = scale_of(value, unit)
    return f"{_digits(value / scale, name)}{_joined(name)}"


def _digits(value: float, name: str) -> str:
    """Percentages have one decimal at most."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0") if name == "%" else number(value)


def _joined(name: str) -> str:
    return name if name in ("%", "x", "") else f" {name}"


def number(value: float) -> str:
    """Four digits, without an exponent where there need be none.

    >>> number(12345.6), number(0.00123456), number(7.0)
    ('12346', '0.001235', '7')
    """
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def cell(value: Any, unit: str = "") -> str:
    """How a table tells a value; a dash where there is none."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, Figure):
        return str(value)
    return told(float(value), unit)
