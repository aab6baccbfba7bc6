"""The pytest plugin, as users have it: runs of pytest on small test files, and what they report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import cuplace.numpy  # noqa: F401, all floors: what a run loads is forgotten at its end
from cuplace.runtime.backends import cuda
from cuplace.runtime.config import config
from cuplace.runtime.platform import open_platform
from cuplace.testing.marker import Marker
from tests import fakegpus

ROOT = Path(__file__).resolve().parents[2]
HOME = os.environ.get("HOME", "")

Run = Callable[..., pytest.RunResult]

SHOW = """
import cuplace, pytest

def test_it(cuplace_platform):
    print("on", cuplace_platform.name, len(cuplace.devices()), cuplace_platform.devices[0] is cuplace.devices()[0])
"""

RACE = """
import numpy as np, pytest
from cuplace.errors import RaceError
from cuplace.runtime.task import ComputeTask

def work(reads, writes, scalars):
    writes[0][...] = 1

def race(platform):
    here, there = platform.devices[:2]
    buffer = platform.scheduler.allocate(here, (4,), np.dtype(np.int32))
    task = ComputeTask("fill", work, 1.0)
    platform.scheduler.submit(task, here.upload, (), (buffer,))
    buffer.writes = ()  # as if the scheduler did not know
    platform.scheduler.submit(task, here.download, (), (buffer,))
