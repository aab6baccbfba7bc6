"""Spans, lanes and overlap against cases worked out by hand, and brute force."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cuplace.demo import timeline
from cuplace.demo.timeline import COMPUTE, TRANSFER, Span
from cuplace.profiling.report import IDLE

LENGTH = 24

spans = st.lists(
    st.builds(
        lambda device, lane, start, length: Span(device, lane, str(start % 10), start, start + length),
        st.integers(0, 2), st.sampled_from([COMPUTE, TRANSFER]), st.integers(0, LENGTH - 1), st.integers(1, 5),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


def submission(id: int, kind: str, stream: str, device: int = 0, **more: Any) -> Any:
    fields = {"reads": (), "writes": (), "waits": (), "start": 0, "end": 0, **more}
    return SimpleNamespace(id=id, kind=kind, stream=stream, device=SimpleNamespace(id=device), **fields)


@given(spans)
def test_overlap_counts_each_unit_of_time_as_brute_force_does(found: list[Span]) -> None:
    def busy(lane: str, t: int) -> int:
        return sum(span.lane == lane and span.start <= t < span.end for span in found)

    times = range(LENGTH + 5)
    result = timeline.overlap(found)
    assert result.transfer == sum(busy(TRANSFER, t) for t in times)
    assert result.serial == result.transfer + sum(busy(COMPUTE, t) for t in times)
    assert result.hidden == sum(busy(TRANSFER, t) for t in times if busy(COMPUTE, t))


@given(spans)
def test_every_lane_has_the_same_width_and_shows_only_its_own_labels(found: list[Span]) -> None:
    lines = timeline.draw(found, 3, 40)
    assert len({len(line) for line in lines}) == 1
    for i, line in enumerate(lines):
        lane = COMPUTE if i % 2 == 0 else TRANSFER
        labels = {span.label for span in found if span.device == i // 2 and span.lane == lane}
        assert set(line[-40:]) <= labels | {IDLE}


def test_a_lane_shows_what_took_most_of_each_column() -> None:
    spans = [Span(0, COMPUTE, "a", 0, 4.5), Span(0, COMPUTE, "b", 4.5, 6), Span(1, TRANSFER, "c", 0, 8)]
    lines = timeline.draw(spans, 2, 4)
    assert [line[-4:] for line in lines] == ["aab" + IDLE, IDLE * 4, IDLE * 4, "cccc"]


def test_no_transfers_count_as_hidden() -> None:
    assert timeline.overlap([Span(0, COMPUTE, "a", 0, 1)]).hidden_share == 1.0


def test_a_replay_keeps_stream_order_data_and_waits() -> None:
    work = [
        submission(1, "upload", "up", writes=(10,)),
        submission(2, "compute", "c", reads=(10,), writes=(11,)),
        submission(3, "compute", "c", reads=(), writes=(12,)),
        submission(4, "move", "m", reads=(11,), writes=(13,)),
        submission(5, "move", "n", reads=(12,), writes=(13,)),
        submission(6, "compute", "d", device=1, reads=(13,), writes=(14,)),
        submission(7, "compute", "e", device=1, waits=(6,), writes=(15,)),
        submission(8, "compute", "f", device=1, writes=(11,)),
    ]
    starts = [span.start for span in timeline.replayed(work, str)]
    assert starts == [0, 1, 2, 2, 3, 4, 5, 3]


def test_measured_spans_are_those_that_ran() -> None:
    work = [submission(1, "compute", "c", start=5, end=9), submission(2, "compute", "c")]
    assert timeline.measured(work, str) == [Span(0, COMPUTE, "1", 5, 9)]
