"""What runs is what was planned, as the copies that streams are given tell."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import P
from cuplace.runtime.platform import Platform
from cuplace.runtime.topology import find_topology
from cuplace.transfer.execute import move
from cuplace.transfer.plan import TransferPlan, plan_move
from cuplace.transfer.upload import upload
from tests import fakecuda
from tests.transfer.log import Ran, transfer_log
from tests.transfer.machines import NODE, TOPOLOGIES
from tests.transfer.shardings import mesh, transfers

F32 = np.dtype("float32")


def planned(plan: TransferPlan) -> Counter[Ran]:
    tos = plan.target.flat_devices
    return Counter(Ran(plan.device_of(move), tos[move.target], move.box, move.path) for move in plan.moves)


@pytest.mark.sound_links  # that a pair does not deliver is known after its first copy
@given(data=st.data())
def test_what_runs_is_what_was_planned(platform: Platform, data: st.DataObject) -> None:
    shape, source, target = data.draw(transfers(platform.devices))
    old = upload(np.arange(np.prod(shape, dtype=int), dtype=F32).reshape(shape), source, None)
    plan = plan_move(shape, F32, source, target)
    with transfer_log(platform) as log:
        new = move(old, plan, None)
    assert Counter(log.ran((old, source, shape), (new, target, shape))) == planned(plan)
    for shard, aliased in plan.aliases:
        assert new[aliased] is old[shard]
    needed = [box.size for shard, box in enumerate(target.layout(shape).boxes) if new[shard] not in old]
    assert plan.nbytes == 4 * sum(needed)
    platform.scheduler.host_wait(new)


@given(data=st.data())
def test_chains_run_as_they_were_planned(platform: Platform, data: st.DataObject) -> None:
    shape, source, target = data.draw(transfers(platform.devices))
    topology = data.draw(st.sampled_from(TOPOLOGIES[1:]))
    old = upload(np.zeros(shape, F32), source, None)
    plan = plan_move(shape, F32, source, target, topology=topology)
    with transfer_log(platform) as log:
        new = move(old, plan, None)
    ran = Counter(one._replace(path="") for one in log.ran((old, source, shape), (new, target, shape)))
    expected = planned(plan)
    assert ran == Counter(one._replace(path="") for one in expected.elements())
    platform.scheduler.host_wait(new)


@pytest.mark.sound_links
def test_between_gpus_with_peer_access_no_byte_passes_the_host(platform: Platform) -> None:
    devices = platform.devices
    rows = NamedSharding(mesh(devices[:4], (4,), ("x",)), P("x"))
    columns = NamedSharding(mesh(devices[2:6], (4,), ("x",)), P(None, "x"))
    everywhere = NamedSharding(mesh(devices, (8,), ("x",)), P())
    values = np.arange(64 * 64, dtype=F32).reshape(64, 64)
    for one in devices:
        for other in devices:
            one.transfer_to(other)  # pairs are tried out at their first use, which tells the host whether they deliver
    for target in (columns, everywhere):
        old = upload(values, rows, None)
        platform.scheduler.host_wait(old)
        if platform.name == "cuda":
            fakecuda.reset_counters()
        plan = plan_move(values.shape, F32, rows, target, topology=find_topology(NODE))
        new = move(old, plan, None)
        if platform.name == "cuda":
            between: Counter[tuple[int, int]] = Counter()
            for copy in fakecuda.copies():  # of packed boxes the copies inside of a GPU are kernels
                assert copy.direction in ("p2p", "d2d")
                if copy.direction == "p2p":
                    between[copy.source_device, copy.target_device] += copy.nbytes
            expected: Counter[tuple[int, int]] = Counter()
            for (here, there), nbytes in plan.bytes_between.items():
                if here.gpu != there.gpu:
                    expected[here.gpu, there.gpu] += nbytes
            assert between == expected
        else:
            assert {one.path for one in planned(plan)} <= {"local", "peer"}
        for buffer, box in zip(new, target.layout(values.shape).boxes, strict=True):
            np.testing.assert_array_equal(platform.scheduler.download(buffer), values[box.slices()])