"""


@pytest.fixture
def run(pytester: pytest.Pytester, restored_config: None, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs pytest in this process on a test file that begins with the given text; its result."""
    monkeypatch.delenv("CUPLACE_REQUIRE", raising=False)
    monkeypatch.setenv("HOME", HOME)  # where compiled kernels are kept

    def run_it(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(text)
        return pytester.runpytest_inprocess("-p", "cuplace.testing.plugin", "-ra", "--strict-markers", *options)

    return run_it


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_gpus", lambda: cuda.Found(0, "there is no CUDA driver"))


def marked(arguments: str, body: str = "pass") -> str:
    """A test file of one marked test."""
    return f"""
import cuplace, pytest

@pytest.mark.cuplace({arguments})
def test_it(cuplace_platform):
    {body}
"""


def names(result: pytest.RunResult, word: str = "PASSED") -> list[str]:
    """What is in brackets behind the names of tests with this outcome, in `pytest -v`."""
    lines = [line.split()[0] for line in result.outlines if f" {word}" in line and "::" in line]
    return [line.partition("[")[2].rstrip("]") for line in lines]


# ---------------------------------------------------------------------- which platforms


def test_a_test_runs_on_all_platforms_that_are_here(run: Run, no_gpu: None) -> None:
    result = run(SHOW, "-s")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*on cpu 8 True*", "*on sim 8 True*"])


def test_cuda_is_among_them_where_a_gpu_answers(run: Run) -> None:
    if fakegpus.missing():
        pytest.skip(fakegpus.missing())
    result = run(SHOW, "-s")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*on cuda 8 True*"])
    fakegpus.assert_no_reports()


def test_a_marker_names_the_platforms(run: Run) -> None:
    result = run(marked("platform=('sim', 'cpu'), devices=3", "assert cuplace.device_count() == 3"), "-v")
    assert names(result) == ["sim", "cpu"]


def test_the_marker_alone_is_enough(run: Run) -> None:
    text = marked("platform='sim', devices=5", "assert repr(cuplace.devices()[4]) == 'SimDevice(id=4)'")
    run(text.replace("(cuplace_platform)", "()")).assert_outcomes(passed=1)


def test_a_test_adds_to_the_marker_of_its_module(run: Run) -> None:
    text = "import pytest\npytestmark = pytest.mark.cuplace(platform='sim', devices=2)\n"
    result = run(text + marked("seeds=[4, 7]", "assert cuplace.device_count() == 2"), "-v")
    assert names(result) == ["sim-seed4", "sim-seed7"]


def test_a_machine_brings_its_devices_and_its_time(run: Run) -> None:
    body = "assert cuplace_platform.backend.machine.name == 'two-nodes' and cuplace.device_count() == 16"
    result = run(marked("machine='two-nodes'", body), "-v")
    assert names(result) == ["sim"]


def test_cuda_without_a_gpu_is_skipped_with_the_reason(run: Run, no_gpu: None) -> None:
    result = run(marked("platform=('cuda', 'sim')"))
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * needs a GPU: there is no CUDA driver"])


def test_cuda_without_a_gpu_fails_where_it_is_required(run: Run, no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPLACE_REQUIRE", "nvrtc,cuda")
    result = run(marked("platform='cuda'"))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["CUPLACE_REQUIRE asks for a GPU: there is no CUDA driver"])


# ---------------------------------------------------------------------- options of the command line


def test_an_option_chooses_one_platform_and_leaves_out_the_others_visibly(run: Run) -> None:
    text = marked("platform=('cpu', 'sim')") + "\n@pytest.mark.cuplace(platform='cpu')\ndef test_other(): pass\n"
    text += "\ndef test_default(cuplace_platform): pass\n\ndef test_without_cuplace(): pass\n"
    result = run(text, "-v", "--cuplace-platform=sim")
    result.assert_outcomes(passed=3, deselected=2)
    assert names(result) == ["sim", "sim", ""]


@pytest.mark.parametrize(
    ("given", "seeds"), [("3", [0, 1, 2]), ("7-9", [7, 8, 9]), ("5-5", [5])]
)  # fmt: skip
def test_an_option_chooses_the_seeds(run: Run, given: str, seeds: list[int]) -> None:
    result = run(marked("platform=('sim', 'cpu'), seeds=range(20)"), "-v", f"--cuplace-seeds={given}")
    assert names(result) == [f"{name}-seed{seed}" for name in ("sim", "cpu") for seed in seeds]


@pytest.mark.parametrize("option", ["--cuplace-seeds=many", "--cuplace-seeds=3-", "--cuplace-platform=tpu"])
def test_a_wrong_option_is_one_clear_line(run: Run, option: str) -> None:
    result = run(SHOW, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*error: argument {option.partition('=')[0]}: invalid *"])


# ---------------------------------------------------------------------- what fails


ORDER = """
import numpy as np, pytest
from cuplace.runtime.task import ComputeTask

def order(platform):
    '''In which order the simulator runs work of eight devices that nothing orders.'''
    ran = []
    def start(device):
        task = ComputeTask("note", lambda reads, writes, scalars: ran.append(device.id), 1.0)
        buffer = platform.scheduler.allocate(device, (4,), np.dtype(np.int32))
        platform.scheduler.submit(task, device.upload, (), (buffer,))
        return buffer
    platform.scheduler.host_wait([start(device) for device in platform.devices])
    return ran
"""


def test_the_seed_that_fails_is_in_the_name_and_runs_again_by_it(run: Run) -> None:
    names_here: dict[str, Any] = {}
    exec(ORDER, names_here)
    last = [names_here["order"](open_platform("sim", 8, seed=seed))[-1] for seed in range(8)]
    failing = [f"sim-seed{seed}" for seed in range(8) if last[seed] == last[0]]
    assert 1 <= len(failing) < 8
    body = f"assert order(cuplace_platform)[-1] != {last[0]}"
    result = run(ORDER + marked("platform='sim', seeds=range(8)", body), "-v")
    result.assert_outcomes(passed=8 - len(failing), failed=len(failing))
    assert names(result, "FAILED") == failing
    (again,) = {line for line in result.outlines if line.startswith("again: pytest ") and line.endswith("-seed0]'")}
    assert "sim, 8 devices, seed 0, order checked" in result.outlines
    run(ORDER + marked("platform='sim', seeds=range(8)", body), again.split("'")[1]).assert_outcomes(failed=1)


@pytest.mark.parametrize("caught", [False, True])
def test_a_race_is_the_failure_of_its_test(run: Run, caught: bool) -> None:
    body = "\n\ndef test_it(cuplace_platform):\n    race(cuplace_platform)\n"
    if caught:
        body = (
            "\n\ndef test_it(cuplace_platform):\n    with pytest.raises(RaceError):\n        race(cuplace_platform)\n"
        )
    result = run(RACE + body, "--cuplace-platform=sim")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([
        "*Nothing orders two uses of the same memory.",
        "*first:   compute 'fill', on stream 'sim:0 upload', writes 16 bytes *",
        "*missing: *",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "races"),
    [("platform='sim', check_order=False", False), ("platform='cpu'", False),
     ("platform='cpu', check_order=True", True)],
)  # fmt: skip
def test_the_marker_says_whether_order_is_checked(run: Run, arguments: str, races: bool) -> None:
    text = f"{RACE}\n@pytest.mark.cuplace({arguments})\ndef test_it(cuplace_platform):\n    race(cuplace_platform)\n"
    run(text).assert_outcomes(failed=int(races), passed=int(not races))


def test_faults_hold_during_the_test_and_no_longer(run: Run) -> None:
    text = """
import numpy as np, cuplace, pytest

@pytest.mark.cuplace(faults=dict(oom_after=0))
def test_without_memory(cuplace_platform):
    with pytest.raises(MemoryError):
        cuplace.device_put(np.ones(4, "f"), cuplace.devices()[0])

@pytest.mark.cuplace(platform="sim")
def test_with_memory(cuplace_platform):
    cuplace.device_put(np.ones(4, "f"), cuplace.devices()[0])
"""
    result = run(text, "-v")
    result.assert_outcomes(passed=2)
    assert names(result) == ["sim", "sim"]


def test_what_a_test_changes_is_as_before_in_the_next_one(run: Run) -> None:
    text = """
import cuplace, pytest

@pytest.mark.cuplace(platform="sim")
@pytest.mark.parametrize("i", range(2))
def test_it(cuplace_platform, i):
    assert not cuplace.config.enable_x64
    assert cuplace.sharding.get_mesh().empty
    cuplace.config.update("enable_x64", True)
    cuplace.set_mesh(cuplace.make_mesh((8,), ("x",)))
"""
    run(text).assert_outcomes(passed=2)
    assert not config.enable_x64


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("platform='tpu'", "platform=...) takes names out of cuda, cpu, sim, got 'tpu'."),
        ("devices=0", "devices=...) takes a whole number of at least 1, got 0."),
        ("seeds=20", "seeds=...) takes whole numbers from 0, like range(20), got 20."),
        ("seeds=['a']", "seeds=...) takes whole numbers from 0, like range(20), got ['a']."),
        ("platform='cpu', machine='one-gpu'", "machine=...) takes the platform sim, and no other one, got 'one-gpu'."),
        ("faults='no_p2p'", "faults=...) takes a dict of arguments for cuplace.testing.faults, got 'no_p2p'."),
        ("color=1", "color=...) takes nothing: the arguments are platform, machine, devices, "),
        ("'sim'", "The marker cuplace takes keywords only, got ('sim',)."),
    ],
)  # fmt: skip
def test_a_marker_that_makes_no_sense_says_so(run: Run, arguments: str, said: str) -> None:
    result = run(marked(arguments))
    result.assert_outcomes(errors=1)
    assert said in result.stdout.str()
    assert "Traceback" not in result.stdout.str()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("machine='abacus'", "There is no machine 'abacus'."),
        ("faults=dict(oom_after=-1)", "faults(oom_after=...) takes a number of allocations, from 0"),
        ("platform='cpu', faults=dict(no_p2p=True)", "the platform cpu has none"),
    ],
)
def test_what_only_the_platform_can_tell_fails_the_test(run: Run, arguments: str, said: str) -> None:
    result = run(marked(arguments))
    result.assert_outcomes(errors=1)
    assert said in result.stdout.str()


