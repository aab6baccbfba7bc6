"""Sites are found by what the code says, and mutants are what they say."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.guard.sites import find_sites, sites_of
from tests.guard.worker import Mutation

SOURCE = '''
class Scheduler:
    def submit(self, stream, buffer, needs):
        for event in buffer.writes:
            stream.wait(event)
        event = stream.record(1)
        self._run_ahead.append(event)
        buffer.writes = (event,)
        block.arena.release(block, (event,))
        stream.until_recorded(lambda event: ring.release(block, (event,)))
        block.arena.release(block, ())
        loan = self.lend_out(buffer, stream, ends)
        self.engine.open(self._engine.release(latch, item))
        self.changed.wait()
        self.lock.release()
        run(stream, needs)
        return event if query(event) else None
'''

MUTANTS = [
    ("wait", "stream.wait(event)", "pass"),
    ("record", "stream.record(1)", "None"),
    ("keep", "self._run_ahead.append(event)", "pass"),
    ("note", "buffer.writes = (event,)", "pass"),
    ("park", "block.arena.release(block, (event,))", "()"),
    ("keep", "stream.until_recorded(lambda event: ring.release(block, (event,)))", "pass"),
    ("park", "ring.release(block, (event,))", "()"),
    ("park", "block.arena.release(block, ())", "pass"),
    ("lend", "self.lend_out(buffer, stream, ends)", "None"),
    ("needs", "run(stream, needs)", "()"),
    ("query", "query(event)", "True"),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "scheduler.py").write_text(SOURCE)
    return tmp_path


def test_sites_are_what_waits_records_and_keeps(root: Path) -> None:
    """And not what threads sleep on."""
    found = sites_of("scheduler.py", root)
    assert [(site.kind, site.code, site.mutant) for site in found] == MUTANTS
    assert {site.function for site in found} == {"Scheduler.submit"}


@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_a_mutant_differs_in_its_site_alone(root: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.guard.worker.ROOT", root)
    site = sites_of("scheduler.py", root)[number]
    changed = Mutation("scheduler", site.path, site.place, site.mutant).tree()
    before, after = (ast.unparse(tree).splitlines() for tree in (ast.parse(SOURCE), changed))
    assert len(before) == len(after)
    (line,) = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert "".join(site.code.split()) in "".join(line[0].split())
    assert site.mutant in line[1]


def test_mutants_of_the_product_compile() -> None:
    for site in find_sites()[::7]:
        assert Mutation(site.module, site.path, site.place, site.mutant).code()
