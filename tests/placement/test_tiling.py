from __future__ import annotations

import pytest

from cuplace.placement.spec import UNCONSTRAINED
from cuplace.placement.tiling import Tiling, tile


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((), Tiling((), ((),) * 6)),
        ((None,), Tiling((1,), ((0,),) * 6)),
        ((UNCONSTRAINED,), Tiling((1,), ((0,),) * 6)),
        ((("x",),), Tiling((2,), ((0,), (0,), (0,), (1,), (1,), (1,)))),
        ((("y",),), Tiling((3,), ((0,), (1,), (2,), (0,), (1,), (2,)))),
        ((("x", "y"),), Tiling((6,), ((0,), (1,), (2,), (3,), (4,), (5,)))),
        ((("y", "x"),), Tiling((6,), ((0,), (2,), (4,), (1,), (3,), (5,)))),
        ((("y",), ("x",)), Tiling((3, 2), ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)))),
    ],
)
def test_pieces_are_numbered_by_the_axes_first_one_major(entries, expected):
    assert tile((2, 3), ("x", "y"), entries) == expected


def test_a_mesh_without_axes_has_one_place():
    assert tile((), (), (None, None)) == Tiling((1, 1), ((0, 0),))
