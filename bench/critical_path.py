"""The least time that a recorded program can take on a simulated machine: its longest chain of enqueueing, data and
streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuplace.runtime.backends.sim.links import Demand, Links
from cuplace.runtime.platform import Platform
from cuplace.runtime.submission import Submission


def critical_path(platform: Platform, records: Sequence[Submission]) -> float:
    """The longest chain of enqueueing, data and streams, in seconds: no schedule of this program is quicker.

    Every piece of work is taken to have the machine for itself, and to wait for its data and for the work before it on
    its stream only.
    """
    submit = platform.backend.machine.submit_us * 1e-6
    ends: dict[Any, float] = {}
    written: dict[int, list[int]] = {}
    for i, record in enumerate(records):
        data = [writer for buffer in record.reads for writer in written.get(buffer, ())]
        start = max([submit * (i + 1), ends.get(record.stream, 0.0), *[ends[id] for id in data]])
        ends[record.id] = ends[record.stream] = start + alone(platform, record)
        for buffer in record.writes:
            written.setdefault(buffer, []).append(record.id)
    return max(ends.values())


def alone(platform: Platform, record: Submission) -> float:
    """The seconds that a piece of work takes with the machine for itself."""
    links: Links = platform.backend.links
    gpu = record.device.gpu
    if record.kind == "compute":
        demand = links.compute(gpu, record.task.cost)
    elif record.kind == "upload":
        demand = links.upload(gpu, record.nbytes)
    else:
        peer = platform.devices[int(record.stream.name.rpartition(":")[2])]
        demand = links.copy(gpu, peer.gpu, record.nbytes)
    return demand.latency + demand.units / _rate(demand)


def _rate(demand: Demand) -> float:
    return min([demand.most, *(resource.capacity / amount for resource, amount in demand.uses)])


def makespan(records: Sequence[Submission]) -> float:
    """Seconds from the first call to the end of the last work."""
    first = min(record.enqueue for record in records)
    return (max(record.end for record in records) - first) * 1e-9
