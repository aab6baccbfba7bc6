"""The mutation guard: tries the mutants of all sites against the tests marked `order`, and tells how each is killed.

``python -m tests.guard`` tries all of them and prints the table; a text as argument chooses sites by their names.
"""

from __future__ import annotations

import functools
import hashlib
import json
import queue
import random
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.guard.sites import ROOT, Site

T = TypeVar("T")

RANDOM = ("tests/order/test_random_programs.py", "tests/runtime/test_scheduler_order.py")
RULES = ("tests/runtime/test_scheduler_rules.py",)
DOORS = tuple(
    f"tests/runtime/test_{name}.py"
    for name in ("scheduler", "scheduler_relays", "buffer", "memory", "scheduler_interrupts")
)
HOST_MEMORY = ("tests/transfer/test_host_moves.py", "tests/runtime/test_host_memory.py")


def _cuda(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/runtime/backends/test_cuda_{name}.py" for name in names)


STAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "cuplace/runtime/backends/cpu/": (
        ("tests/runtime/backends/test_cpu_strand.py", "tests/runtime/test_at_once.py"), RULES, RANDOM, DOORS,
    ),
    "cuplace/runtime/backends/sim/": (RANDOM, ("tests/runtime/backends/test_sim_stream.py",), RULES, DOORS),
    "cuplace/runtime/backends/cuda/copies.py": (_cuda("in_flight"), _cuda("moves"), _cuda("order"), RANDOM),
    "cuplace/runtime/backends/cuda/foreign.py": (_cuda("foreign"), RANDOM),
    "cuplace/runtime/backends/cuda/host.py": (_cuda("in_flight"), _cuda("host"), _cuda("order"), RANDOM),
    "cuplace/runtime/backends/cuda/latch.py": (_cuda("streams"), RANDOM),
    "cuplace/runtime/backends/cuda/links.py": (_cuda("moves"), RANDOM),
    "cuplace/runtime/backends/cuda/ring.py": (_cuda("ring", "in_flight"), _cuda("host", "moves", "order"), RANDOM),
    "cuplace/runtime/backends/cuda/storage.py": (_cuda("streams"), RANDOM),
    "cuplace/runtime/backends/cuda/host_moves.py": (HOST_MEMORY, RANDOM),
    "cuplace/runtime/backends/cuda/strand.py": (HOST_MEMORY, RANDOM),
    "cuplace/runtime/backends/cuda/pinned.py": (HOST_MEMORY, RANDOM),
    "cuplace/runtime/backends/cuda/lane.py": (_cuda("lanes"), RANDOM, _cuda("streams", "failure", "order"), DOORS),
    "cuplace/runtime/backends/cuda/": (RANDOM, _cuda("streams", "failure"), _cuda("order"), DOORS),
    "cuplace/runtime/memory.py": (RULES, DOORS, _cuda("failure"), RANDOM),
    "cuplace/": (RULES, DOORS, RANDOM, _cuda("foreign")),
}
"""Files of tests for the sites of a file, in the order in which they are tried: those first that kill quickly."""

PLATFORMS = {"backends/cpu/": ("cpu",), "backends/sim/": ("sim",), "backends/cuda/": ("cuda",)}


class Outcome(NamedTuple):
    """What became of a mutant.

    Attributes:
        how: ``value``, ``report``, ``hang``, ``crash``, ``error``, ``assertion``, or ``survived``; ``stopped`` where
            it had survived until its time was over, or until a test ended that does not find it by itself.
        test: the test that killed it.
        text: the first line of what the test said.
    """

    site: Site
    how: str
    test: str
    text: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.how not in ("survived", "stopped")


def stages_for(site: Site, *, only_values: bool = False) -> list[tuple[str, ...]]:
    """The tests that killed what is next to the site, the files that kill quickly, and then all others with tests
    marked `order`."""
    stages = next(stages for start, stages in STAGES.items() if site.path.startswith(start))
    named = {file for files in stages for file in files}
    rest = tuple(file for file in marked_files() if file not in named)
    return [stage for stage in (neighbours(site, only_values=only_values), *stages, rest) if stage]


def neighbours(site: Site, *, only_values: bool = False) -> tuple[str, ...]:
    """The tests that killed the mutant of the site before, those of the same function, and of the same file."""
    tests: Counter[str] = Counter()
    for key, test in (known_values() if only_values else known()).items():
        path, function, _ = key.split("::", 2)
        if path == site.path:
            tests[test] += 1000 if key == site.key else 100 if function == site.function else 1
    return tuple(test for test, _ in tests.most_common(8))


@functools.cache
def marked_files() -> tuple[str, ...]:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return tuple(file.relative_to(ROOT).as_posix() for file in files if "pytest.mark.order" in file.read_text())


def platforms_for(site: Site) -> tuple[str, ...]:
    return next((names for part, names in PLATFORMS.items() if part in site.path), ("sim", "cpu", "cuda"))


