"""Faults: what goes wrong on demand, so that programs can be tested against it.

A backend that can do that has a method ``set_faults(faults)``, which holds until its next call and returns the faults
from before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from cuplace import errors

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

    def failure(self, name: str) -> Callable[[], None] | None:
        """What to run in the place of the work of this name that is being enqueued, where that is to fail."""
        if self.fail_op is None or self.fail_op[0] not in (name, name.rpartition(".")[2]):
            return None
        with self._lock:
            self._times += 1
            if self.fail_op[1] not in (0, self._times):
                return None

        def fail() -> None:
            raise errors.InjectedFaultError(name)

        return fail

    def check_allocation(self) -> None:
        """Memory is about to be allocated.

        Raises:
            MemoryError: there was to be none left.
        """
        if self.oom_after is not None:
            with self._lock:
                self._allocations += 1
                if self._allocations > self.oom_after:
                    raise MemoryError("out of memory on demand")


NO_FAULTS = Faults()
