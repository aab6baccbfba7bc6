from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import P
from cuplace.transfer.plan import plan_move
from tests.transfer.machines import TOPOLOGIES
from tests.transfer.shardings import DEVICES, mesh, transfers

F32 = np.dtype("float32")


@given(transfers(), st.sampled_from(TOPOLOGIES))
def test_packed_is_what_is_not_contiguous_and_leaves_its_gpu(transfer, topology):
    """Rows here are all too short for copy engines."""
    shape, source, target = transfer
    plan = plan_move(shape, F32, source, target, True, topology)
    for number, move in enumerate(plan.moves):
        read = np.empty((source if move.after is None else target).layout(shape).shard_shape, F32)
        written = np.empty(target.layout(shape).shard_shape, F32)
        boxes = [read[move.source_slices or ...], written[move.target_slices or ...]]
        far = plan.device_of(move).gpu != target.flat_devices[move.target].gpu
        expected = [far and not box.flags.c_contiguous for box in boxes]
        assert [bool(ends[number]) for ends in plan.packed] == expected
    assert {end.move for end in plan.packed_ends} == set(plan.packed.rows)


def test_long_rows_are_left_to_copy_engines():
    grid = mesh(DEVICES[:4], (4,), ("x",))
    rows, columns = NamedSharding(grid, P("x")), NamedSharding(grid, P(None, "x"))
    assert plan_move((8, 4 * 255), F32, rows, columns).packed.rows
    assert not plan_move((8, 4 * 256), F32, rows, columns).packed.rows
