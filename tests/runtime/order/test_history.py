"""Histories find every conflict with what is not known, however the accesses overlap, and forget what cannot matter."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cuplace.runtime.order.clock import Actor
from cuplace.runtime.order.history import Access, History, Origin
from cuplace.runtime.order.region import Region

ORIGIN = Origin("work", "a stream", None, None)


def region(start: int, count: int, gap: int) -> Region:
    """``count`` runs of two bytes, ``gap`` bytes between them."""
    return Region(start, 2, ((count, 2 + gap),)) if count > 1 and gap else Region(start, 2 * count)


def touched(of: Region) -> set[int]:
    ((count, stride),) = of.dims or ((1, 0),)
    return {of.start + i * stride + k for i in range(count) for k in range(of.run)}


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from([None, None, 0, 1, 2, 3]), st.booleans(), st.integers(0, 12),
        st.integers(1, 4), st.sampled_from([0, 0, 1, 2]),
    ),
    max_size=40,
)  # fmt: skip


@given(STEPS)
def test_conflicts_are_those_of_a_list_of_everything(steps: list[tuple[Any, ...]]) -> None:
    """Actors read and write and learn from one another; nothing that a forgotten access would show is lost."""
    actors = [Actor(str(i)) for i in range(4)]
    history = History()
    everything: list[tuple[Actor, int, set[int], bool]] = []
    for i, learns_from, writes, start, count, gap in steps:
        actor = actors[i]
        if learns_from is not None:
            actor.learn(actors[learns_from].last)
        new = region(start, count, gap)
        expected = any(
            (writes or wrote) and bytes_ & touched(new) and actor.clock.get(who, 0) < position
            for who, position, bytes_, wrote in everything
        )
        assert (history.conflict(new, writes, actor.clock) is not None) == expected
        if not expected:
            position = actor.step()
            history.note(Access(actor, position, new, writes, ORIGIN), {})
            everything.append((actor, position, touched(new), writes))


def test_what_is_overwritten_is_forgotten() -> None:
    one, history = Actor("one"), History()
    for _ in range(3):
        history.note(Access(one, one.step(), Region(0, 64), True, ORIGIN), {})
        history.note(Access(one, one.step(), Region(0, 64), False, ORIGIN), {})
    assert len(history.accesses) == 2
    history.note(Access(one, one.step(), Region(16, 16), True, ORIGIN), {})
    left = sorted((access.start, access.stop) for access in history.accesses if access.region.run != 16)
    assert left == [(0, 16), (0, 16), (32, 64), (32, 64)]
    history.note(Access(one, one.step(), Region(0, 64), True, ORIGIN), {})
    assert len(history.accesses) == 1


def test_what_all_later_work_knows_is_forgotten() -> None:
    one, history = Actor("one"), History()
    for i in range(1000):
        position = one.step()
        history.note(Access(one, position, Region(100 * i, 8), True, ORIGIN), {one: position - 10})
    assert len(history.accesses) <= 128


def test_repeated_reads_are_one_access() -> None:
    one, other, history = Actor("one"), Actor("other"), History()
    for _ in range(50):
        for actor in (one, other):
            history.note(Access(actor, actor.step(), Region(0, 8, ((4, 16),)), False, ORIGIN), {})
    assert len(history.accesses) == 2
    assert history.conflict(Region(16, 8), True, one.clock) is not None
