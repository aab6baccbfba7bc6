from __future__ import annotations

import gc
import threading

import pytest

from cuplace import errors
from cuplace.placement.value import Interner, Value


class Point(Value):
    __slots__ = ("__weakref__", "x")

    x: int

    def __init__(self, x: int) -> None:
        self._set(x=x)


def test_a_value_does_not_change():
    point = Point(3)
    with pytest.raises(errors.ImmutableError, match=r"cannot assign to field 'x'\nA Point never changes"):
        point.x = 4
    with pytest.raises(errors.ImmutableError, match="cannot delete field 'x'"):
        del point.x
    assert point.x == 3


def test_an_interner_keeps_what_is_in_use_and_nothing_else():
    points: Interner[Point] = Interner()
    point = points.get(1, lambda: Point(1))
    assert points.get(1, lambda: Point(1)) is point
    del point
    gc.collect()
    assert len(points._live) == 0


def test_threads_that_race_get_one_object():
    points: Interner[Point] = Interner()
    meet = threading.Barrier(8)
    got: list[Point] = []

    def make() -> Point:
        meet.wait()
        return Point(1)

    threads = [threading.Thread(target=lambda: got.append(points.get(1, make))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert len(set(map(id, got))) == 1
