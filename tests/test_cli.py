"""The command line, as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cuplace
from cuplace.cli import main
from cuplace.testing.setting import fresh
from tests import fakegpus

ROOT = Path(__file__).resolve().parent.parent
SMALL = ("--size", "64", "--microbatches", "3")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUPLACE_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "cuplace", *arguments],
        capture_output=True, text=True, check=False, cwd=ROOT, env={"CUPLACE_PLATFORM": "cpu", **kept, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [(), ("info",)])
def test_info_tells_version_platform_and_devices(arguments: tuple[str, ...]) -> None:
    done = run(*arguments, CUPLACE_NUM_CPU_DEVICES="2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"cuplace   {cuplace.__version__} ")
    assert lines[1].startswith("platform  cpu: ")
    assert lines[2] == "devices   2: CpuDevice(id=0), CpuDevice(id=1)"
    assert not done.stderr


def test_info_follows_the_environment() -> None:
    done = run(CUPLACE_PLATFORM="sim", CUPLACE_NUM_DEVICES="3")
    assert "platform  sim: chosen by the option platform" in done.stdout
    assert "devices   3: SimDevice(id=0), SimDevice(id=1), SimDevice(id=2)" in done.stdout


@pytest.mark.parametrize("gpus", [1, 2])
def test_info_names_gpus_and_their_devices(
    gpus: int, fake_gpu_names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with fresh(lambda: fakegpus.open_fake(fakegpus.Case("eager", gpus=gpus))):
        assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("platform  cuda: ")
    assert lines[2].startswith("devices   8: CudaDevice(id=0), CudaDevice(id=1), ")
    shares = ["0, 1, 2, 3, 4, 5, 6, 7"] if gpus == 1 else ["0, 1, 2, 3", "4, 5, 6, 7"]
    assert lines[3:] == [
        f"gpu {i}     {fake_gpu_names[i]}, sm_90, 16.0 GiB: devices {share}" for i, share in enumerate(shares)
    ]


@pytest.fixture
def fake_gpu_names(restored_config: None) -> list[str]:
    reason = fakegpus.missing()
    if reason is not None:
        pytest.skip(reason)
    import cupy

    return [cupy.cuda.runtime.getDeviceProperties(i)["name"].decode() for i in range(2)]


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_the_demo_checks_its_result_and_draws_all_lanes(name: str) -> None:
    done = run("demo", "--platform", name, *SMALL)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("Checked   the 3 results equal NumPy's") for line in lines)
    assert sum(" computes " in line for line in lines) == 8
    assert sum(" receives " in line for line in lines) == 8
    assert any("3 of 3 microbatches done" in line for line in lines)
    assert any(line.startswith("Overlap ") for line in lines)
    assert max(len(line) for line in lines) <= 100


def test_the_demo_reaches_the_steps_that_the_order_allows() -> None:
    done = run("demo", "--platform", "sim", "--size", "8")
    # Four stages and eight microbatches, a step for each move and each computation: 8 steps for the first
    # microbatch to arrive, one more for each of the seven behind it.
    assert "these 128 pieces of work be done in 15 steps" in done.stdout


@pytest.mark.parametrize(("machine", "devices"), [("one-gpu", 1), ("hgx-h200", 8), ("two-nodes", 16)])
def test_the_demo_draws_virtual_time_on_a_machine(machine: str, devices: int) -> None:
    """The same picture at each run: nothing in it depends on this computer."""
    arguments = ("demo", "--platform", "sim", "--machine", machine, *SMALL)
    first, second = run(*arguments), run(*arguments)
    assert first.returncode == 0, first.stderr
    assert f"Timeline  in virtual time on {machine}, all was enqueued after" in first.stdout
    assert first.stdout.count(" computes ") == devices
    assert first.stdout == second.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("--devices", "1"),
        ("--devices", "3", "--size", "9"),
        ("--devices", "5", "--stages", "2"),
        ("--stages", "1"),
        ("--stages", "20"),
        ("--microbatches", "1"),
        ("--size", "2"),
    ],
)
def test_the_demo_runs_with_any_division(arguments: tuple[str, ...]) -> None:
    done = run("demo", *SMALL, *arguments)
    assert done.returncode == 0, done.stderr + done.stdout


def test_topology_shows_what_is_here_or_a_machine() -> None:
    here = run("topology", CUPLACE_PLATFORM="sim", CUPLACE_NUM_DEVICES="2")
    assert here.returncode == 0, here.stderr
    assert here.stdout.splitlines()[1].split() == ["sim:0", "X", "P2P", "0", "0"]
    machine = run("topology", "--machine", "pcie-8x", "--json")
    assert len(json.loads(machine.stdout)["pairs"]) == 56


def test_a_plan_is_shown_without_a_device(tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    arguments = ("plan", "bfloat16[4096,8192]", "x=4/x,-/0-3", "y=2,z=2/-,y+z/4-7", "--machine", "dgx-h100")
    done = run(*arguments, "--svg", str(picture), CUPLACE_PLATFORM="no such platform")
    assert done.returncode == 0, done.stderr
    assert "16 moves, 67108864 bytes, 0 aliased" in done.stdout
    assert "us on dgx-h100" in done.stdout
    assert picture.read_text().startswith("<svg ")
    told = json.loads(run(*arguments, "--json").stdout)
    assert (len(told["moves"]), told["machine"]) == (16, "dgx-h100")
    assert "host -> model:7  [7:8]  4 B  host" in run("plan", "float32[8]", "host", "x=8/x").stdout


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("demo", "--devices", "0"), 2, "argument --devices: '0' is not a whole number from 1 to 1024"),
        (("demo", "--size", "a lot"), 2, "argument --size: 'a lot' is not a whole number from 1 to 16384"),
        (("demo", "--microbatches", "-1"), 2, "argument --microbatches: "),
        (("demo", "--stages", "1.5"), 2, "argument --stages: '1.5' is not a whole number from 1 to 1000"),
        (("demo", "--size", "7"), 1, "--size 7 does not split evenly over the 2 devices of a stage"),
        (("demo", "--platform", "abacus"), 1, "abacus"),
        (("demo", "--platform", "sim", "--machine", "abacus"), 1, "There is no machine 'abacus'. The machines are"),
        (("demo", "--platform", "cpu", "--machine", "hgx-h200"), 1, "--machine hgx-h200 needs --platform sim"),
        (("topology", "--machine", "abacus"), 1, "There is no machine 'abacus'. The machines are"),
        (("topology", "abacus"), 2, "unrecognized arguments: abacus"),
        (("plan", "float32[8]", "x=2/x"), 2, "the following arguments are required: target"),
        (("plan", "float32", "x=2/x", "x=4/x"), 1, "the array 'float32' cannot be read; expected float32[4096,8192]"),
        (("plan", "float32[8]", "x=2/x/0-9", "x=4/x"), 1, "the devices '0-9' cannot be read; expected numbers up to 7"),
        (("plan", "float32[8]", "x=2/x", "x=3/x"), 1, "array axis 0 is partitioned 3 times"),
        (("plan", "float32[8]", "x=2/y", "x=2/x"), 1, "Resource axis: y of P('y',) is not found in mesh: ('x',)."),
        (("plan", "float32[8]", "x=2/x", "x=2/x", "--machine", "abacus"), 1, "There is no machine 'abacus'."),
        (("plan", "float32[8]", "x=2/x", "x=2/-", "--max-bytes", "16"), 1, "max_bytes=16 is too little, max_bytes=32"),
        (("plan", "float32[8]", "x=2/x", "x=2/-", "--max-bytes", "1 GB"), 2, "'1 GB' is no number of bytes, as"),
        (("plan", "float32[8]", "x=2/x", "x=2/x", "--svg", "/no/such/folder/a.svg"), 1, "cannot be written: No such"),
        (("demo", "--colour"), 2, "unrecognized arguments: --colour"),
        (("juggle",), 2, "invalid choice: 'juggle'"),
    ],
)
def test_a_wrong_option_is_one_clear_line(arguments: tuple[str, ...], status: int, said: str) -> None:
    done = run(*arguments)
    assert done.returncode == status
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout


def test_a_wrong_environment_is_one_clear_line() -> None:
    done = run(CUPLACE_NUM_CPU_DEVICES="many")
    assert done.returncode == 1
    assert "CUPLACE_NUM_CPU_DEVICES" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"CUPLACE_PLATFORM=cpu {sys.executable} -m cuplace demo --size 16 | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0
    assert not done.stderr
