"""Bubble: the idle share of a pipeline's devices, and the least that there can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cuplace.profiling.intervals import length, merged
from cuplace.profiling.spans import COMPUTE, HOST, Span, calls_of
from cuplace.runtime.submission import Submission


class Bubble(NamedTuple):
    """
    Attributes:
        share: of the time from the first to the last computing, in which a device does not compute, on average.
        stages, microbatches: of the pipeline; None where the program is none.
        bound: the least share that a pipeline of so many stages and microbatches of equal cost can have,
            (S - 1) / (M + S - 1); None where the program is none.
    """

    share: float
    stages: int | None = None
    microbatches: int | None = None

    @property
    def bound(self) -> float | None:
        if self.stages is None or self.microbatches is None:
            return None
        return (self.stages - 1) / (self.microbatches + self.stages - 1)


def bubble_of(spans: Sequence[Span], records: Sequence[Submission]) -> Bubble | None:
    """The bubble of what has been computed; None where nothing has been."""
    computing = [span for span in spans if span.lane.kind == COMPUTE]
    if not computing:
        return None
    lanes = {span.lane for span in computing}
    whole = max(span.end for span in computing) - min(span.start for span in computing)
    busy = sum(length(merged((s.start, s.end) for s in computing if s.lane == lane)) for lane in lanes)
    share = 1.0 - busy / (whole * len(lanes)) if whole else 0.0
    return Bubble(share, *_pipeline(records))


def _pipeline(records: Sequence[Submission]) -> tuple[int, int] | tuple[None, None]:
    """Stages and microbatches, where each set of devices that computes together does so equally often, and no device
    belongs to two of them."""
    counts: dict[frozenset[int], int] = {}
    for call in calls_of(records):
        if call[0].kind == "compute" and call[0].stream.role != HOST:
            devices = frozenset(record.device.id for record in call)
            counts[devices] = counts.get(devices, 0) + 1
    total = sum(map(len, counts))
    disjoint = len(frozenset().union(*counts)) == total
    if len(counts) < 2 or not disjoint or len(set(counts.values())) > 1:
        return None, None
    return len(counts), next(iter(counts.values()))
