from __future__ import annotations

import io
import json
import math
import threading
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import errors
from cuplace.profiling.profile import Profile, profile
from cuplace.profiling.report import LABELS
from cuplace.profiling.spans import COMPUTE, TRANSFER
from cuplace.runtime.backends.sim import open_backend
from cuplace.runtime.machine import PeerLink
from cuplace.runtime.platform import Platform, activated
from cuplace.runtime.presets import find_machine
from tests.array.places import numbers, on, places

H200 = find_machine("hgx-h200")
UNITS = replace(
    H200, submit_us=0.0, gpu=replace(H200.gpu, launch_us=10.0), host=replace(H200.host, latency_us=10.0),
    peer=PeerLink(396, latency_us=10.0),
)  # fmt: skip
"""Any piece of work on little data takes 10 us."""

STAGES, MICROBATCHES = 4, 8


@pytest.fixture
def simulated():
    platform = Platform(open_backend(1, machine=UNITS), 8)
    with activated(platform):
        yield platform


@cuplace.jit
def stage(x):
    return jnp.sin(x) + 1.0


def meshes(platform):
    return [cuplace.make_mesh((2,), ("x",), devices=platform.devices[2 * i : 2 * i + 2]) for i in range(STAGES)]


def pipeline(platform, through_host=False):
    """The page's loops, after everything has been traced."""
    targets = [on(mesh, "x") for mesh in meshes(platform)]

    def run(count):
        for i in range(count):
            mb = np.full(8, i, np.float32)
            for target in targets:
                mb = stage(cuplace.device_put(np.asarray(mb) if through_host else mb, target))
            yield mb

    cuplace.block_until_ready(list(run(1)))
    with profile() as prof:
        results = list(run(MICROBATCHES))
    return prof, results


def test_the_pages_pipeline_has_the_known_figures(simulated):
    """With transfers and stages of one unit of time: 15 units, in which each device computes for 8 of the 14 after the
    first transfer, and only that transfer is not hidden."""
    prof, _ = pipeline(simulated)
    assert prof.seconds == pytest.approx(150e-6, rel=0.01)
    assert prof.transfer_seconds == pytest.approx(640e-6, rel=0.01)
    assert prof.hidden_seconds == pytest.approx(620e-6, rel=0.01)
    assert (prof.bubble.stages, prof.bubble.microbatches) == (STAGES, MICROBATCHES)
    assert prof.bubble.share == pytest.approx(1 - 8 / 14, rel=0.01)
    assert prof.bubble.bound == 3 / 11
    assert [lane.kind for lane in prof.lanes] == [COMPUTE, TRANSFER] * 8
    for lane in prof.lanes:
        assert prof.busy(lane) == pytest.approx(8 / 15, rel=0.01)
    assert not [gap for gap in prof.gaps if gap.end - gap.start > 1000]


def test_labels_are_the_microbatches(simulated):
    prof, _ = pipeline(simulated)
    for lane in prof.lanes:
        assert [span.label for span in prof.spans if span.lane == lane] == list(range(MICROBATCHES))


def test_a_stage_that_follows_itself_on_other_devices_is_a_call_of_its_own(simulated):
    """With nothing left to upload, the last stage of a microbatch is followed by the first stage of the next one."""
    targets = [on(mesh, "x") for mesh in meshes(simulated)]

    def run(count):
        for mb in cuplace.prefetch([np.full(8, i, np.float32) for i in range(count)], targets[0]):
            for target in targets:
                mb = stage(cuplace.device_put(mb, target))  # noqa: PLW2901
            yield mb

    cuplace.block_until_ready(list(run(1)))
    with profile() as prof:
        list(run(MICROBATCHES))
    for lane in prof.lanes:
        assert [span.label for span in prof.spans if span.lane == lane] == list(range(MICROBATCHES))
    assert (prof.bubble.stages, prof.bubble.microbatches) == (STAGES, MICROBATCHES)


def test_a_detour_through_the_host_is_named_with_its_line(simulated):
    good, _ = pipeline(simulated)
    prof, _ = pipeline(simulated, through_host=True)
    assert prof.seconds > 2 * good.seconds
    longest = prof.gaps[0]
    assert longest.reason == "host"
    assert "the host waited at" in longest.text
    assert f"{__file__}:" in longest.text
    assert "'stage'" in longest.text
    text = str(prof)
    assert "host, " in text
    assert "the host waited at" in text


def test_operands_of_other_calls_are_named(simulated):
    device = simulated.devices[0]
    a = cuplace.block_until_ready(cuplace.device_put(numbers(8), device))
    add = cuplace.jit(lambda x, y: x + y)
    far = cuplace.block_until_ready(cuplace.device_put(numbers(8), simulated.devices[1]))
    cuplace.block_until_ready([add(a, a), add(far, far), cuplace.device_put(far, device)])
    with profile() as prof:
        first = add(a, a)
        moved = cuplace.device_put(add(add(far, far), far), device)
        add(first, moved)
    (gap,) = [gap for gap in prof.gaps if gap.lane.device == 0]
    assert gap.reason == "transfer"
    assert gap.text.startswith("32 bytes on ")
    assert gap.cause.kind == "move"


def some_work(platform):
    x = cuplace.device_put(numbers(64, 64), on(places(platform).full, "x"))
    y = cuplace.device_put(x, on(places(platform).reverse, None, "x"))
    return stage(y), x.sum()


