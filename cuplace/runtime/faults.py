"""Faults: what goes wrong on demand, so that programs can be tested against it (see ``Platform.set_faults``).

Work that fails and memory that runs out are the same everywhere, and are made here. Links belong to backends: one that
has any has a method ``set_faults(faults)``, which holds until its next call, and tells whether streams for moves have
to be made anew.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cuplace import errors
from cuplace.runtime.task import Task

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Event, StoragePool, Stream
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.memory import Arena
    from cuplace.runtime.submission import Submission

Pair = tuple[int, int]


class Faults:
    """What goes wrong. Pairs are numbers of GPUs, (source, target).

    Attributes:
        no_p2p: pairs that do not reach each other's memory, in either direction; True for all pairs.
        corrupt_pair: pairs whose direct copies deliver zeros.
        slow_link: how many times slower copies of a pair are.
        fail_op: the work that fails: its name (the operation, the jitted function, with or without what it is
            defined in), and which time, counted from 1 as work is enqueued; 0 for every time. None where nothing fails.
        oom_after: how many allocations succeed before all others fail; None where none does.
    """

    def __init__(
        self, no_p2p: bool | Iterable[Pair] = (), corrupt_pair: Iterable[Pair] = (),
        slow_link: Mapping[Pair, float] | None = None, fail_op: tuple[str, int] | None = None,
        oom_after: int | None = None,
    ) -> None:  # fmt: skip
        self.no_p2p = no_p2p if isinstance(no_p2p, bool) else frozenset(no_p2p)
        self.corrupt_pair = frozenset(corrupt_pair)
        self.slow_link = dict(slow_link or {})
        self.fail_op = fail_op
        self.oom_after = oom_after
        self._lock = threading.Lock()
        self._times = 0
        self._allocations = 0

    def lacks_peer(self, source: int, target: int) -> bool:
        """Whether two GPUs do not reach each other's memory."""
        if isinstance(self.no_p2p, bool):
            return self.no_p2p
        return (source, target) in self.no_p2p or (target, source) in self.no_p2p

    def corrupts(self, source: int, target: int) -> bool:
        """Whether direct copies from one to the other deliver zeros."""
        return (source, target) in self.corrupt_pair

    def slowdown(self, source: int, target: int) -> float:
        """How many times slower copies from one to the other are."""
        return self.slow_link.get((source, target), 1.0)

    @property
    def of_links(self) -> bool:
        """Whether any of them is a fault of links."""
        return bool(self.no_p2p or self.corrupt_pair or self.slow_link)

    def task(self, task: Task) -> Task:
        """What to enqueue in the place of a task: itself, or work that fails."""
        if self.fail_op is None or self.fail_op[0] not in (task.name, task.name.rpartition(".")[2]):
            return task
        with self._lock:
            self._times += 1
            return _FailingTask(task) if self.fail_op[1] in (0, self._times) else task

    def check_allocation(self) -> None:
        """Memory is about to be allocated.

        Raises:
            MemoryError: there was to be none left.
        """
        if self.oom_after is not None:
            with self._lock:
                self._allocations += 1
                if self._allocations > self.oom_after:
                    raise MemoryError("out of memory on demand (cuplace.testing.faults(oom_after=...))")


NO_FAULTS = Faults()


class _FailingTask(Task):
    """Work that fails in the place of ``task``, on its stream and in its order."""

    __slots__ = ("_task",)

    def __init__(self, task: Task) -> None:
        super().__init__(task.kind, task.name, task.nbytes, task.path)
        self._task = task

    def enqueue(
        self, stream: Stream, reads: Sequence[Buffer], writes: Sequence[Buffer], scalars: tuple[Any, ...],
        needs: Sequence[Event], submission: Submission,
    ) -> None:  # fmt: skip
        sources, targets = self._task.arrays(reads, writes)
        stream.run(self._fail, sources, targets, scalars, needs, 0.0, submission)

    def _fail(self, reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
        raise errors.InjectedFaultError(self.name)


class _LimitedPool:
    """A pool of storage that has nothing more when the faults say so; else it is ``pool``."""

    def __init__(self, pool: StoragePool, faults: Faults) -> None:
        self.pool = pool
        self._check = faults.check_allocation

    def allocate(self, nbytes: int) -> Any:
        self._check()
        return self.pool.allocate(nbytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)


def limit(arena: Arena, faults: Faults) -> None:
    """Let an arena run out of memory when the faults say so, and no longer when those from before did."""
    pool: Any = arena.pool
    if isinstance(pool, _LimitedPool):
        pool = pool.pool
    arena.pool = pool if faults.oom_after is None else _LimitedPool(pool, faults)
