"""Uploads that several devices need alike leave the host once, in parts, which the devices pass on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuplace
from cuplace.placement.box import Box
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import P
from cuplace.runtime.platform import Platform
from cuplace.runtime.presets import PRESETS
from cuplace.runtime.topology import HOST_END, find_topology, topology_of
from cuplace.transfer import execute
from cuplace.transfer.plan import TransferPlan, plan_upload
from cuplace.transfer.upload import upload
from tests.transfer.machines import TOPOLOGIES
from tests.transfer.shardings import PretendedDevice, mesh, transfers
from tests.transfer.test_any_move import DTYPES, values_of

F32 = np.dtype("float32")
HGX = find_topology(PRESETS["hgx-h200"])
LARGE = (1 << 13, 1 << 14)  # 512 MiB


def on(devices, *spec):
    return NamedSharding(mesh(devices, (len(devices),), ("x",)), P(*spec))


def from_host(plan: TransferPlan) -> Counter[Box]:
    return Counter(move.box for move in plan.moves if move.after is None)


def covered(plan: TransferPlan) -> list[np.ndarray]:
    """How often each element of each target shard is written, by moves that read what is there by then."""
    boxes = plan.target.layout(plan.shape).boxes
    counts = [np.zeros(plan.shape, dtype=int) for _ in boxes]
    for move in plan.moves:
        if move.after is not None:
            fed = plan.moves[move.after]
            assert (fed.target, fed.box) == (move.source, move.box)
            assert counts[move.source][move.box.slices()].all()
        counts[move.target][move.box.slices()] += 1
    return [count[box.slices()] for count, box in zip(counts, boxes, strict=True)]


@given(data=st.data())
def test_every_element_of_every_shard_is_written_once(data: st.DataObject) -> None:
    shape, _, target = data.draw(transfers())
    topology = data.draw(st.sampled_from(TOPOLOGIES[1:]))
    plan = plan_upload(shape, F32, target, topology)
    assert all((counts == 1).all() for counts in covered(plan))
    assert all(crossings == 1 for crossings in from_host(plan).values()) or not plan.passes_on


@given(data=st.data())
def test_spread_uploads_give_the_values_of_numpy_in_every_shard(platform: Platform, data: st.DataObject) -> None:
    shape, _, target = data.draw(transfers(platform.devices))
    dtype, topology = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(TOPOLOGIES))
    host = values_of(shape, dtype)
    plan = plan_upload(shape, dtype, target, topology)
    expected = host.copy()
    with platform.scheduler.log.record() as records:
        buffers = execute.move(host, plan, None)
    if host.size:
        host[...] = 0  # it has been read
    tos = target.flat_devices
    assert [(record.task.nbytes, record.task.kind == "upload") for record in records] == [
        (move.nbytes, move.after is None) for move in plan.moves
    ]
    for buffer, device, box in zip(buffers, tos, target.layout(shape).boxes, strict=True):
        assert buffer.device is device
        np.testing.assert_array_equal(platform.scheduler.download(buffer), expected[box.slices()])


def test_each_byte_of_a_large_array_leaves_the_host_once_over_all_links() -> None:
    plan = plan_upload(LARGE, F32, on(HGX.devices))
    sent = Counter[int]()
    for move in plan.moves:
        if move.after is None:
            sent[plan.target.flat_devices[move.target].gpu] += move.nbytes
    assert sent == dict.fromkeys(range(8), (512 << 20) // 8)
    machine, nbytes = HGX.machine, plan.nbytes // 8
    up, between = nbytes / 8 / machine.host.up_gb_s / 1e9, nbytes * 7 / 8 / machine.peer.gb_s / 1e9
    assert max(up, between) < plan.seconds < 1.05 * (up + between) + plan.num_moves * machine.submit_us * 1e-6
    assert plan.seconds < 0.3 * nbytes / machine.host.up_gb_s / 1e9  # that of each device on its own


@pytest.mark.parametrize("shape", [(2, 1 << 26), (1, 3, 1 << 12, 1 << 14)])
def test_few_long_rows_cross_over_all_links_too(shape: tuple[int, ...]) -> None:
    plan = plan_upload(shape, F32, on(HGX.devices))
    sent = Counter[int]()
    for move in plan.moves:
        if move.after is None:
            sent[plan.target.flat_devices[move.target].gpu] += move.nbytes
    assert len(sent) == 8
    assert max(sent.values()) < 1.5 * plan.nbytes / 64


def test_partitions_of_a_gpu_share_what_it_gets() -> None:
    devices = [PretendedDevice(i) for i in range(8)]  # two on each GPU
    for target, gpus in ((on(devices), 4), (on(devices[:2]), 1)):
        plan = plan_upload(LARGE, F32, target, HGX)
        assert sum(move.nbytes for move in plan.moves if move.after is None) == 512 << 20
        assert all((counts == 1).all() for counts in covered(plan_upload((8, 8), F32, target, TOPOLOGIES[1])))
        into = Counter[int]()
        for move in plan.moves:
            source, there = plan.device_of(move).gpu, target.flat_devices[move.target].gpu
            if source not in (HOST_END, there):
                into[there] += move.nbytes
        assert set(into.values()) == ({(512 << 20) * (gpus - 1) // gpus} if gpus > 1 else set())


def test_each_node_gets_it_once() -> None:
    both = find_topology(PRESETS["two-nodes"])
    plan = plan_upload(LARGE, F32, on(both.devices))
    into = Counter[int]()
    for move in plan.moves:
        node = both.node(plan.target.flat_devices[move.target].gpu)
        if move.after is None:
            into[node] += move.nbytes
        else:
            assert both.node(plan.device_of(move).gpu) == node
    assert into == {0: 512 << 20, 1: 512 << 20}


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((64, 64), on(HGX.devices)),  # takes less time than enqueueing
        (LARGE, on(HGX.devices, "x")),  # nobody needs what another one has
        (LARGE, on(find_topology(PRESETS["pcie-8x"]).devices)),  # would pass the host again
        (LARGE, on([PretendedDevice(i, "cpu") for i in range(8)])),  # is in the host's memory anyhow
        ((0, 8), on(HGX.devices)),
        ((), on(HGX.devices)),
    ],
)
def test_elsewhere_each_shard_comes_from_the_host(shape: tuple[int, ...], target: NamedSharding) -> None:
    plan = plan_upload(shape, F32, target)
    assert not plan.passes_on
    assert plan.rounds <= 1


def test_cpu_devices_stand_for_gpus_of_a_machine_that_is_planned_for() -> None:
    machine = find_topology(PRESETS["dgx-a100"])
    plan, there = (
        plan_upload(LARGE, F32, on([PretendedDevice(i, platform) for i in range(8)]), machine)
        for platform in ("cpu", "gpu")
    )
    assert plan.passes_on
    assert (plan.num_moves, plan.seconds) == (there.num_moves, there.seconds)


def test_without_ways_between_gpus_each_shard_comes_from_the_host(platform: Platform) -> None:
    if platform.name == "cpu":
        assert not plan_upload(LARGE, F32, on(platform.devices)).passes_on
        return
    apart = {device.gpu for device in platform.devices}
    target = on([next(device for device in platform.devices if device.gpu == gpu) for gpu in sorted(apart)])
    if len(apart) > 1:
        with cuplace.testing.faults(no_p2p=True):
            assert not plan_upload(LARGE, F32, target).passes_on
            assert topology_of(platform.devices[0]).path(*sorted(apart)[:2]) == "staged"


def test_a_pair_that_does_not_deliver_ends_the_passing_on(platform: Platform) -> None:
    """GPUs only find that out at the first copy: later plans know."""
    target, host = on(platform.devices), np.arange(1 << 19, dtype=F32)
    if platform.name == "cpu" or len({device.gpu for device in platform.devices}) == 1:
        assert not plan_upload(host.shape, F32, target).hops - {(0, 0)}
        return
    pairs = [(one.id, other.id) for one in platform.devices for other in platform.devices if one.gpu != other.gpu]
    with cuplace.testing.faults(corrupt_pair=pairs):
        for _ in range(2):
            x = cuplace.device_put(host, target)
            for shard in x.addressable_shards:
                np.testing.assert_array_equal(shard.data, host)
        assert not cuplace.plan(host, target).passes_on
        with platform.scheduler.log.record() as records:
            cuplace.device_put(host, target)
    assert [record.task.kind for record in records] == ["upload"] * len(platform.devices)


@pytest.mark.sound_links
@pytest.mark.filterwarnings("ignore::cuplace.errors.NarrowingWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_put_runs_the_plan_that_is_shown(platform: Platform, dtype: str) -> None:
    """Of arrays that are large enough for the machine at hand, alone and in a tree; both are as of the call."""
    target = on(platform.devices)
    host = np.arange(1 << 19, dtype=dtype).reshape(256, -1)
    rows = NamedSharding(mesh(platform.devices, (4, 2), ("x", "y")), P("x"))
    expected = host.astype(F32)
    plan = cuplace.plan(expected, target)
    with platform.scheduler.log.record() as records:
        x = cuplace.device_put(host, target)
        tree = cuplace.device_put({"a": host, "b": host[:8], "c": x}, {"a": target, "b": target, "c": rows})
    host[...] = -1
    assert [record.task.kind for record in records[: plan.num_moves]] == [
        "upload" if move.after is None else "move" for move in plan.moves
    ]
    for shard in (*x.addressable_shards, *tree["a"].addressable_shards, *tree["c"].addressable_shards):
        np.testing.assert_array_equal(shard.data, expected[shard.index])
    np.testing.assert_array_equal(tree["b"], expected[:8])
    assert plan.passes_on == (platform.name != "cpu")
    if platform.name == "sim":
        assert plan.peak_bytes == dict.fromkeys(platform.devices, 2 << 20)


@pytest.mark.order
def test_what_comes_later_waits_for_all_that_is_passed_on(platform: Platform) -> None:
    """Donated, overwritten and freed while parts of it are on their way from one device to another."""
    target = on(platform.devices)
    host = np.arange(1 << 19, dtype=F32).reshape(256, -1)
    double = cuplace.jit(lambda x: x + x, donate_argnums=0)
    results = []
    for turn in range(3):
        x = cuplace.device_put(host + np.float32(turn), target)
        results.append(double(x) if turn % 2 else x + 1.0)
        del x
    for turn, result in enumerate(results):
        values = host + np.float32(turn)
        for shard in result.addressable_shards:
            np.testing.assert_array_equal(shard.data, values + values if turn % 2 else values + 1)


@pytest.mark.order
def test_a_failed_upload_fails_what_was_passed_on(platform: Platform) -> None:
    target = on(platform.devices)
    host = np.ones((512, 1024), F32)
    with cuplace.testing.faults(fail_op=("upload", 1)):
        x = cuplace.device_put(host, target)
    with pytest.raises(cuplace.errors.InjectedFaultError):
        cuplace.block_until_ready(x)
    del x
    np.testing.assert_array_equal(cuplace.device_put(host, target), host)


def test_shards_that_serve_as_they_are_are_uploaded_too(platform: Platform) -> None:
    buffers = upload(np.ones((512, 1024), F32), on(platform.devices), None)
    assert len({id(buffer) for buffer in buffers}) == len(platform.devices)