def test_everything_inside_is_recorded_on_every_platform(platform):
    some_work(platform)
    with profile() as prof:
        results = some_work(platform)
    after = cuplace.device_put(numbers(8))
    names = [record.name for record in prof.records]
    assert names.count("stage") == 8
    assert names.count("upload") == 8
    assert all(record.line.file == __file__ for record in prof.records)
    assert len(prof.spans) == len(prof.records)
    np.testing.assert_allclose(np.asarray(results[0]), np.sin(numbers(64, 64)) + 1, atol=1e-5)
    assert float(after[0]) == 0


def test_the_report_of_every_platform(platform):
    with profile() as prof:
        some_work(platform)
    out = io.StringIO()
    prof.report(width=40, file=out)
    text = out.getvalue()
    assert text.startswith("Profile    ")
    lanes = [line for line in text.splitlines() if line.endswith("%")]
    assert len(lanes) == 16  # what each device computes and receives
    assert {character for line in lanes for character in line.split()[-2]} <= {*LABELS, "·"}
    for part in ("Transfers  ", "Bubble     ", "Gaps       ", "Recording  added about"):
        assert part in text
    json.dumps(prof.to_dict())


@pytest.mark.parametrize(
    ("error", "told"),
    [(0.0, None), (12e-6, "agree within 12.0 us"), (math.inf, "were never seen beside the host's")],
)
def test_the_report_tells_how_well_clocks_agree(simulated, monkeypatch, error, told):
    with profile() as prof:
        some_work(simulated)
    monkeypatch.setattr(Profile, "clock_error", error)
    lines = [line for line in str(prof).splitlines() if line.startswith("Clocks ")]
    assert len(lines) == (told is not None)
    assert told is None or told in lines[0]


def test_a_trace_is_one_that_perfetto_reads(platform, tmp_path):
    """All that the Trace Event Format asks for: which fields each kind of event has, and that those of a thread lie
    inside each other or apart."""
    with profile() as prof:
        float(some_work(platform)[1])
    prof.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text(), parse_constant=pytest.fail)["traceEvents"]
    fields = {"M": {"args"}, "X": {"ts", "dur", "args", "cat"}, "s": {"ts", "id", "cat"}}
    fields["f"] = {*fields["s"], "bp"}
    for event in events:
        assert event.keys() == {"ph", "name", "pid", "tid", *fields[event["ph"]]}
        assert isinstance(event["name"], str)
        assert all(isinstance(event[field], int) and event[field] >= 0 for field in ("pid", "tid"))
        assert all(event[field] >= 0 for field in ("ts", "dur") if field in event)
    about = {(event["name"], event["pid"], event["tid"]): event["args"] for event in events if event["ph"] == "M"}
    pieces = [event for event in events if event["ph"] == "X"]
    for event in pieces:
        assert about["process_name", event["pid"], 0]["name"]
        assert about["thread_name", event["pid"], event["tid"]]["name"]
    on_devices = [event for event in pieces if about["process_name", event["pid"], 0]["name"] != "host"]
    assert len(on_devices) == len(prof.spans)
    for event, span in zip(on_devices, prof.spans, strict=True):
        assert event["ts"] == pytest.approx((span.start - prof.start) / 1e3)
        assert event["dur"] == pytest.approx((span.end - span.start) / 1e3)
        assert about["process_name", event["pid"], 0]["name"] == f"device {span.lane.device}"
    assert len(pieces) - len(on_devices) == len(prof.waits)
    threads = {}
    for event in on_devices:
        threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for times in threads.values():
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(sorted(times)))
    starts = {event["id"]: event["ts"] for event in events if event["ph"] == "s"}
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert all(starts[id] <= ends[id] for id in starts)


def test_a_picture_has_a_rectangle_for_each_piece_of_work(simulated, tmp_path):
    prof, _ = pipeline(simulated)
    prof.svg(tmp_path / "timeline.svg")
    root = ElementTree.parse(tmp_path / "timeline.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    pieces = [group for group in root.iter(f"{space}g") if group.find(f"{space}title") is not None]
    assert len(pieces) == len(prof.spans) == 128
    numbered = [group for group in pieces if group.find(f"{space}text") is not None]
    assert len(numbered) == 128  # all of them are wide enough to be read
    names = {text.text for text in root.iter(f"{space}text")}
    assert {"sim:0 computes", "sim:0 -> sim:2", "host -> sim:0"} <= names


def test_profiles_may_lie_inside_each_other_and_see_all_threads(platform):
    with profile() as outer:
        cuplace.device_put(numbers(8))
        with profile() as inner:
            thread = threading.Thread(target=lambda: cuplace.device_put(numbers(8), platform.devices[1]))
            thread.start()
            thread.join()
    assert len(inner.records) == 1
    assert len(outer.records) == 2


def test_nothing_at_all(platform):
    with profile() as prof:
        pass
    assert isinstance(prof, Profile)
    assert "0 pieces of work" in str(prof)
    assert prof.to_dict()["bubble"] is None


def test_nothing_is_there_before_the_block_begins(platform):
    block = profile()
    with pytest.raises(errors.ProfileBlockError, match=r"with cuplace\.profile\(\) as prof:.*prof\.report"):
        block.report()
    assert not hasattr(block, "records")
    with block as prof:
        pass
    assert not prof.records
