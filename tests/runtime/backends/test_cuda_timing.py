from __future__ import annotations

import json

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace.profiling.spans import COMPUTE, TRANSFER, depths_of
from tests import fakecuda, fakegpus
from tests.array.places import numbers, on, places
from tests.fakegpus import Case

STAGES, MICROBATCHES = 4, 8

MODES = [Case("eager"), Case("lazy"), Case("random", 3), Case("lazy", gpus=1), Case("threads")]
under_modes = pytest.mark.parametrize("cuda", MODES, indirect=True, ids=lambda case: case.label)
without_peers = pytest.mark.parametrize("cuda", [Case("lazy", peers=False)], indirect=True)
lazily = pytest.mark.parametrize("cuda", [Case("lazy")], indirect=True)


@cuplace.jit
def stage(x):
    return jnp.sin(x)


def pipeline(platform):
    """The page's loops, after everything has been traced, in virtual time."""
    meshes = [cuplace.make_mesh((2,), ("x",), devices=platform.devices[2 * i : 2 * i + 2]) for i in range(STAGES)]
    targets = [on(mesh, "x") for mesh in meshes]

    def run(count):
        for i in range(count):
            mb = np.full(8, i, np.float32)
            for target in targets:
                mb = stage(cuplace.device_put(mb, target))
            yield mb

    cuplace.block_until_ready(list(run(1)))
    with fakegpus.virtual_time(platform):
        with cuplace.profile() as prof:
            results = list(run(MICROBATCHES))
        spans = prof.spans
    assert len(spans) == len(prof.records)
    return prof, results


@under_modes
def test_the_pages_pipeline_has_the_known_figures(cuda):
    """As on the simulator, under every schedule, on any number of GPUs: 15 units of time, of which each device computes
    for 8 of the 14 after the first transfer, and only that transfer is not hidden."""
    prof, _ = pipeline(cuda)
    assert prof.seconds == pytest.approx(150e-6, rel=1e-3)
    assert prof.transfer_seconds == pytest.approx(640e-6, rel=1e-3)
    assert prof.hidden_seconds == pytest.approx(620e-6, rel=1e-3)
    assert (prof.bubble.stages, prof.bubble.microbatches) == (STAGES, MICROBATCHES)
    assert prof.bubble.share == pytest.approx(1 - 8 / 14, rel=1e-3)
    assert [lane.kind for lane in prof.lanes] == [COMPUTE, TRANSFER] * 8
    for lane in prof.lanes:
        assert prof.busy(lane) == pytest.approx(8 / 15, rel=1e-3)
        assert [span.label for span in prof.spans if span.lane == lane] == list(range(MICROBATCHES))
    assert not [gap for gap in prof.gaps if gap.end - gap.start > 1000]
    assert prof.clock_error == 0  # in this virtual time the host needs none to record an event


@pytest.mark.parametrize("cuda", [Case("random", 2, gpus=2)], indirect=True)
def test_what_shares_a_stream_takes_turns(cuda):
    """On two GPUs, the two moves from the second stage to the third share the stream between the GPUs. The first
    microbatch takes 9 units, the others come two units later each."""
    prof, _ = pipeline(cuda)
    assert prof.seconds == pytest.approx(230e-6, rel=1e-3)


@without_peers
def test_a_staged_move_takes_both_of_its_ways(cuda):
    """To host memory and from there, each of one unit, which overlap: the first microbatch takes 11 units, the others
    come one unit later each."""
    prof, _ = pipeline(cuda)
    assert prof.seconds == pytest.approx(180e-6, rel=1e-3)
    moves = [span for span in prof.spans if span.record.kind == "move"]
    assert {round(span.end - span.start, -2) for span in moves} == {20_000}
    assert max(depths_of(moves)) == 1


@lazily
def test_clocks_of_gpus_that_drift_are_put_right(cuda):
    """One operation a GPU and half a second, on clocks that run differently: the GPUs work at the same times."""
    xs = [cuplace.block_until_ready(cuplace.device_put(numbers(8), device)) for device in cuda.devices]
    double = cuplace.jit(lambda x: x * 2)
    cuplace.block_until_ready([double(x) for x in xs])
    with fakegpus.virtual_time(cuda, kernel=0.5, call=3e-6) as clock:
        for i in range(8):
            clock.let_drift(i, 100 * (i - 4))
        with cuplace.profile() as prof:
            for _ in range(6):
                xs = [double(x) for x in xs]
        spans = prof.spans
        now = clock.now()
    assert 0 < prof.clock_error < 30e-6
    allowed = prof.clock_error * 1e9 + 1000
    enqueued = 48 * 20 * 3000  # at most so many nanoseconds for all calls
    for lane in prof.lanes:
        mine = [span for span in spans if span.lane == lane]
        assert mine[-1].end == pytest.approx(now, abs=allowed + enqueued)
        for i, span in enumerate(mine):
            assert span.end - span.start == pytest.approx(5e8, abs=2 * allowed)
            assert span.end == pytest.approx(mine[-1].end - (5 - i) * 5e8, abs=2 * allowed)


