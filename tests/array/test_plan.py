"""cuplace.plan: the plan that device_put executes, and plans for machines that are not here."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

import cuplace
from cuplace import NamedSharding, P, errors
from cuplace.array.route import route
from cuplace.runtime.platform import Platform
from cuplace.runtime.presets import HGX_H200
from cuplace.sharding import AbstractMesh, Mesh, SingleDeviceSharding
from tests.transfer.log import transfer_log

STRUCT = cuplace.ShapeDtypeStruct((8, 16), np.float32)
MESH = AbstractMesh((2, 4), ("x", "y"))


def on(*spec):
    return NamedSharding(MESH, P(*spec))


@pytest.mark.sound_links  # that a pair does not deliver is known after its first copy
def test_device_put_runs_the_plan_that_was_shown(platform: Platform) -> None:
    left = cuplace.make_mesh((4,), ("x",), devices=platform.devices[:4])
    right = cuplace.make_mesh((2, 2), ("y", "z"), devices=platform.devices[3:7])
    x = cuplace.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), NamedSharding(left, P("x")))
    target = NamedSharding(right, P("z", "y"))
    plan = cuplace.plan(x, target)
    assert plan is cuplace.plan(x, target) is route(x._key, target).plan
    with transfer_log(platform) as log:
        y = cuplace.device_put(x, target)
    ran = log.ran((x._buffers, x.sharding, x.shape), (y._buffers, target, x.shape))
    assert [(move.source, move.target, move.box, move.path) for move in ran] == [
        (plan.device_of(move), target.flat_devices[move.target], move.box, move.path) for move in plan.moves
    ]
    assert (plan.seconds is None) == (platform.name != "sim")


@pytest.mark.parametrize("platform", ["sim"], indirect=True)
def test_plans_are_made_anew_when_links_go_wrong(platform: Platform) -> None:
    left, right = (cuplace.make_mesh((4,), ("x",), devices=platform.devices[i : i + 4]) for i in (0, 4))
    x = cuplace.device_put(np.zeros((8, 8), np.float32), NamedSharding(left, P("x")))
    target = NamedSharding(right, P("x"))
    paths = {}
    for broken in (False, True):
        with cuplace.testing.faults(no_p2p=broken), transfer_log(platform) as log:
            planned = {move.path for move in cuplace.plan(x, target).moves}
            cuplace.block_until_ready(cuplace.device_put(x, target))
        paths[broken] = planned, {path for _, _, path in log.calls}
    assert paths == {False: ({"peer"}, {"peer"}), True: ({"staged"}, {"staged"})}


def test_new_memory_is_what_the_plan_tells(platform: Platform) -> None:
    mesh = cuplace.make_mesh((8,), ("x",), devices=platform.devices)
    x = cuplace.device_put(np.zeros((64, 64), np.float32), NamedSharding(mesh, P("x")))
    cuplace.block_until_ready(x)
    target = NamedSharding(mesh, P(None, "x"))
    before = {device: device.memory_stats()["bytes_in_use"] for device in mesh.flat_devices}
    y = cuplace.block_until_ready(cuplace.device_put(x, target))
    taken = {device: device.memory_stats()["bytes_in_use"] - before[device] for device in mesh.flat_devices}
    plan = cuplace.plan(x, target)
    assert taken == dict(plan.new_bytes) == dict.fromkeys(mesh.flat_devices, 64 * 8 * 4)
    staging = plan.staging.staging_bytes
    assert plan.peak_bytes == {device: taken[device] + staging.get(device, 0) for device in mesh.flat_devices}
    del y


def test_a_bound_cuts_a_plan_into_rounds_and_is_shown() -> None:
    large = cuplace.ShapeDtypeStruct((1 << 20, 16), np.float32)
    free, bound = (cuplace.plan(large, on(None, "y"), source=on("y"), machine="hgx-h200", max_bytes=n) for n in
                   (None, 17 << 20))
    assert max(bound.peak_bytes.values()) <= 17 << 20 < max(free.peak_bytes.values())
    assert bound.rounds > free.rounds
    assert bound.moves == free.moves
    assert bound.seconds >= free.seconds
    assert bound is cuplace.plan(large, on(None, "y"), source=on("y"), machine="hgx-h200", max_bytes=17 << 20)
    assert "staging), bound 17 MiB" in str(bound)
    assert "bound 17 MiB" in bound.svg()
    told = bound.to_dict()
    assert (told["max_bytes"], told["rounds"]) == (17 << 20, bound.rounds)
    assert told["staging_bytes"]["model:0"] == bound.peak_bytes[bound.source.flat_devices[0]] - (16 << 20)


def test_the_least_bound_that_would_do_is_told() -> None:
    large = cuplace.ShapeDtypeStruct((1 << 20, 16), np.float32)

    def bounded(max_bytes: object) -> object:
        return cuplace.plan(large, on(None, "y"), source=on("y"), machine="hgx-h200", max_bytes=max_bytes)  # type: ignore[arg-type]

    with pytest.raises(errors.MaxBytesError, match="max_bytes=17825792 would do: model:0 needs 16,777,216") as raised:
        bounded(16 << 20)
    assert bounded(raised.value.least)
    for wrong in (-1, 1.5, True, "1GiB"):
        with pytest.raises(errors.MaxBytesError, match="a number of bytes"):
            bounded(wrong)
    assert bounded(np.int64(17825792)) is bounded(17825792)


def test_a_shard_that_is_in_place_needs_no_memory() -> None:
    plan = cuplace.plan(STRUCT, on("x"), source=on("x"), machine="hgx-h200")
    assert (plan.num_moves, plan.rounds, plan.seconds, set(plan.peak_bytes.values())) == (0, 0, 0.0, {0})


def test_abstract_meshes_are_the_first_devices_of_a_machine() -> None:
    plan = cuplace.plan(STRUCT, on("y"), source=on("x"), machine="dgx-a100")
    assert plan is cuplace.plan(STRUCT, on("y"), source=on("x"), machine="dgx-a100")
    assert [str(device) for device in plan.source.flat_devices] == [f"model:{i}" for i in range(8)]
    assert plan.topology.machine.name == "dgx-a100"
    mine = replace(HGX_H200, name="mine")
    assert cuplace.plan(STRUCT, on("y"), source=on("x"), machine=mine).topology.machine is mine


def test_the_sharding_of_a_struct_is_where_it_is() -> None:
    struct = cuplace.ShapeDtypeStruct((8, 16), np.float32, sharding=on("x"))
    assert cuplace.plan(struct, on("y"), machine="hgx-h200") is cuplace.plan(
        STRUCT, on("y"), source=on("x"), machine="hgx-h200"
    )


def test_a_machine_may_stand_for_the_devices_at_hand(platform: Platform) -> None:
    one, other = (SingleDeviceSharding(device) for device in platform.devices[:2])
    plan = cuplace.plan(STRUCT, other, source=platform.devices[0], machine="pcie-8x")
    assert plan.source is one
    assert plan.seconds is not None


def test_a_slower_machine_takes_longer() -> None:
    big = cuplace.ShapeDtypeStruct((1 << 14, 1 << 14), np.float32)
    machines = ("pcie-8x", "dgx-a100", "hgx-h200")
    seconds = [cuplace.plan(big, on("y"), source=on("x"), machine=name).seconds for name in machines]
    assert seconds == sorted(seconds, reverse=True)


def test_what_cannot_be_planned_is_told() -> None:
    with pytest.raises(errors.PlanSourceError, match="source="):
        cuplace.plan(STRUCT, on("x"))
    with pytest.raises(errors.PlanSourceError, match="source='hosts' does not tell"):
        cuplace.plan(STRUCT, on("x"), source="hosts")
    with pytest.raises(errors.NotAnArrayError):
        cuplace.plan(3, on("x"), source=on("y"))
    with pytest.raises(errors.MachineSizeError, match="one-gpu has 1 GPUs, and the shardings need 8"):
        cuplace.plan(STRUCT, on("x"), source=on("y"), machine="one-gpu")
    with pytest.raises(errors.MachineError, match="no machine 'cray'"):
        cuplace.plan(STRUCT, on("x"), source=on("y"), machine="cray")
    with pytest.raises(errors.IndivisibleError):
        cuplace.plan(cuplace.ShapeDtypeStruct((3, 16), np.float32), on("x"), source=on(), machine="hgx-h200")
    concrete = Mesh(np.array(cuplace.topology("hgx-h200").devices), ("x",))
    with pytest.raises(errors.PlanMeshError, match="two shardings with devices"):
        cuplace.plan(STRUCT, on("x"), source=NamedSharding(concrete, P("x")), machine="hgx-h200")


# ---------------------------------------------------------------------- from the host


def test_a_put_of_host_values_runs_the_plan_that_was_shown(platform: Platform) -> None:
    mesh = cuplace.make_mesh((2, 2), ("y", "z"), devices=platform.devices[2:6])
    target = NamedSharding(mesh, P(None, "z"))
    host = np.arange(64, dtype=np.float64).reshape(8, 8)
    plan = cuplace.plan(host, target)
    assert plan is cuplace.plan(cuplace.ShapeDtypeStruct((8, 8), np.float32), target, source="host")
    cuplace.block_until_ready(cuplace.device_put(np.zeros((8, 8), np.float32), target))
    before = {device: device.memory_stats()["bytes_in_use"] for device in mesh.flat_devices}
    with platform.scheduler.log.record() as records, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 64 bits become 32
        x = cuplace.device_put(host, target)
    assert [(record.task.path, record.stream.device, record.task.nbytes) for record in records] == [
        (move.path, target.flat_devices[move.target], move.nbytes) for move in plan.moves
    ]
    assert all(str(plan.device_of(move)) == "host" for move in plan.moves)
    for move, shard in zip(plan.moves, x.addressable_shards, strict=True):
        np.testing.assert_array_equal(shard.data, host[move.box.slices()])
    taken = {device: device.memory_stats()["bytes_in_use"] - before[device] for device in mesh.flat_devices}
    assert taken == plan.peak_bytes == dict.fromkeys(mesh.flat_devices, 8 * 4 * 4)
    assert (plan.seconds is None) == (platform.name != "sim")
    assert plan.nbytes == sum(plan.bytes_through[port] for port in plan.bytes_through if port.kind in ("up", "memory"))


@pytest.mark.sound_links
@pytest.mark.parametrize("platform", ["sim"], indirect=True)
@pytest.mark.parametrize("rows", [64, 1024, 8192])
@pytest.mark.parametrize("spec", [P("x"), P(None, "y"), P()])
def test_the_time_of_a_put_of_host_values_is_as_planned(platform: Platform, spec: P, rows: int) -> None:
    mesh = cuplace.make_mesh((4, 2), ("x", "y"), devices=platform.devices)
    host = np.zeros((rows, 1024), np.float32)
    target = NamedSharding(mesh, spec)
    with cuplace.profile() as prof:
        cuplace.block_until_ready(cuplace.device_put(host, target))
    ends = [record.end for record in prof.records]
    begin = min(record.enqueue for record in prof.records)
    assert cuplace.plan(host, target).seconds == pytest.approx((max(ends) - begin) * 1e-9, rel=0.05)


def test_plans_of_host_values_need_no_devices() -> None:
    plan = cuplace.plan(STRUCT, on("x", "y"), source="host", machine="pcie-8x")
    assert (plan.num_moves, plan.nbytes, plan.rounds, plan.aliases) == (8, 8 * 16 * 4, 1, ())
    assert plan.topology.machine.name == "pcie-8x"
    assert "the host -> P('x', 'y')" in repr(plan)
    assert plan.matrix().splitlines()[1].split()[0] == "host"
    assert plan.to_dict()["moves"][0]["source"] == "host"
    with pytest.raises(errors.MaxBytesError, match="needs 64 bytes"):
        cuplace.plan(STRUCT, on("x", "y"), source="host", machine="pcie-8x", max_bytes=63)
    with pytest.raises(errors.IndivisibleError):
        cuplace.plan(np.zeros((3, 16)), on("x"))
