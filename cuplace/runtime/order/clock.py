"""Clocks: which steps of which actors are known to have happened before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Actor:
    """What does one thing after the other: a stream, or the host.

    The threads of the host are one actor: what orders them, a lock, a queue, a reference that one hands to another,
    is Python's business and invisible here.

    Attributes:
        name: as reports show it.
        clock: what has happened before its next step.
        last: its latest step.
    """

    __slots__ = ("name", "clock", "last")

    def __init__(self, name: str) -> None:
        self.name = name
        self.clock: Clock = {}
        self.last = Moment(self, 0, {})

    def learn(self, moment: Moment) -> None:
        """All up to ``moment`` happens before all further steps."""
        if self.clock.get(moment.actor, 0) < moment.position:
            self.clock = joined(self.clock, moment.clock)

    def learn_all(self, other: Actor) -> None:
        """All that ``other`` knows happens before all further steps."""
        self.clock = joined(self.clock, other.clock)

    def step(self) -> int:
        """Take a step; its number, from 1."""
        position = self.last.position + 1
        self.clock = clock = {**self.clock, self: position}
        self.last = Moment(self, position, clock)
        return position


Clock = Mapping[Actor, int]
"""For each actor, how many of its steps are known to have happened. Never changed once it is made.

Who knows a step knows all that came before that step: clocks are only ever joined as a whole.
"""


class Moment(NamedTuple):
    """When a step of an actor has been taken: its position, and all that had happened by then, itself included."""

    actor: Actor
    position: int
    clock: Clock


def joined(one: Clock, other: Clock) -> Clock:
    """All that either knows.

    >>> a, b = Actor("a"), Actor("b")
    >>> joined({a: 1, b: 3}, {a: 2}) == {a: 2, b: 3}
    True
    """
    if not other or one is other:
        return one
    if not one:
        return other
    get = one.get
    news = [item for item in other.items() if get(item[0], 0) < item[1]]
    return {**one, **dict(news)} if news else one