class Worker:
    """The process that forks for each mutant (see `worker`)."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.guard.worker"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()

    def try_mutant(self, site: Site, *, only_values: bool = False, seconds: float = 600.0, **more: Any) -> Outcome:
        """Run tests against the mutant of a site until one kills it, for at most so many seconds."""
        mutation = {"module": site.module, "path": site.path, "place": site.place, "mutant": site.mutant}
        request = {
            "site": mutation, "stages": stages_for(site, only_values=only_values), "only_values": only_values,
            "platforms": platforms_for(site), "options": [], "seconds": seconds, **more,
        }  # fmt: skip
        found = self.ask(request)
        if found["how"] in ("crash", "hang"):  # what tests before have left may be why: once more, by itself
            again = self.ask({**request, "stages": [[found["test"].partition("[")[0]]]})
            found["how"] = "stopped" if again["how"] == "survived" else found["how"]
        return Outcome(site, found["how"], found["test"], found["text"], found["seconds"])

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        reply: dict[str, Any] = json.loads(self.process.stdout.readline())
        return reply


class Workers:
    """Several workers, each of which tries one mutant at a time."""

    def __init__(self, count: int) -> None:
        self._all = [Worker() for _ in range(count)]
        self._free = queue.SimpleQueue[Worker]()
        for worker in self._all:
            self._free.put(worker)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._all:
            worker.__exit__(*exception)

    def map(self, trial: Callable[[Worker, Site], T], sites: Iterable[Site]) -> Iterator[T]:
        """What came out of each trial, in the order of the sites."""

        def with_a_worker(site: Site) -> T:
            worker = self._free.get()
            try:
                return trial(worker, site)
            finally:
                self._free.put(worker)

        with ThreadPoolExecutor(len(self._all)) as threads:
            yield from threads.map(with_a_worker, sites)


def orders(site: Site) -> bool:
    """Whether the mutant lacks an order between accesses, so that some value can be wrong without it."""
    kind = site.kind in ("wait", "record", "note", "query") or (site.mutant == "()" and site.kind == "park")
    return kind and not any(re.search(pattern, site.key) for pattern in valueless())


def explained() -> dict[str, str]:
    """By the key of a site, why no test can kill its mutant."""
    return _told("explained", "site")


@functools.cache
def valueless() -> dict[str, str]:
    """By a pattern for keys of sites, why no value hangs on them although they wait, record, note or ask."""
    return _told("valueless", "pattern")


def _told(table: str, key: str) -> dict[str, str]:
    with (Path(__file__).parent / "explained.toml").open("rb") as file:
        return {entry[key]: entry["reason"] for entry in tomllib.load(file).get(table, [])}


def known() -> dict[str, str]:
    """By the key of a site, a test that has killed its mutant before."""
    return {key: test for key, test, _ in _noted()}


def known_values() -> dict[str, str]:
    """By the key of a site, a test that has found a wrong value before, without detectors."""
    return {key: test for key, _, test in _noted() if test}


def _noted() -> list[tuple[str, str, str]]:
    rows = (line.split("\t") for line in (Path(__file__).parent / "killed.tsv").read_text().splitlines())
    return [(key, test, value) for key, test, value in rows]


def note_killed(outcome: Outcome, value: Outcome | None, sites: Iterable[Site]) -> None:
    """Add what was killed to `known` and `known_values`, and drop what is not there any more."""
    keys = {site.key for site in sites}
    tests, values = known() | _by_key(outcome), known_values() | _by_key(value)
    rows = [(key, test, values.get(key, "")) for key, test in sorted(tests.items()) if key in keys]
    file = Path(__file__).parent / "killed.tsv"
    new = file.with_suffix(".new")
    new.write_text("".join("\t".join(row) + "\n" for row in rows))
    new.replace(file)  # at once: others may be reading it


def _by_key(outcome: Outcome | None) -> dict[str, str]:
    found = outcome is not None and outcome.killed and outcome.test
    return {outcome.site.key: outcome.test.partition("[")[0]} if outcome is not None and found else {}


def row(outcome: Outcome, value: Outcome | None = None, reason: str | None = None) -> str:
    """One line of the table: site, kind, code, mutant, how it was killed, by which test, and which finds a value."""
    site = outcome.site
    cells = [f"{site.path.removeprefix('cuplace/')}:{site.line}", site.kind, site.code[:72], site.mutant,
             outcome.how, outcome.test.rpartition("/")[2] or reason or "-"]  # fmt: skip
    if value is not None:
        cells.append(value.test.rpartition("/")[2] if value.killed else "no wrong value")
    return " | ".join(cells)


def sample(sites: Sequence[Site], count: int) -> list[Site]:
    """Some sites, drawn anew whenever the product changes."""
    digest = hashlib.sha256()
    for path in sorted({site.path for site in sites}):
        digest.update((ROOT / path).read_bytes())
    return random.Random(digest.digest()).sample(list(sites), count)


def chosen(sites: Iterable[Site], words: list[str]) -> list[Site]:
    return [site for site in sites if not words or any(word in site.key for word in words)]