@lazily
def test_anchors_are_made_while_work_is_enqueued(cuda):
    x = cuplace.device_put(numbers(8), cuda.devices[0])
    double = cuplace.jit(lambda x: x * 2)
    cuplace.block_until_ready(double(x))
    with fakegpus.virtual_time(cuda) as clock, cuplace.profile() as prof:
        for _ in range(5):
            double(x)
            clock.advance(1.5)
        made = len(cuda.backend._meter._clocks[cuda.backend.gpus[0]]._anchors)
    assert made == 1 + 4  # one at the beginning, one where the last is more than a second old
    assert len(prof.spans) == 5


def everything(platform):
    """Work of every kind and on every path."""
    here = places(platform)
    x = cuplace.device_put(numbers(64, 64), on(here.full, "x"))
    y = cuplace.device_put(x, on(here.reverse, None, "x"))  # packed, from GPU to GPU
    small = cuplace.device_put([numbers(4) + i for i in range(20)], platform.devices[0])  # packed uploads
    product = jnp.matmul(y, cuplace.device_put(numbers(64, 64), on(here.reverse)))
    mapped = cuplace.map_shards(lambda x: x + 1, x)
    on_host = cuplace.device_put(x, on(here.full, "x").with_memory_kind("unpinned_host"))
    summed = jnp.sum(on_host)
    back = cuplace.device_put(on_host, on(here.full, "x"))
    return cuplace.block_until_ready([x, y, *small, product, mapped, on_host, summed, back])


@pytest.mark.parametrize("cuda", [*MODES, Case("random", 4, peers=False)], indirect=True, ids=lambda case: case.label)
def test_every_kind_of_work_has_its_times(cuda):
    everything(cuda)
    begin = cuda.backend.now()
    with cuplace.profile() as prof:
        everything(cuda)
    assert len(prof.spans) == len(prof.records) > 50
    end = cuda.backend.now()
    assert {record.kind for record in prof.records} == {"compute", "move", "upload"}
    assert {record.stream.role for record in prof.records} >= {"compute", "upload", "download", "move", "host"}
    for record in prof.records:
        assert begin <= record.enqueue <= record.start <= record.end <= end + prof.clock_error * 1e9 + 1000
    by_stream = {}
    for record in prof.records:  # on one stream work begins in its order
        starts = by_stream.setdefault(record.stream, [])
        assert not starts or starts[-1] <= record.start + 1000
        starts.append(record.start)


def calls(what):
    fakecuda.reset_counters()
    what()
    counted = fakecuda.counters()
    return counted.calls, counted.blocking


@lazily
def test_a_profile_adds_records_of_events_and_no_waits(cuda):
    x = cuplace.block_until_ready(cuplace.device_put(numbers(8, 8), on(places(cuda).full, "x")))

    def work():
        """What enqueueing calls, and what of it blocks."""
        fakecuda.reset_counters()
        result = stage(cuplace.device_put(x, on(places(cuda).reverse, "x")))
        counted = fakecuda.counters()
        cuplace.block_until_ready(result)
        return counted.calls, counted.blocking

    for _ in range(3):
        work()
    before, _ = work()
    with cuplace.profile():  # the events that it needs are there afterwards
        work()
    between, _ = work()
    with cuplace.profile() as prof:
        inside, blocking = work()
    after, _ = work()
    assert before == between == after
    assert not blocking
    difference = {name: inside[name] - before.get(name, 0) for name in inside if inside[name] != before.get(name, 0)}
    assert difference == {"cudaEventRecord": 2 * len(prof.records)}
    assert len(prof.records) == 16


def test_no_more_events_live_than_work_is_unfinished(cuda, monkeypatch):
    from cuplace.runtime.backends.cuda import timing

    monkeypatch.setattr(timing, "MOST_PENDING", 32)
    x = cuplace.device_put(numbers(8), cuda.devices[0])
    double = cuplace.jit(lambda x: x * 2)
    cuplace.block_until_ready(double(x))
    with cuplace.profile() as prof:
        before = fakecuda.counters().events
        for _ in range(300):
            x = double(x)
        assert fakecuda.counters().events - before <= 2 * 33 + 64
    assert len(prof.spans) == 300


@lazily
def test_work_that_is_not_complete_is_read_later(cuda, monkeypatch):
    from cuplace.runtime.backends.cuda import timing

    monkeypatch.setattr(timing, "MOST_PENDING", 8)
    x = cuplace.block_until_ready(cuplace.device_put(numbers(8), cuda.devices[0]))
    cuplace.block_until_ready(stage(x))
    with cuda.scheduler.lock, cuplace.profile() as prof:
        latch = cuda.scheduler.hold(cuda.devices[0].compute)
        for _ in range(30):
            x = stage(x)
        latch.release()
    assert len(prof.spans) == 30


