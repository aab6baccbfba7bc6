"""The clock against truth: times that can be worked out by hand, within a thousandth, whatever the seed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cuplace.placement.memory_space import DEVICE, PINNED_HOST, UNPINNED_HOST
from cuplace.runtime.backends.sim import open_backend
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.device import Device
from cuplace.runtime.machine import Gpu, HostLink, Machine, Network, PeerLink, StagedPath
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.platform import Platform
from cuplace.runtime.submission import Submission
from cuplace.runtime.task import ComputeTask, CopyTask, Cost
from tests.runtime.random_program import RandomProgram
from tests.runtime.streams import new, put, read
from tests.runtime.test_host_memory import moved, on_host

PLAIN = Machine(
    "plain", 8, Gpu(tflops=1.0, memory_gb_s=100.0, launch_us=0.0), HostLink(10.0, 10.0, latency_us=0.0),
    StagedPath(5.0, latency_us=20.0), PeerLink(10.0, latency_us=0.0), submit_us=0.0,
)  # fmt: skip
"""Without latencies, and with a host that needs no time."""

KIB = 10_000
"""Bytes of a buffer: a microsecond on a link of 10 GB/s."""

MICROSECOND = Cost(1e6, 0.0)
"""A microsecond of computing."""


def simulated(machine: Machine, seed: int = 0, devices: int = 8) -> Platform:
    return Platform(open_backend(seed, machine=machine), devices)


def touch(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
    """What simulated work does to memory; its cost is told apart from that."""
    for array in writes:
        array[...] = 0


def work(device: Device, reads: Sequence[Buffer] = (), cost: Cost = MICROSECOND) -> Buffer:
    result = device.scheduler.allocate(device, (KIB,), np.dtype(np.uint8), "compute")
    device.scheduler.submit(ComputeTask("work", touch, 0.0, cost=cost), device.compute, reads, (result,))
    return result


def send(source: Buffer, device: Device) -> Buffer:
    target = new(device, source, TRANSFER)
    task = CopyTask(None, None, "peer", source.nbytes)
    device.scheduler.submit_moves([(task, source.device.transfer_to(device), source, target)])
    return target


def microseconds(record: Submission) -> tuple[float, float]:
    """Start and end, since the platform was opened."""
    return record.start / 1e3 - 1, record.end / 1e3 - 1


def ends(platform: Platform, records: Sequence[Submission]) -> list[float]:
    """When each piece of work ends."""
    for device in platform.devices:
        for stream in device.streams():
            event = stream.record(0)
            if event is not None:
                platform.backend.synchronize(event)
    return [microseconds(record)[1] for record in records]


def close_to(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-3)


# ---------------------------------------------------------------------- memory of the host


def test_copies_to_host_memory_and_back_take_the_link_and_work_there_the_memory_of_the_host() -> None:
    platform = simulated(PLAIN)  # 10 GB/s each way, 200 GB/s in the host
    with platform.scheduler.log.record() as records:
        for device in platform.devices[:2]:
            down = moved(work(device), device, PINNED_HOST)
            made = on_host(ComputeTask("work", touch, 0.0, cost=Cost(1e9, 2.0 * KIB)), PINNED_HOST, down)
            moved(moved(made, device, UNPINNED_HOST), device, DEVICE)
    # Both strands share the memory of the host: 20 kB take 0.2 us each, a copy reads and writes as much.
    assert ends(platform, records) == close_to([1, 2, 2.2, 2.4, 3.4] * 2)


# ---------------------------------------------------------------------- makespans


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_takes_the_sum(seed: int) -> None:
    platform = simulated(replace(PLAIN, gpu=replace(PLAIN.gpu, launch_us=0.5)), seed)
    with platform.scheduler.log.record() as records:
        last = work(platform.devices[0])
        for _ in range(9):
            last = work(platform.devices[0], (last,))
    assert ends(platform, records) == close_to([1.5 * (i + 1) for i in range(10)])


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_over_devices_takes_the_sum_of_work_and_copies(seed: int) -> None:
    platform = simulated(replace(PLAIN, peer=PeerLink(10.0, latency_us=2.0)), seed)
    with platform.scheduler.log.record() as records:
        last = work(platform.devices[0])
        for device in platform.devices[1:4]:
            last = work(device, (send(last, device),))
    assert max(ends(platform, records)) == close_to(1 + 3 * (2 + 1 + 1))


def test_a_fork_takes_the_longest_branch() -> None:
    """A GPU has one engine for its copies to others: they go one after the other."""
    platform = simulated(PLAIN)
    with platform.scheduler.log.record() as records:
        source = work(platform.devices[0])
        for device in platform.devices[1:4]:
            work(device, (send(source, device),))
    assert ends(platform, records) == close_to([1, 2, 3, 3, 4, 4, 5])


def test_copies_on_several_engines_share_the_way_out() -> None:
    platform = simulated(replace(PLAIN, gpu=replace(PLAIN.gpu, copy_engines=5)))
    with platform.scheduler.log.record() as records:
        source = work(platform.devices[0])
        for device in platform.devices[1:4]:
            send(source, device)
    assert ends(platform, records) == close_to([1, 4, 4, 4])


def test_a_contended_link_is_shared_fairly() -> None:
    """Two copies into one GPU. The second begins when the first is half done; both get half, then one gets all."""
    platform = simulated(PLAIN)
    one, other, target = platform.devices[:3]
    with platform.scheduler.log.record() as records:
        first, second = work(one), work(other, cost=Cost(1.5e6, 0.0))
        send(first, target)
        send(second, target)
    assert ends(platform, records)[2:] == close_to([1 + 0.5 + 1, 1.5 + 1 + 0.5])


def test_copies_between_other_gpus_do_not_contend() -> None:
    platform = simulated(PLAIN)
    devices = platform.devices
    with platform.scheduler.log.record() as records:
        sources = [work(device) for device in devices[:4]]
        for source, device in zip(sources, devices[4:], strict=True):
            send(source, device)
    assert ends(platform, records)[4:] == close_to([2, 2, 2, 2])


@pytest.mark.parametrize(("engines", "expected"), [(1, [1, 2, 2]), (2, [1, 1, 2]), (3, [1, 1, 1])])
def test_engines_bound_how_many_copies_run_at_once(engines: int, expected: list[float]) -> None:
    """To the GPU, from it to another one, and from it to the host: each way has an engine where there are three."""
    gpu = replace(PLAIN.gpu, copy_engines=engines)
    platform = simulated(replace(PLAIN, gpu=gpu))
    device, other = platform.devices[:2]
    source = platform.scheduler.allocate(device, (KIB,), np.dtype(np.uint8))
    with platform.scheduler.log.record() as records:
        put(device, np.zeros(KIB, np.uint8), np.uint8)
        send(source, other)
    platform.backend.to_host(source.array, device)
    found = [*ends(platform, records), platform.backend.clock.host * 1e6 - 1]
    if engines == 1:
        assert found == close_to([1, 2, 3])
    else:
        assert found == close_to(expected)


def test_both_directions_share_a_link_that_has_not_enough_for_both() -> None:
    platform = simulated(replace(PLAIN, host=HostLink(10.0, 10.0, both_gb_s=12.5, latency_us=0.0)))
    device = platform.devices[0]
    source = platform.scheduler.allocate(device, (KIB,), np.dtype(np.uint8))
    with platform.scheduler.log.record() as records:
        put(device, np.zeros(KIB, np.uint8), np.uint8)
    platform.backend.to_host(source.array, device)
    assert [*ends(platform, records), platform.backend.clock.host * 1e6 - 1] == close_to([1.6, 1.6])


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 3), (4, 8), (8, 16)])
@pytest.mark.parametrize("seed", range(3))
def test_a_pipeline_has_the_bubble_that_it_must_have(stages: int, microbatches: int, seed: int) -> None:
    """(S - 1) / (M + S - 1) of the time each stage waits, where copies cost next to nothing."""
    platform = simulated(replace(PLAIN, peer=PeerLink(1e6, latency_us=0.0)), seed)
    devices = platform.devices[:stages]
    with platform.scheduler.log.record() as records:
        for _ in range(microbatches):
            last = work(devices[0])
            for device in devices[1:]:
                last = work(device, (send(last, device),))
    makespan = max(ends(platform, records))
    assert makespan == close_to(microbatches + stages - 1)
    for device in devices:
        busy = sum(r.end - r.start for r in records if r.kind == "compute" and r.device is device) / 1e3
        assert 1 - busy / makespan == close_to((stages - 1) / (microbatches + stages - 1))


def test_a_slow_host_bounds_a_quick_machine() -> None:
    platform = simulated(replace(PLAIN, submit_us=10.0))
    with platform.scheduler.log.record() as records:
        for _ in range(20):
            work(platform.devices[0])
    assert ends(platform, records) == close_to([10 * (i + 1) + 1 for i in range(20)])
    assert [record.enqueue / 1e3 - 1 for record in records] == close_to([10 * i for i in range(20)])


# ---------------------------------------------------------------------- what work takes


def test_work_takes_as_long_as_operations_or_memory_need() -> None:
    platform = simulated(PLAIN)
    with platform.scheduler.log.record() as records:
        for cost in (Cost(3e6, 1e5), Cost(1e6, 4e5), Cost(0.0, 0.0)):
            work(platform.devices[0], cost=cost)
    ends(platform, records)
    assert [end - start for start, end in map(microseconds, records)] == close_to([3, 4, 0])


def test_partitions_share_their_gpu() -> None:
    """Two devices on one GPU: computing together takes twice as long, as does what both read and write."""
    platform = simulated(replace(PLAIN, gpus=1), devices=2)
    assert [(device.gpu, device.partition) for device in platform.devices] == [(0, 0), (0, 1)]
    for cost in (Cost(1e6, 0.0), Cost(0.0, 1e5)):
        with platform.scheduler.log.record() as records:
            for device in platform.devices:
                work(device, cost=cost)
        ends(platform, records)
        assert [end - start for start, end in map(microseconds, records)] == close_to([2, 2])


def test_work_that_needs_other_things_runs_beside() -> None:
    """On one GPU, what is bound by operations leaves the memory to a copy between its partitions."""
    platform = simulated(replace(PLAIN, gpus=1), devices=2)
    one, other = platform.devices
    source = platform.scheduler.allocate(one, (5 * KIB,), np.dtype(np.uint8))
    with platform.scheduler.log.record() as records:
        work(one)
        send(source, other)
    assert ends(platform, records) == close_to([1, 1])


def test_gpus_without_peer_access_copy_through_the_host() -> None:
    platform = simulated(replace(PLAIN, peer=None))
    one, other = platform.devices[:2]
    assert one.transfer_to(other).path == "staged"
    with platform.scheduler.log.record() as records:
        send(work(one), other)
    assert ends(platform, records) == close_to([1, 1 + 20 + 2])


def test_nodes_are_joined_by_a_network() -> None:
    platform = simulated(replace(PLAIN, gpus=4, nodes=2, network=Network(2.0, latency_us=4.0)))
    one, near, far = platform.devices[0], platform.devices[3], platform.devices[4]
    assert (one.transfer_to(near).path, one.transfer_to(far).path) == ("peer", "network")
    with platform.scheduler.log.record() as records:
        source = work(one)
        send(source, near)
        send(source, far)
    assert ends(platform, records) == close_to([1, 2, 1 + 4 + 5])


def test_peer_copies_may_share_the_link_to_the_host() -> None:
    platform = simulated(replace(PLAIN, peer=PeerLink(10.0, 0.0, over_host_link=True)))
    one, other = platform.devices[:2]
    source = platform.scheduler.allocate(one, (KIB,), np.dtype(np.uint8))
    with platform.scheduler.log.record() as records:
        send(source, other)
        put(other, np.zeros(KIB, np.uint8), np.uint8)
    assert ends(platform, records) == close_to([2, 2])


# ---------------------------------------------------------------------- the host


def test_the_host_waits_for_what_it_reads() -> None:
    platform = simulated(PLAIN)
    clock = platform.backend.clock
    result = work(platform.devices[0])
    assert clock.host == pytest.approx(1e-6)
    read(result)
    assert clock.host == pytest.approx(1e-6 + 1e-6 + 1e-6)  # computed, then copied to the host
    with platform.scheduler.log.record() as records:
        work(platform.devices[1])
    assert ends(platform, records) == close_to([3])


def test_a_latch_ends_when_it_is_opened() -> None:
    platform = simulated(PLAIN)
    one, other = platform.devices[:2]
    latch = platform.scheduler.hold(one.compute)
    with platform.scheduler.log.record() as records:
        held = work(one)
        read(work(other))
    latch.release()
    read(held)
    assert [microseconds(record) for record in records] == [close_to((2, 3)), close_to((0, 1))]


def test_a_wait_for_a_latch_ends_in_virtual_time_too() -> None:
    platform = simulated(PLAIN)
    latch = platform.scheduler.hold(platform.devices[0].compute)
    timer = threading.Timer(0.02, latch.release)
    timer.start()
    read(work(platform.devices[0]))
    timer.join()
    assert platform.backend.clock.host == pytest.approx(3e-6)


def test_times_are_the_same_for_every_seed() -> None:
    """Of a random program, on a machine with contention and a host that takes its time."""
    found = []
    for seed in range(8):
        platform = Platform(open_backend(seed), 3)
        with platform.scheduler.log.record() as records:
            RandomProgram(platform, 11, steps=120).run()
        ends(platform, records)
        assert all(0 < record.enqueue < record.start <= record.end for record in records)
        found.append([(record.enqueue, record.start, record.end) for record in records])
    assert all(times == found[0] for times in found)


def test_every_record_keeps_what_it_waits_for() -> None:
    """Nothing starts before it is enqueued, before its stream, before what it waits for, nor before its data."""
    for seed in range(5):
        platform = Platform(open_backend(seed), 3)
        with platform.scheduler.log.record() as records:
            RandomProgram(platform, 50 + seed, steps=100).run()
        ends(platform, records)
        by_id = {record.id: record for record in records}
        last: dict[Any, Submission] = {}
        for record in records:
            before = [by_id[id] for id in record.waits if id in by_id]
            before += [last[record.stream]] if record.stream in last else []
            assert all(other.end <= record.start for other in before)
            last[record.stream] = record
