"""Vector clocks: an actor knows its own steps, and what it has learnt, and what came before that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cuplace.runtime.order.clock import Actor, joined

ACTORS = [Actor(str(i)) for i in range(4)]
CLOCKS = st.dictionaries(st.sampled_from(ACTORS), st.integers(1, 5))


@given(CLOCKS, CLOCKS)
def test_joined_is_the_largest_of_each(one: dict[Actor, int], other: dict[Actor, int]) -> None:
    before = dict(one), dict(other)
    result = joined(one, other)
    assert dict(result) == {actor: max(one.get(actor, 0), other.get(actor, 0)) for actor in {*one, *other}}
    assert (one, other) == before


@given(st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 3))), max_size=40))
def test_who_knows_a_step_knows_all_before_it(steps: list[tuple[int, int | None]]) -> None:
    """Against sets of everything that happened before, kept one by one."""
    actors = [Actor(str(i)) for i in range(4)]
    past: list[set[tuple[Actor, int]]] = [set() for _ in actors]
    past_of_last: list[set[tuple[Actor, int]]] = [set() for _ in actors]
    for i, learns_from in steps:
        actor = actors[i]
        if learns_from is None:
            position = actor.step()
            past[i] = past_of_last[i] = {*past[i], (actor, position)}
        else:
            actor.learn(actors[learns_from].last)
            past[i] = past[i] | past_of_last[learns_from]
        for other in actors:
            known = {position for who, position in past[i] if who is other}
            assert actor.clock.get(other, 0) == max(known, default=0)
            assert known == set(range(1, len(known) + 1))


def test_a_step_is_seen_by_those_only_who_learn_of_it() -> None:
    one, other = Actor("one"), Actor("other")
    one.step()
    early = one.last
    one.step()
    other.learn(early)
    assert other.clock == {one: 1}
    other.learn_all(one)
    assert other.clock == {one: 2}