# ---------------------------------------------------------------------- installed


def test_it_costs_nothing_where_cuplace_is_not_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
import sys

def test_it():
    assert "cuplace.testing.plugin" in sys.modules
    assert not {"numpy", "numba", "cupy", "cuplace.runtime", "cuplace.testing.injection"} & set(sys.modules)
""")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "cuplace.testing.plugin", "-p", "no:cacheprovider"],
        cwd=pytester.path, env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_program_without_pytest_is_not_touched() -> None:
    program = "import sys; sys.modules['pytest'] = None; import cuplace.testing; cuplace.testing.faults"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_plugin_is_installed_under_the_name_of_its_module() -> None:
    """So that `pytest_plugins` may name it where it is installed, too."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"cuplace.testing.plugin": "cuplace.testing.plugin"}


# ---------------------------------------------------------------------- what docs/testing.md says


def test_the_tests_of_the_page_pass_as_it_shows(run: Run, pytester: pytest.Pytester, no_gpu: None) -> None:
    text = (ROOT / "docs" / "testing.md").read_text()
    (code,) = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```console\n\$ pytest -v\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (pytester.path / "test_placement.py").write_text(code)
    result = pytester.runpytest_inprocess("-p", "cuplace.testing.plugin", "-v")
    ran = [line.partition(" [")[0].rstrip() for line in result.outlines if line.startswith("test_placement.py::")]
    assert ran == shown.splitlines()


def test_the_page_names_all_arguments_and_options(pytester: pytest.Pytester) -> None:
    section = (ROOT / "docs" / "testing.md").read_text().partition("## With pytest")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == {each.name for each in fields(Marker)}
    helps = pytester.runpytest_inprocess("-p", "cuplace.testing.plugin", "--help").stdout.str()
    assert set(re.findall(r"--cuplace-\w+", section)) == set(re.findall(r"--cuplace-\w+", helps))
