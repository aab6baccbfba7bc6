"""`python -m bench`: options, what they come to, and what is said of wrong ones; before anything is measured."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import child, command, environment, gpu_check, settings
from bench.harness import Bench
from cuplace.cli import main as cuplace_main
from cuplace.runtime.config import config
from tests.bench import probe

ROOT = Path(__file__).resolve().parents[2]

HEAD = """\
probe: a probe
Platform  sim, in virtual time on hgx-h200; 8 devices; 3 rounds; medians [lowest..highest]
"""

BODY = """\

A table
  what              took  share
  one      2 ms [1..4.5]    50%   3
  another         100 ms      -  12

What the machine does by itself
  memcpy  5 GB/s [4..6]
  link    -

Budgets
  near enough      1.01x  at most    1.03x  PASS
  far               1.5x  at least    1.6x  MISS
  unknown              -  at most      95%  -

a note
"""


@pytest.fixture(autouse=True)
def _probe(monkeypatch: pytest.MonkeyPatch, restored_config: None) -> Iterator[None]:
    """There is one benchmark more, whose default platform is the processor."""
    monkeypatch.setitem(command.NAMES, "probe", "tells what it was given")
    monkeypatch.setitem(sys.modules, "bench.probe", probe)
    config.update("platform", "cpu")
    probe.given.clear()
    yield
    probe.given.clear()


def given(*arguments: str) -> Bench:
    """What the probe is given with these options."""
    assert command.main(["probe", *arguments]) == 0
    (bench,) = probe.given
    return bench


# ---------------------------------------------------------------------- what options come to


def test_without_options_the_configured_platform_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    bench = given()
    assert (bench.name, bench.rounds, bench.quick, bench.timed) == ("cpu", 7, False, True)
    assert (len(bench.platform.devices), bench.machine, bench.options.size) == (8, None, 2)
    assert not capsys.readouterr().err


def test_a_machine_is_simulated_with_as_many_devices_as_it_has() -> None:
    bench = given("--machine", "two-nodes")
    assert (bench.name, bench.machine.name, len(bench.platform.devices), bench.rounds) == ("sim", "two-nodes", 16, 1)
    assert bench.peers == ()


def test_a_machine_with_fewer_gpus_than_devices_are_needed_has_partitions() -> None:
    bench = given("--machine", "one-gpu")
    assert [(device.gpu, device.partition) for device in bench.platform.devices] == [(0, 0), (0, 1)]


def test_a_machine_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text("gpus = 3\n[gpu]\ntflops = 1.0\nmemory_gb_s = 10\n[host]\nup_gb_s = 1\ndown_gb_s = 1\n")
    bench = given("--machine", str(file))
    assert (bench.machine.name, len(bench.platform.devices)) == ("small", 3)


def test_options_are_heeded() -> None:
    bench = given("--platform", "sim", "--devices", "5", "--rounds", "2", "--quick", "--size", "7")
    assert (bench.name, len(bench.platform.devices), bench.rounds, bench.quick) == ("sim", 5, 2, True)
    assert bench.options.size == 7


def test_quick_measures_little() -> None:
    assert given("--quick").rounds == settings.QUICK_ROUNDS


def test_peers_are_those_that_are_installed_unless_some_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jax" else find(name))
    assert given("--rounds", "1").peers == ("numpy",)
    assert "jax is left out: it is not installed (pip install jax)\n" in capsys.readouterr().out
    probe.given.clear()
    assert given("--peer", "none").peers == ()
    assert "left out" not in capsys.readouterr().out


# ---------------------------------------------------------------------- what is told


def test_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    given("--machine", "hgx-h200", "--rounds", "3")
    said = capsys.readouterr()
    head, machine, software, body = said.out[: len(HEAD)], *said.out[len(HEAD) :].split("\n", 2)
    assert (head, body) == (HEAD, BODY)
    assert machine.startswith("Machine   ")
    assert software.startswith("Software  cuplace ")
    assert not said.err


def test_the_json_and_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, picture = tmp_path / "a.json", tmp_path / "a.svg"
    given("--json", str(figures), "--plot", str(picture))
    found = json.loads(figures.read_text())
    assert found["tables"] == [{
        "title": "A table",
        "units": {"name": "", "took": "s", "share": "share", "count": ""},
        "rows": [
            {"name": "one", "took": {"median": 0.002, "low": 0.001, "high": 0.0045}, "share": 0.5, "count": 3},
            {"name": "another", "took": {"median": 0.1, "low": 0.1, "high": 0.1}, "share": None, "count": 12,
             "beside": {"x": 1}},
        ],
    }]  # fmt: skip
    assert found["limits"][0] == {"name": "memcpy", "unit": "B/s", "value": {"median": 5e9, "low": 4e9, "high": 6e9}}
    assert [budget["met"] for budget in found["budgets"]] == [True, False, None]
    assert found["notes"] == ["a note"]
    about = {key: found[key] for key in ("benchmark", "title", "platform", "machine", "devices", "timed", "rounds")}
    assert about == {
        "benchmark": "probe", "title": "a probe", "platform": "cpu", "machine": None, "devices": 8, "timed": True,
        "rounds": 7,
    }  # fmt: skip
    assert picture.read_text().startswith("<svg ")
    assert "A table" in capsys.readouterr().out


def test_json_may_take_the_place_of_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    given("--json", "-", "--peer", "none")
    assert json.loads(capsys.readouterr().out)["benchmark"] == "probe"


def test_the_environment_tells_versions_and_hardware_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """No name of a computer or of a person is in it, and no path."""
    given("--json", "-", "--peer", "none")
    found = json.loads(capsys.readouterr().out)["environment"]
    assert set(found) == {"cuplace", "python", "numpy", "blas", "system", "processor", "cores", "busy"}
    assert found["processor"] == environment.processor()
    assert not any(os.sep in str(value) for value in found.values())


@pytest.mark.parametrize(("share", "warned"), [(None, False), (0.1, False), (0.7, True)])
def test_a_busy_machine_is_told(
    share: float | None, warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment.Others, "share", lambda self: share)
    given("--peer", "none")
    assert ("Others kept 70% of the processors busy meanwhile" in capsys.readouterr().out) == warned
    command.main(["probe", "--platform", "sim"])
    assert "busy" not in capsys.readouterr().out  # virtual time does not feel it


def test_others_do_what_is_neither_idle_nor_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([(100, 50, 1000), (140, 60, 1100), (140, 60, 1000), (100, 51, 1100), None])
    monkeypatch.setattr(environment, "_ticks", lambda: next(ticks))
    others = environment.Others()
    assert others.share() == 0.3
    assert others.share() is None  # no tick has passed
    assert others.share() == 0.0  # clocks that are read one after the other
    assert others.share() is None
    monkeypatch.undo()
    found = environment._ticks()
    assert found is None or 0 < found[0] < found[2]


def test_all_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    said = capsys.readouterr().out
    for name, line in command.NAMES.items():
        assert f"  {name:10} {line}\n" in said


def test_the_page_names_all_benchmarks_and_options() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    for name in command.NAMES:
        assert name == "probe" or f"| `{name}` | " in page
    options = command._parser("probe", probe.BENCHMARK, "").format_help()
    for option in set(re.findall(r"--[a-z]+", options)) - {"--help", "--size", "--fails"}:
        assert f"`{option}" in page, option


# ---------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["juggle"], "there is no benchmark 'juggle'; the benchmarks are overlap, transfer, "),
        (["--quick"], "unrecognized arguments: --quick"),
        (["probe", "--colour"], "unrecognized arguments: --colour"),
        (["probe", "--platform", "abacus"], "there is no platform 'abacus'; the platforms are cpu, sim, cuda"),
        (["reshard", "--platform", "cpu"], "reshard runs on sim, not on cpu"),
        (["dispatch", "--platform", "cuda"], "dispatch runs on cpu, not on cuda"),
        (["probe", "--machine", "abacus"], "There is no machine 'abacus'. The machines are "),
        (["probe", "--machine", "no/such.toml"], "no/such.toml cannot be read: No such file or directory."),
        (["probe", "--platform", "cpu", "--machine", "hgx-h200"], "--machine hgx-h200 needs --platform sim"),
        (["reshard", "--machine", "one-gpu"], "--machine one-gpu has one GPU, and nothing moves between devices"),
        (["reshard", "--only", "nothing", "--machine", "hgx-h200"], "no case contains 'nothing'"),
        (["dispatch", "--only", "nothing"], "no row contains 'nothing'"),
        (["dispatch", "--devices", "4"], "unrecognized arguments: --devices 4"),
        (["dispatch", "--plot", "a.svg"], "unrecognized arguments: --plot a.svg"),
        (["probe", "--devices", "1"], "probe needs at least 2 devices, --devices is 1"),
        (["probe", "--devices", "many"], "argument --devices: 'many' is not a whole number from 1 to 1024"),
        (["probe", "--rounds", "0"], "argument --rounds: '0' is not a whole number from 1 to 1000"),
        (["probe", "--size", "9"], "argument --size: '9' is not a whole number from 1 to 8"),
        (["probe", "--peer", "torch"], "--peer torch: probe has the peers jax, numpy, cupy"),
        (["probe", "--peer", "numpy,cupy"], "--peer cupy: it needs --platform cuda"),
        (["probe", "--peer", "numpy", "--platform", "sim"], "--peer numpy: only cuplace runs in virtual time"),
        (["probe", "--plot", "no/such/folder/a.svg"], "--plot no/such/folder/a.svg: there is no folder no/such/folder"),
        (["probe", "--plot", "a.png"], "--plot a.png: the name of the picture must end in .svg"),
        (["probe", "--json", "no/such/folder/a"], "--json no/such/folder/a: there is no folder no/such/folder"),
        (["probe", "--json", str(ROOT)], f"--json {ROOT} is a folder"),
        (["probe", "--platform", "cpu", "--fake"], "--fake needs --platform cuda"),
    ],
)
def test_a_wrong_option_is_one_clear_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    found = capsys.readouterr()
    assert caught.value.code == 2
    assert said in found.err
    assert len(found.err.splitlines()) == 1
    assert not found.out
    assert not probe.given


def absent(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in names else find(name))


@pytest.mark.parametrize(
    ("arguments", "missing", "said"),
    [
        (["--peer", "jax"], ("jax",), "--peer jax: it is not installed (pip install jax)"),
        (["--fake"], ("tests",), "--fake needs a checkout of the repository, whose tests hold the fake GPUs"),
        (["--fake"], ("tests.fakecuda",), "--fake needs a checkout of the repository, whose tests hold the fake GPUs"),
    ],
)
def test_what_is_not_installed_is_one_clear_line(
    arguments: list[str], missing: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    absent(monkeypatch, *missing)
    with pytest.raises(SystemExit) as caught:
        command.main(["probe", *arguments])
    assert (caught.value.code, capsys.readouterr().err) == (
        2, f"python -m bench probe: {said} (see python -m bench probe --help)\n"
    )  # fmt: skip


def test_an_absent_gpu_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(settings, "_no_gpus", lambda: "there is no CUDA driver")
    with pytest.raises(SystemExit) as caught:
        command.main(["probe", "--platform", "cuda"])
    assert caught.value.code == 2
    assert "--platform cuda: there is no CUDA driver" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("wrong", 1, "python -m bench probe: 2 values are wrong\n"),
        ("interrupt", 130, "\npython -m bench probe: interrupted\n"),
    ],
)
def test_a_benchmark_that_fails(how: str, status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["probe", "--fails", how]) == status
    assert capsys.readouterr() == ("", said)


# ---------------------------------------------------------------------- ways to start it


def test_gpu_check_takes_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(gpu_check, "main", lambda arguments: asked.append(arguments) or 3)
    assert command.main(["--gpu-check", "--minutes", "2"]) == 3
    assert asked == [["--minutes", "2"]]


def test_gpu_check_needs_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(child, "top", lambda: tmp_path)
    assert command.main(["--gpu-check"]) == 2
    assert capsys.readouterr().err == (
        "python -m bench: --gpu-check runs the tests, so it needs a checkout of the repository\n"
    )


def test_cuplace_bench_is_the_same_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cuplace_main(["bench", "overlap", "--devices", "1"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "python -m cuplace bench overlap: overlap needs at least 2 devices, --devices is 1 "
        "(see python -m cuplace bench overlap --help)\n"
    )


def test_a_reader_that_leaves_is_no_error() -> None:
    program = f"{sys.executable} -m bench reshard --quick --only reversed | head -n 1"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout == "reshard: executed on the simulator, beside the least that the bytes need\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_sides_are_measured_in_processes_of_their_own(tmp_path: Path) -> None:
    """From any folder, as a user who installed it would."""
    arguments = ["transfer", "--quick", "--rounds", "1", "--peer", "numpy", "--only", "NumPy to 8", "--json", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "cuplace", "bench", *arguments], capture_output=True, text=True, check=False,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ((row,),) = [table["rows"] for table in found["tables"]]
    assert (row["label"], row["against"], row["met"]) == ("32 KiB NumPy to 8 shards: done", "numpy", None)
    assert row["value"] == pytest.approx(row["ours"]["median"] / row["theirs"]["median"])
    assert [limit["unit"] for limit in found["limits"]] == ["B/s", "B/s", "flop/s", "flop/s"]
    assert not done.stderr
