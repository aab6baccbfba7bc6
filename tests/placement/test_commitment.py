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
    return NamedSharding(mesh, P(*spec)), True


NOBODY = (SingleDeviceSharding(DEVICES[0]), False)
FAR_NOBODY = (SingleDeviceSharding(DEVICES[3]), False)
SINGLE_0 = (SingleDeviceSharding(DEVICES[0]), True)
SINGLE_1 = (SingleDeviceSharding(DEVICES[1]), True)
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
    NOBODY, FAR_NOBODY, SINGLE_0, SINGLE_1, ONE_0, ONE_1, ONE_0_Z, NO_AXES, FULL, FULL_CUT, REVERSED, OTHER_NAME,
    OTHER_SHAPE, HALF_A, HALF_B, AUTO_LINE, AUTO_GRID, AUTO_B, MIXED,
]  # fmt: skip


@pytest.mark.parametrize(
    ("operands", "decides"),
    [
        ([], None),
        ([NOBODY, FAR_NOBODY], None),
        ([NOBODY, SINGLE_1], 1),
        ([SINGLE_1, NOBODY], 0),
        ([FAR_NOBODY, HALF_A], 1),
        ([FULL, FULL_CUT], 0),
        ([SINGLE_0, ONE_0], 1),
        ([ONE_0, SINGLE_0], 0),
        ([NOBODY, SINGLE_0, SINGLE_0, ONE_0], 3),
        ([SINGLE_0, NO_AXES], 1),
        ([NO_AXES, ONE_0], 1),
        ([AUTO_LINE, AUTO_GRID], 0),
        ([AUTO_GRID, NOBODY, AUTO_LINE], 0),
    ],
)
def test_who_decides(operands, decides):
    assert governing(operands) == decides


@pytest.mark.parametrize(
    ("operands", "conflict"),
    [
        ([SINGLE_0, SINGLE_1], (0, 1, "devices")),
        ([ONE_0, ONE_1], (0, 1, "devices")),
        ([HALF_A, HALF_B], (0, 1, "devices")),
        ([HALF_A, SINGLE_0], (0, 1, "devices")),
        ([SINGLE_1, ONE_0], (0, 1, "devices")),
        ([FULL, REVERSED], (0, 1, "devices")),
        ([NO_AXES, FULL], (0, 1, "devices")),
        ([AUTO_LINE, AUTO_B], (0, 1, "devices")),
        ([FULL, OTHER_NAME], (0, 1, "mesh")),
        ([FULL, OTHER_SHAPE], (0, 1, "mesh")),
        ([FULL, AUTO_LINE], (0, 1, "mesh")),
        ([AUTO_GRID, MIXED], (0, 1, "mesh")),
        ([HALF_A, FULL], (0, 1, "mesh")),
        ([AUTO_LINE, HALF_B], (0, 1, "mesh")),
        ([ONE_0, ONE_0_Z], (0, 1, "mesh")),
        ([NOBODY, HALF_A, HALF_A, FAR_NOBODY, HALF_B], (1, 4, "devices")),
        ([SINGLE_0, HALF_A, FULL], (1, 2, "mesh")),
        ([HALF_A, HALF_B, FULL], (0, 2, "mesh")),
        ([AUTO_LINE, AUTO_GRID, FULL], (0, 2, "mesh")),
        ([SINGLE_0, ONE_0_Z, ONE_0], (1, 2, "mesh")),
    ],
)
def test_who_cannot_meet(operands, conflict):
    assert governing(operands) == Conflict(*conflict)


operands = st.lists(st.sampled_from(EVERYTHING), max_size=5)


@given(operands)
def test_uncommitted_operands_never_matter(mixed):
    answer = governing(mixed)
    places = [place for place, (_, committed) in enumerate(mixed) if committed]
    alone = governing([mixed[place] for place in places])
    if isinstance(alone, Conflict):
        assert answer == Conflict(places[alone.first], places[alone.second], alone.reason)
    else:
        assert answer == (None if alone is None else places[alone])


@given(operands)
def test_operands_agree_if_each_two_do(mixed):
    pairs = [governing([one, other]) for place, one in enumerate(mixed) for other in mixed[place + 1 :]]
    answer = governing(mixed)
    assert isinstance(answer, Conflict) == any(isinstance(pair, Conflict) for pair in pairs)
    if isinstance(answer, Conflict):
        assert answer.first < answer.second
        assert governing([mixed[answer.first], mixed[answer.second]]) == (0, 1, answer.reason)


@given(operands)
def test_the_order_of_operands_does_not_make_or_mend_conflicts(mixed):
    answer, turned = governing(mixed), governing(mixed[::-1])
    assert isinstance(answer, Conflict) == isinstance(turned, Conflict)
    if isinstance(answer, Conflict):
        assert answer.reason == turned.reason


@given(operands)
def test_results_live_where_all_committed_operands_do(mixed):
    answer = governing(mixed)
    if isinstance(answer, int):
        devices = mixed[answer][0].flat_devices
        assert all(sharding.flat_devices == devices for sharding, committed in mixed if committed)
