from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.placement.commitment import Conflict, governing
from cuplace.placement.mesh import AxisType, make_mesh
from cuplace.placement.sharding import NamedSharding, SingleDeviceSharding
from cuplace.placement.spec import P
from tests.placement.pretend import DEVICES, grid, line

AUTO = AxisType.Auto


def on(mesh, *spec):
    return NamedSharding(mesh, P(*spec))


SINGLE_0, SINGLE_1 = SingleDeviceSharding(DEVICES[0]), SingleDeviceSharding(DEVICES[1])
ONE_0, ONE_1 = on(line(1)), on(line(1, first=1))
ONE_0_Z = on(line(1, "z"))
NO_AXES = on(make_mesh((), (), devices=DEVICES))
FULL, FULL_CUT = on(line(8)), on(line(8), "x")
REVERSED = on(make_mesh((8,), ("x",), devices=DEVICES[7::-1]))
OTHER_NAME, OTHER_SHAPE = on(line(8, "z")), on(grid(2, 4))
HALF_A, HALF_B = on(line(4)), on(line(4, first=4))
AUTO_LINE, AUTO_GRID = on(line(8, kind=AUTO)), on(grid(2, 4, kind=AUTO))
AUTO_B = on(line(4, kind=AUTO, first=4))
MIXED = on(make_mesh((2, 4), ("x", "y"), (AUTO, AxisType.Explicit), devices=DEVICES))

EVERYTHING = [
    SINGLE_0, SINGLE_1, ONE_0, ONE_1, ONE_0_Z, NO_AXES, FULL, FULL_CUT, REVERSED, OTHER_NAME, OTHER_SHAPE, HALF_A,
    HALF_B, AUTO_LINE, AUTO_GRID, AUTO_B, MIXED,
]  # fmt: skip


@pytest.mark.parametrize(
    ("shardings", "decides"),
    [
        ([SINGLE_1], 0),
        ([FULL, FULL_CUT], 0),
        ([SINGLE_0, ONE_0], 1),
        ([ONE_0, SINGLE_0], 0),
        ([SINGLE_0, SINGLE_0, ONE_0], 2),
        ([SINGLE_0, NO_AXES], 1),
        ([NO_AXES, ONE_0], 1),
        ([SINGLE_0, NO_AXES, ONE_0, ONE_0_Z], 2),
        ([AUTO_LINE, AUTO_GRID], 0),
        ([AUTO_GRID, AUTO_LINE], 0),
        ([FULL, OTHER_NAME, MIXED], 0),
    ],
)
def test_who_decides(shardings, decides):
    assert governing(shardings) == decides


@pytest.mark.parametrize(
    ("shardings", "conflict"),
    [
        ([SINGLE_0, SINGLE_1], (0, 1)),
        ([ONE_0, ONE_1], (0, 1)),
        ([HALF_A, HALF_B], (0, 1)),
        ([HALF_A, SINGLE_0], (0, 1)),
        ([SINGLE_1, ONE_0], (0, 1)),
        ([FULL, REVERSED], (0, 1)),
        ([NO_AXES, FULL], (0, 1)),
        ([AUTO_LINE, AUTO_B], (0, 1)),
        ([HALF_A, FULL], (0, 1)),
        ([HALF_A, HALF_A, HALF_B, FULL], (0, 2)),
        ([FULL, OTHER_SHAPE, REVERSED], (0, 2)),
    ],
)
def test_who_cannot_meet(shardings, conflict):
    assert governing(shardings) == Conflict(*conflict)


mixtures = st.lists(st.sampled_from(EVERYTHING), min_size=1, max_size=5)


@given(mixtures)
def test_all_agree_if_each_two_do(mixed):
    pairs = [governing([one, other]) for place, one in enumerate(mixed) for other in mixed[place + 1 :]]
    answer = governing(mixed)
    assert isinstance(answer, Conflict) == any(isinstance(pair, Conflict) for pair in pairs)
    if isinstance(answer, Conflict):
        assert answer.first < answer.second
        assert governing([mixed[answer.first], mixed[answer.second]]) == (0, 1)


@given(mixtures)
def test_order_does_not_make_or_mend_conflicts(mixed):
    assert isinstance(governing(mixed), Conflict) == isinstance(governing(mixed[::-1]), Conflict)


@given(mixtures)
def test_who_decides_is_on_the_devices_of_all_and_on_a_mesh_where_one_is(mixed):
    answer = governing(mixed)
    if isinstance(answer, int):
        assert all(sharding.flat_devices == mixed[answer].flat_devices for sharding in mixed)
        assert isinstance(mixed[answer], NamedSharding) == any(isinstance(one, NamedSharding) for one in mixed)
