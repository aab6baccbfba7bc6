"""Intervals of time: pairs (start, end), and what several of them have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, as disjoint ones in order.

    >>> merged([(4, 5), (0, 2), (1, 3)])
    [(0, 3), (4, 5)]
    """
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def common(interval: Interval, union: Sequence[Interval]) -> float:
    """How much of an interval lies in a union of disjoint ones.

    >>> common((1, 4), [(0, 2), (3, 9)])
    2.0
    """
    start, end = interval
    return float(sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in union))


def length(intervals: Iterable[Interval]) -> float:
    """The sum of their lengths."""
    return float(sum(end - start for start, end in intervals))
