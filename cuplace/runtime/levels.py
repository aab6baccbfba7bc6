"""Levels: what is done about each kind of hidden or explicit transfer. A pure value, part of the context of a call."""

from __future__ import annotations

from typing import Any, NamedTuple

from cuplace.runtime.config import GUARDS, config

ALLOW = "allow"

_REFUSED = {"disallow": (True, False), "disallow_explicit": (True, True)}  # (implicit, explicit)
_LOGGED = {"log": (True, False), "log_explicit": (True, True)}


class Levels(NamedTuple):
    """The level of each guard: one of ``allow``, ``log``, ``disallow``, ``log_explicit``, ``disallow_explicit``.

    None stands for what the options say, and, in the levels that are in force, for ``allow``.

    >>> Levels(host_to_device="disallow").over(Levels("log", "log", "log")).host_to_device
    'disallow'
    """

    host_to_device: str | None = None
    device_to_device: str | None = None
    device_to_host: str | None = None
    host_sync: str | None = None
    host_bounce: str | None = None

    def over(self, others: Levels) -> Levels:
        """These levels, and where they say nothing, the others."""
        return Levels(*[mine or theirs for mine, theirs in zip(self, others, strict=True)])

    def refuses(self, kind: str, explicit: bool) -> bool:
        """Whether a transfer of this kind is an error."""
        return _REFUSED.get(getattr(self, kind), (False, False))[explicit]

    def logs(self, kind: str, explicit: bool) -> bool:
        """Whether a transfer of this kind is logged."""
        return _LOGGED.get(getattr(self, kind), (False, False))[explicit]

    @property
    def all_allowed(self) -> bool:
        """Whether nothing is refused or logged."""
        return all(level in (None, ALLOW) for level in self)


NO_LEVELS = Levels()


def configured() -> Levels:
    """The levels that the options say."""
    everything = config.transfer_guard
    ways: Any = [getattr(config, name) for name in GUARDS[:3]]
    return Levels(*[way or everything for way in ways], *[getattr(config, name) for name in GUARDS[3:]])

