"""Streams of the simulator: queues of items that the engine runs in a seeded random order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.runtime.backends.base import Event, Work
from cuplace.runtime.backends.sim.links import NO_DEMAND, Carrier, Demand, Links
from cuplace.runtime.device import Device
from cuplace.runtime.pieces import pieces
from cuplace.runtime.staging import NO_STAGING, Staging, chunking
from cuplace.runtime.submission import Submission

if TYPE_CHECKING:
    from cuplace.runtime.backends.sim.clock import Timed
    from cuplace.runtime.backends.sim.engine import Engine


class Item:
    """One piece of queued work; it is also the event that marks its end.

    Attributes:
        before: what the stream runs before it; None once the host knows that it is complete.
        waits: the events that it waits for; empty once the host knows that it is complete.
        unseen: those of ``waits`` that are not known to have run.
        timed: the same work in virtual time.
        finished: whether it has run.
        done: whether the host knows that it is complete: it has waited for it, or for something that comes after
            it. What has run by chance is not done, so that what waits for what is the same for every seed.
    """

    __slots__ = (
        "stream", "submission", "record", "call", "needs", "before", "waits", "unseen", "timed", "finished", "done",
        "error",
    )  # fmt: skip

    def __init__(
        self, stream: SimStream, record: Submission, call: Callable[[], None] | None, needs: Sequence[Event],
        waits: list[Item],
    ) -> None:  # fmt: skip
        self.stream = stream
        self.submission = record.id
        self.record = record
        self.call = call
        self.needs = needs
        self.before: Item | None = None
        self.waits = waits
        self.unseen = list(waits)
        self.timed: Timed
        self.finished = False
        self.done = False
        self.error: BaseException | None = None


class SimLatch:
    """A latch in a simulated stream: an item that cannot run until the host releases it."""

    def __init__(self, item: Item, engine: Engine) -> None:
        self._item = item
        self._engine = engine
        self.held = True

    def release(self) -> None:
        """Let the stream go on. Releasing twice does nothing."""
        self._engine.release(self, self._item)


class SimStream:
    """A FIFO of items of one device; ``peer`` is the device that a move stream copies to."""

    def __init__(self, device: Device, role: str, engine: Engine, links: Links, peer: Device | None = None) -> None:
        self.device = device
        self.role = role
        self.name = f"{device} {role}" if peer is None else f"{device} -> {peer}"
        self.items: deque[Item] = deque()
        self.latches: dict[Item, SimLatch] = {}
        self.last: Item | None = None
        self._engine = engine
        self._links = links
        self._pair = (device.gpu, device.gpu if peer is None else peer.gpu)
        self._waits: list[Item] = []

    @property
    def path(self) -> str | None:
        """How the copies of a move stream travel on this machine; None for other streams."""
        return self._links.path(*self._pair) if self.role == "move" else None

    def wait(self, event: Event) -> None:
        assert isinstance(event, Item)
        self._waits.append(event)

    def run(
        self, work: Work, reads: list[Any], writes: list[Any], scalars: tuple[Any, ...],
        needs: Sequence[Event], seconds: float, submission: Submission,
    ) -> None:  # fmt: skip
        views = [_read_only(array) for array in reads]
        links, cost = self._links, submission.task.cost
        demand = links.host(cost.bytes) if self.role == "host" else links.compute(self.device.gpu, cost)
        self._queue(lambda: work(views, writes, scalars), needs, submission, demand)

    def copy(
        self, source: Any, target: Any, path: str, needs: Sequence[Event], submission: Submission,
        staging: Staging = NO_STAGING,
    ) -> None:  # fmt: skip
        one, other = self._pair
        if self.role != "move":  # between a device and its host memory, or inside of the host
            self._queue(lambda: np.copyto(target, source), needs, submission, self._over_host_link(target.nbytes))
            return
        demand = self._links.copy(one, other, target.nbytes)
        carry = self._links.carrier(one, other)
        if staging is not NO_STAGING:
            carry = partial(_carry_packed, staging, carry)
        self._queue(lambda: carry(target, source), needs, submission, demand)

    def _over_host_link(self, nbytes: int) -> Demand:
        gpu = self.device.gpu
        if self.role == "host":
            return self._links.host(2.0 * nbytes)
        return self._links.upload(gpu, nbytes) if self.role == "upload" else self._links.download(gpu, nbytes)

    def upload(self, source: np.ndarray[Any, Any], target: Any, submission: Submission) -> None:
        snapshot = np.array(source, dtype=target.dtype)
        demand = self._over_host_link(target.nbytes)
        self._queue(lambda: np.copyto(target, snapshot), (), submission, demand)

    def upload_packed(
        self, sources: Sequence[np.ndarray[Any, Any]], targets: Sequence[Any], submission: Submission
    ) -> None:
        snapshots = [np.array(source, dtype=target.dtype) for source, target in zip(sources, targets, strict=True)]
        demand = self._over_host_link(sum(target.nbytes for target in targets))
        self._queue(lambda: _copy_all(snapshots, targets), (), submission, demand)

    def hold(self, submission: Submission) -> SimLatch:
        item = self._item(None, (), submission)
        latch = SimLatch(item, self._engine)
        self._engine.append(self, item, NO_DEMAND, latch)
        return latch

    def record(self, submission: int) -> Item | None:
        return self.last

    def _queue(self, call: Callable[[], None], needs: Sequence[Event], submission: Submission, demand: Demand) -> None:
        self._engine.append(self, self._item(call, needs, submission), demand)

    def _item(self, call: Callable[[], None] | None, needs: Sequence[Event], submission: Submission) -> Item:
        item = Item(self, submission, call, needs, self._waits)
        self._waits = []
        return item


def _carry_packed(staging: Staging, carry: Carrier, target: Any, source: Any) -> None:
    """Pack, copy and unpack, chunk by chunk, in the staging memory that there is, as GPUs do."""
    sent, received = staging
    size, count = chunking(target.nbytes, *[memory.nbytes for memory in staging if memory is not None])
    for i, part in enumerate(pieces(target.shape, target.itemsize, size)):
        here, there = source[part], target[part]
        start = i % count * size
        if sent is not None:
            packed = np.ndarray(here.shape, here.dtype, sent, start)
            np.copyto(packed, here)
            here = packed
        if received is None:
            carry(there, here)
        else:
            arrived = np.ndarray(there.shape, there.dtype, received, start)
            carry(arrived, here)
            np.copyto(there, arrived)


def _copy_all(sources: Sequence[Any], targets: Sequence[Any]) -> None:
    for source, target in zip(sources, targets, strict=True):
        np.copyto(target, source)


def _read_only(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view
