"""What benchmarks are given: clocks, turns, limits, peers, progress."""

from __future__ import annotations

import argparse
import io
import sys
from typing import Any

import pytest

from bench import limits, progress
from bench.figure import Figure
from bench.harness import Bench
from cuplace.runtime.platform import open_platform
from cuplace.runtime.presets import PRESETS


class Clocked(Bench):
    """A bench whose clock moves on by one second at each look."""

    looks = 0

    def now(self) -> float:
        self.looks += 1
        return float(self.looks)


def bench(**given: Any) -> Clocked:
    return Clocked(None, "cpu", argparse.Namespace(), **given)


def test_runs_take_turns_after_a_warm_up() -> None:
    ran: list[str] = []
    samples = bench(rounds=3).turns({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")})
    assert ran == ["a", "b"] * 4
    assert samples == {"a": [1.0] * 3, "b": [1.0] * 3}


def test_without_times_only_the_warm_up_runs() -> None:
    ran: list[str] = []
    untimed = bench(rounds=3, timed=False)
    assert untimed.turns({"a": lambda: ran.append("a")}) == {"a": []}
    assert untimed.seconds(lambda: ran.append("b")) is None
    assert ran == ["a", "b"]
    assert untimed.looks == 0


def test_the_clock_of_the_simulator_is_virtual() -> None:
    platform = open_platform("sim", 1)
    real = Bench(platform, "sim", argparse.Namespace())
    assert real.now() == platform.backend.now() * 1e-9
    assert real.turns({"": lambda: sum(range(1000))}) == {"": [0.0]}
    platform.close()


# ---------------------------------------------------------------------- peers


def adder(one: int, other: int) -> list[float]:
    return [float(one + other), 9.0, 1.0]


def ends(**arguments: int) -> list[float]:
    sys.exit(3)


def test_a_peer_is_measured_in_a_process_of_its_own() -> None:
    from tests.bench import test_harness as here

    assert bench(peers=("numpy",)).beside("numpy", here.adder, one=2, other=3) == Figure(5.0, 1.0, 9.0)
    assert bench(peers=("numpy",)).beside("jax", here.adder, one=2, other=3) is None


def test_a_peer_that_fails_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    from tests.bench import test_harness as here

    with pytest.raises(RuntimeError, match="ends failed in its process"):
        bench(peers=("numpy",)).beside("numpy", here.ends)


# ---------------------------------------------------------------------- limits


def test_the_limits_of_the_simulator_are_its_machine() -> None:
    machine = PRESETS["dgx-a100"]
    platform = open_platform("sim", machine=machine)
    found = limits.measure(Bench(platform, "sim", argparse.Namespace(), machine=machine))
    assert {limit.name: (limit.value, limit.unit) for limit in found} == {
        "link, host to device": (26e9, "B/s"), "link, device to host": (26e9, "B/s"),
        "link, GPU to GPU": (276e9, "B/s"), "copy inside a GPU": (917.5e9, "B/s"), "float32": (19.5e12, "flop/s"),
    }  # fmt: skip
    platform.close()


def test_the_limits_of_the_processor_are_measured() -> None:
    """Amounts over times: with this clock each run takes a second."""
    found = limits.measure(bench(quick=True, rounds=2))
    many = limits.cores()
    assert {limit.name: limit.value for limit in found} == {
        "memcpy, 1 core": Figure(1 << 20, 1 << 20, 1 << 20, "B/s"),
        f"memcpy, {many} cores": Figure(1 << 20, 1 << 20, 1 << 20, "B/s"),
        "matmul, 1 core": Figure(2 * 128**3, 2 * 128**3, 2 * 128**3, "flop/s"),
        f"matmul, {many} cores": Figure(2 * 128**3, 2 * 128**3, 2 * 128**3, "flop/s"),
    }


# ---------------------------------------------------------------------- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_said_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress("overlap", 2) as bar:
        bar.step("first")
        bar.expect(3)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("rich", [False, True])
def test_a_person_sees_how_far_it_is(rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: None)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.progress("overlap", 2) as bar:
        bar.step("one thing")
        bar.expect(3)
        bar.step("another thing")
    said = terminal.getvalue()
    assert "another thing" in said
    assert ("1/3" if rich else "2 of 3") in said
