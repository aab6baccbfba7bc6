"""Mutants of what orders work and keeps memory are killed: a sample of them in CI, all with --deep."""

from __future__ import annotations

import re

import pytest

from tests.guard.guard import Outcome, Worker, explained, known, known_values, orders, row, sample, valueless
from tests.guard.sites import find_sites

SAMPLE = 4
"""Mutants in CI, three seconds each."""

SITES = find_sites()


def judged(outcomes: list[Outcome], values: list[Outcome] | None = None) -> None:
    """Print the table; fail where a mutant survived."""
    reasons = explained()
    for i, outcome in enumerate(outcomes):
        value = next((v for v in values or () if v.site.key == outcome.site.key), None)
        print(row(outcome, value, reasons.get(outcome.site.key)), f"({i + 1} of {len(outcomes)})")
    alive = [row(outcome) for outcome in outcomes if not outcome.killed and outcome.site.key not in reasons]
    assert not alive, "no test kills these mutants:\n" + "\n".join(alive)


def test_sites_of_every_kind_are_found() -> None:
    kinds = {site.kind for site in SITES}
    assert kinds == {"wait", "record", "note", "park", "keep", "lend", "query", "needs"}
    assert len({site.key for site in SITES}) == len(SITES) > 150
    for backend in ("cpu", "sim", "cuda"):
        assert any(f"/backends/{backend}/" in site.path for site in SITES)


def test_what_is_explained_is_there() -> None:
    keys = {site.key for site in SITES}
    gone = [key for key in explained() if key not in keys]
    assert not gone, "no such sites any more:\n" + "\n".join(gone)


def test_what_is_explained_as_without_values_is_there_and_killed() -> None:
    killed, values = known().keys(), known_values().keys()
    for pattern in valueless():
        keys = {site.key for site in SITES if re.search(pattern, site.key)}
        assert keys, f"no such sites any more: {pattern}"
        assert killed >= keys
        assert not values & keys, f"a test finds a wrong value: {pattern}"


def test_without_a_mutant_nothing_fails() -> None:
    """The worker's way of running tests finds fault with mutants only."""
    stages = [["tests/runtime/test_scheduler_rules.py", "tests/runtime/test_scheduler_order.py"]]
    request = {"site": None, "stages": stages, "platforms": ["sim"], "options": ["-k", "sim and not seed"],
               "only_values": False, "seconds": 300.0}  # fmt: skip
    with Worker() as worker:
        assert worker.ask(request)["how"] == "survived"


def test_a_sample_of_mutants_is_killed() -> None:
    """Of those that the tests of the scheduler's rules kill, in seconds and whatever else is installed."""
    tests = known()
    chosen = sample([site for site in SITES if "test_scheduler_rules.py" in tests.get(site.key, "")], SAMPLE)
    with Worker() as worker:
        judged([worker.try_mutant(site, stages=[[tests[site.key]]]) for site in chosen])


@pytest.mark.deep
def test_all_mutants_are_killed() -> None:
    """Those that lack an order give a wrong value, too, where the detectors are off; what is explained survives."""
    with Worker() as worker:
        outcomes = [worker.try_mutant(site) for site in SITES]
        values = [worker.try_mutant(site, only_values=True) for site in SITES if orders(site)]
    judged(outcomes, values)
    reasons = explained()
    killed = [row(outcome) for outcome in outcomes if outcome.killed and outcome.site.key in reasons]
    assert not killed, "these are killed, and need no explanation:\n" + "\n".join(killed)
