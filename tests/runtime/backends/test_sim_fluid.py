"""Fair shares: nothing is exceeded, nobody could have more without somebody poorer having less."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.runtime.backends.sim.fluid import Flow, Resource, fair_rates

AMOUNTS = st.sampled_from([0.25, 0.5, 1.0, 2.0])


@st.composite
def flows(draw: Any, least: int = 1) -> list[Flow]:
    resources = [Resource(str(i), draw(st.sampled_from([1.0, 2.0, 5.0, 100.0]))) for i in range(4)]
    made = []
    for _ in range(draw(st.integers(least, 6))):
        chosen = draw(st.lists(st.sampled_from(resources), min_size=1, max_size=3, unique=True))
        uses = tuple((resource, draw(AMOUNTS)) for resource in chosen)
        most = draw(st.sampled_from([0.3, 1.5, float("inf")]))
        made.append(Flow(draw(st.sampled_from([1.0, 3.0, 8.0])), uses, draw(AMOUNTS), most, None))
    return made


@given(flows())
def test_rates_are_max_min_fair(found: list[Flow]) -> None:
    rates = dict(zip(found, fair_rates(found), strict=True))
    used: dict[Resource, float] = {}
    for flow, rate in rates.items():
        assert 0 < rate <= flow.most * (1 + 1e-9)
        for resource, amount in flow.uses:
            used[resource] = used.get(resource, 0.0) + amount * rate
    assert all(taken <= resource.capacity * (1 + 1e-9) for resource, taken in used.items())
    for flow, rate in rates.items():
        level = rate / flow.weight
        full = [resource for resource, _ in flow.uses if used[resource] >= resource.capacity * (1 - 1e-9)]
        richest = [
            max(rates[other] / other.weight for other in found if any(r is resource for r, _ in other.uses))
            for resource in full
        ]
        assert rate == pytest.approx(flow.most) or any(level >= rich * (1 - 1e-9) for rich in richest)


@given(flows(least=2), st.data())
def test_rates_after_any_arrivals_and_departures_are_those_of_all_at_once(found: list[Flow], data: Any) -> None:
    active: list[Flow] = []
    waiting = list(found)
    now = 0.0
    while waiting or active:
        if waiting and (not active or data.draw(st.booleans())):
            flow = waiting.pop()
            flow.start(now)
            active.append(flow)
        else:
            flow = min(active, key=Flow.end_time)
            now = max(now, flow.end_time())
            active.remove(flow)
            flow.end(now)
        for flow, rate in zip(active, fair_rates(active), strict=True):
            assert flow.rate == pytest.approx(rate)


@given(flows())
def test_all_work_is_done_whoever_shares(found: list[Flow]) -> None:
    """Integrating the rates gives the units of each flow."""
    done = dict.fromkeys(found, 0.0)
    units = {flow: flow.left for flow in found}
    now = 0.0
    for flow in found:
        flow.start(now)
    active = list(found)
    while active:
        first = min(active, key=Flow.end_time)
        until = max(now, first.end_time())
        for flow in active:
            done[flow] += flow.rate * (until - now)
        now = until
        active.remove(first)
        first.end(now)
        assert done[first] == pytest.approx(units[first])