@pytest.mark.deep
def test_a_hundred_thousand_pieces_of_work_are_measured(cuda):
    fakecuda.take_places(False)
    x = cuplace.device_put(numbers(8), cuda.devices[0])
    double = cuplace.jit(lambda x: x * 2)
    cuplace.block_until_ready(double(x))
    try:
        with cuplace.profile() as prof:
            for _ in range(100_000):
                x = double(x)
        assert len(prof.spans) == 100_000
        assert fakecuda.counters().events < 4 * 4096 + 1000
    finally:
        fakecuda.take_places(True)


def test_events_are_given_back_by_profiles_that_nobody_reads(cuda):
    x = cuplace.block_until_ready(cuplace.device_put(numbers(8), cuda.devices[0]))

    def live(times):
        for _ in range(times):
            with cuplace.profile():
                stage(x)
        return fakecuda.counters().events

    before = live(40)
    assert live(40) - before < 40  # some without times live until their work is known to be complete


@lazily
def test_a_lost_gpu_leaves_the_times_of_the_others(cuda):
    xs = [cuplace.block_until_ready(cuplace.device_put(numbers(8), device)) for device in cuda.devices[:2]]
    cuplace.block_until_ready([stage(x) for x in xs])
    with cuplace.profile() as prof:
        results = [stage(x) for x in xs]
        fakecuda.faults.lose_device(0)
        with pytest.raises(cuplace.errors.DeviceLostError):
            np.asarray(results[0])
    assert [span.record.device.id for span in prof.spans] == [1]
    text = str(prof)
    assert "Not shown  1 pieces of work that did not run, or whose GPU was lost; the first is compute 'stage'" in text
    json.dumps(prof.to_dict())


def test_a_profile_of_lost_gpus_has_neither_times_nor_a_cost_of_events(cuda):
    x = cuplace.block_until_ready(cuplace.device_put(numbers(8), cuda.devices[0]))
    with cuplace.profile() as prof:
        stage(x)
        for gpu in cuda.backend.gpus:
            fakecuda.faults.lose_device(gpu.ordinal)
            gpu.lose(gpu.failed(OSError("gone")))
    assert prof.spans == []
    assert "1 pieces of work, none of which has run" in str(prof)
    assert prof.cost_of_a_record() < 1e-3


def test_ranges_of_nvtx_carry_kind_name_and_line(cuda, monkeypatch):
    from cuplace.runtime.backends.cuda import timing

    open_ranges, seen = [], []

    class Nvtx:
        @staticmethod
        def RangePush(text):
            open_ranges.append(text)
            seen.append(text)

        @staticmethod
        def RangePop():
            open_ranges.pop()

    monkeypatch.setattr(timing, "nvtx", Nvtx)
    everything(cuda)
    with cuplace.profile():
        everything(cuda)
    assert not seen
    with cuplace.profile(nvtx=True) as prof:
        everything(cuda)
    everything(cuda)
    assert not open_ranges
    assert seen == [f"{record.kind} {record.name} {record.line}" for record in prof.records]
    assert any(text.startswith("compute matmul ") and f"{__file__}:" in text for text in seen)


def test_a_range_of_nvtx_ends_also_where_enqueueing_is_interrupted(cuda, monkeypatch):
    from cuplace.runtime.backends.cuda import timing

    depth = []

    class Nvtx:
        RangePush = depth.append
        RangePop = depth.pop

    monkeypatch.setattr(timing, "nvtx", Nvtx)
    x = cuplace.device_put(numbers(8), on(places(cuda).full))

    def interrupted(x):
        raise KeyboardInterrupt

    with cuplace.profile(nvtx=True):
        with pytest.raises(KeyboardInterrupt):
            cuplace.map_shards(interrupted, x)
        stage(x)
    assert not depth


@lazily
def test_a_ring_that_is_full_is_named_back_pressure_with_its_line(cuda):
    """Slow copies to one device fill the pinned memory; the copy to another one waits for the first of them."""
    device, other = cuda.devices[:2]
    ring = cuda.backend.ring
    big, small = np.ones(1 << 20, np.float32), np.ones(1 << 16, np.float32)
    double = cuplace.jit(lambda x: x * 2)
    x = cuplace.device_put(small, device)
    cuplace.block_until_ready([double(x), cuplace.device_put(big, other)])
    ring.free_unused()
    ring.limit = 8 << 20
    with fakegpus.virtual_time(cuda, bytes_per_second=1e9):
        with cuplace.profile() as prof:
            double(x)
            kept = [cuplace.device_put(big, other) for _ in range(2)]
            double(cuplace.device_put(small, device))
        (gap,) = prof.gaps
    assert ring.pressure_waits == 1
    assert [wait.kind for wait in prof.waits] == ["staging"]
    assert gap.reason == "back-pressure"
    assert f"the host waited at {__file__}:" in gap.text
    assert "for pinned memory that was still used by upload 'upload' on host -> gpu:1" in gap.text
    assert gap.lane.device == device.id
    waiting = next(record for record in prof.records if record.id == gap.record.id - 1)
    assert waiting.start >= prof.waits[0].end > waiting.enqueue
    assert len(kept) == 2
