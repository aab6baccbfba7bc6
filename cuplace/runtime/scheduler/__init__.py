"""The scheduler: the one place that orders work. Everything that waits or records an event is in this package.

It has five doors: ``submit`` (with its batch forms), ``host_wait``, ``adopt``, ``lend`` and ``park`` (the drain of
dead buffers). The rules it keeps:

- a reader waits for the latest write of what it reads; a writer waits for the latest write and for all reads since;
- dependencies within one stream cost nothing, the stream is already in order;
- the moves of one plan write disjoint boxes, so they never wait for one another;
- work is enqueued, and its event recorded, before the call returns, or done, which leaves no event;
- a dead block is reused in stream order or when its events are complete, never earlier.

Each of its modules adds one part to the class of the module before, and knows nothing of those after: ``rules`` (what
work waits for, and what it leaves for later work), ``at_once`` (what is done without being enqueued), ``memory`` (new
and dead buffers), ``host`` (where the host waits), ``lending`` (memory and streams of others), ``doors`` (how work
comes in, and ``Scheduler`` itself).
"""

from __future__ import annotations

from cuplace.runtime.scheduler.doors import Scheduler

__all__ = ["Scheduler"]
