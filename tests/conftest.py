"""What all tests share: the fixture `platform`, which runs a test on every platform at hand.

A test that takes `platform` gets it opened with eight devices and made the current one, in a fresh state;
when the test ends, the platform must still be healthy. A test marked `order` runs on many seeds. The cuda platform
runs on fake GPUs (`tests/fakegpus.py`) where the real CuPy and a C++ compiler are installed.

With `-m gpu`, and where GPUs answer, all is as on users' machines: the tests marked `gpu` and those of `GPU_TOO` run on
the cuda platform and on hardware alone (`tests/hardware.py`).
"""

from __future__ import annotations

import gc
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from cuplace.runtime.faults import NO_FAULTS, Faults
from cuplace.runtime.platform import Platform
from cuplace.testing import setting
from cuplace.testing.setting import Setting, fresh
from tests import fakegpus, hardware

pytest_plugins = ["cuplace.testing.plugin", "pytester"]

HERE = Path(__file__).parent
HYPOTHESIS = importlib.util.find_spec("hypothesis") is not None
NUM_DEVICES = 8
PAIRS = [(one, other) for one in range(NUM_DEVICES) for other in range(NUM_DEVICES)]
FAULTS = {
    None: NO_FAULTS,
    "no_p2p": Faults(no_p2p=True),
    "corrupt_pair": Faults(corrupt_pair=PAIRS),
    "slow_link": Faults(slow_link=dict.fromkeys(PAIRS[::3], 7.0)),
}
"""What every program survives; `--fault` lets it happen in all tests on sim and cuda."""

SEEDS = {"cpu": 1, "sim": 1, "cuda": 2}
ORDER_SEEDS = {"cpu": 4, "sim": 50, "cuda": len(fakegpus.CASES)}
DEEP_ORDER_SEEDS = {"cpu": 40, "sim": 500, "cuda": len(fakegpus.DEEP_CASES)}

GPU_SEEDS = {"one": (2,), "several": (5,), None: (2, 5)}
"""On how many fake GPUs a test marked `gpu` runs."""

GPU_TOO = ("test_page.py", "order", "transfer", "runtime", "array", "staging")
"""Tests beside this file whose runs on the cuda platform are among those marked `gpu`, unless they ask the fake."""

GPU_DEEP = ("numpy", "ops")
"""The same with `--deep`: they compile a thousand kernels."""


class Case(NamedTuple):
    """One way to run a test: a platform by name, and a seed.

    On sim the seed chooses the order of execution; on cpu seed 0 runs as users do, and the others delay what
    workers do at random; on cuda it is a number in `fakegpus.DEEP_CASES`, on hardware in `hardware.numbers()`.
    """

    name: str
    seed: int = 0

    @property
    def label(self) -> str:
        if self.name == "cuda" and hardware.chosen():
            return f"cuda-{'one' if self.seed == 0 else 'all'}"
        if self.name == "cuda":
            return f"cuda-{fakegpus.DEEP_CASES[self.seed].label}"
        return f"{self.name}-seed{self.seed}" if self.seed else self.name

    def open(self) -> Platform:
        if self.name == "cuda" and hardware.chosen():
            return hardware.open_gpus(NUM_DEVICES, hardware.numbers()[self.seed])
        if self.name == "cuda":
            return fakegpus.open_fake(fakegpus.DEEP_CASES[self.seed])
        # Every test on sim proves that what it does is ordered.
        return Setting(self.name, NUM_DEVICES, self.seed or None, check_order=self.name == "sim").open()


PLATFORMS = ("cpu", "sim", "cuda")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cuplace")
    group.addoption("--deep", action="store_true", help="run the long tests, and order tests on 500 seeds")
    group.addoption("--platform", choices=PLATFORMS, help="run tests of platforms on this one only")
    group.addoption(
        "--gpus", type=int, help="on fake CUDA, let the eight devices be partitions of so many GPUs (1, 2 or 8)"
    )
    group.addoption(
        "--fault", choices=[name for name in FAULTS if name], help="let this be wrong with the links of GPUs"
    )


def pytest_configure(config: pytest.Config) -> None:
    hardware.choose(config.getoption("markexpr"))
    if HYPOTHESIS:
        _set_hypothesis(config.getoption("--deep"))


def _set_hypothesis(deep: bool) -> None:
    import hypothesis

    hypothesis.settings.register_profile(
        "cuplace",
        deadline=None,
        derandomize=not deep,
        max_examples=1000 if deep else 50,
        print_blob=True,
        database=None,
        suppress_health_check=[
            hypothesis.HealthCheck.function_scoped_fixture,
            hypothesis.HealthCheck.too_slow,
        ],
    )
    hypothesis.settings.load_profile("cuplace")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without hypothesis, which the checks of GPUs do not need, tests of properties are left out."""
    return (not HYPOTHESIS and _needs_hypothesis(collection_path)) or None


@cache
def _needs_hypothesis(path: Path) -> bool:
    """Whether a file of tests imports hypothesis, itself or by what it shares with others."""
    if path.suffix != ".py" or path == Path(__file__) or not path.is_file():
        return False
    text = path.read_text()
    shared = re.findall(r"^from tests\.([\w.]+) import", text, re.MULTILINE)
    paths = [HERE.joinpath(*name.split(".")).with_suffix(".py") for name in shared]
    return "\nfrom hypothesis" in text or "\nimport hypothesis" in text or any(map(_needs_hypothesis, paths))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = any("platform" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "platform" not in metafunc.fixturenames or chosen:
        return
    gpu = metafunc.definition.get_closest_marker("gpu")
    cases = _cases(metafunc) if gpu is None else _gpu_cases(*gpu.args)
    metafunc.parametrize("platform", cases, ids=[case.label for case in cases], indirect=True)


def _cases(metafunc: pytest.Metafunc) -> list[Case]:
    deep = metafunc.config.getoption("--deep")
    only = metafunc.config.getoption("--platform")
    mark = metafunc.definition.get_closest_marker("order")
    ordered = mark is not None and not mark.kwargs.get("once")
    seeds = (DEEP_ORDER_SEEDS if deep else ORDER_SEEDS) if ordered else SEEDS
    if hardware.chosen():
        seeds = {"cpu": 0, "sim": 0, "cuda": len(hardware.numbers())}
    elif fakegpus.missing():
        seeds = {**seeds, "cuda": 0}
    gpus = metafunc.config.getoption("--gpus")
    found = [Case(name, seed) for name in PLATFORMS if only in (None, name) for seed in range(seeds[name])]
    if gpus is None:
        return found
    return [case for case in found if case.name != "cuda"] + [
        Case("cuda", seed) for seed, case in enumerate(fakegpus.CASES) if case.gpus == gpus and seeds["cuda"]
    ]


def _gpu_cases(gpus: str | None = None) -> list[Case]:
    """On ``one`` GPU, on ``several``, or on both."""
    if hardware.chosen():
        numbers = {"one": [0], "several": [1], None: range(len(hardware.numbers()))}[gpus]
        return [Case("cuda", number) for number in numbers]
    return [Case("cuda", seed) for seed in GPU_SEEDS[gpus]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what runs on GPUs, too; leave out, visibly, what was not asked for (`deep`)."""
    deep = config.getoption("--deep")
    for item in items:
        if _runs_on_gpus(item, GPU_TOO + (GPU_DEEP if deep else ())):
            item.add_marker("gpu")
    dropped = [] if deep else [item for item in items if item.get_closest_marker("deep")]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


@pytest.fixture(autouse=True, scope="module")
def _set_apart_what_is_loaded() -> None:
    """From garbage collections: memory that runs out makes a full one, and some tests collect at every call."""
    gc.collect()
    gc.freeze()


def _runs_on_gpus(item: pytest.Item, places: tuple[str, ...]) -> bool:
    if not isinstance(item, pytest.Function) or not item.path.is_relative_to(HERE) or hasattr(item.module, "fakecuda"):
        return False
    case = item.callspec.params.get("platform") if hasattr(item, "callspec") else None
    return isinstance(case, Case) and case.name == "cuda" and item.path.relative_to(HERE).parts[0] in places


@pytest.fixture
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    """A platform of eight devices, made the current one; checked for health when the test ends."""
    case: Case = request.param if isinstance(request.param, Case) else Case(request.param)
    request.node.user_properties.append(("platform", case.name))
    if request.node.get_closest_marker("gpu"):
        _need_gpus(case)
    with fresh(case.open) as opened:
        if case.name != "cpu":
            sound = request.node.get_closest_marker("sound_links") is not None
            opened.set_faults(FAULTS[None if sound else request.config.getoption("--fault")])
        with setting.restored_options():
            yield opened
            held = opened.scheduler.release_latches()
        assert not held, f"the test left {held} latches held"
        _assert_healthy(opened)
    if case.name == "cuda" and not hardware.chosen():
        fakegpus.assert_no_reports()


@pytest.fixture
def restored_config() -> Iterator[None]:
    """The options and this thread's context are afterwards what they were before; for tests without ``platform``."""
    with setting.restored_options():
        yield


def _need_gpus(case: Case) -> None:
    if hardware.chosen() and case.seed >= len(hardware.numbers()):
        pytest.skip("this machine has one GPU")
    if not hardware.chosen() and fakegpus.missing():
        pytest.skip(fakegpus.missing())


def _assert_healthy(opened: Platform) -> None:
    """Every device still takes and gives back data."""
    values = np.arange(3, dtype=np.int32)
    for device in opened.devices:
        buffer = opened.scheduler.allocate(device, values.shape, values.dtype)
        opened.scheduler.upload(buffer, values)
        np.testing.assert_array_equal(opened.scheduler.download(buffer), values)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())]
    counts = Counter(
        dict(report.user_properties).get("platform", "no platform") for report in reports if report.when == "call"
    )
    if counts:
        terminalreporter.section("tests per platform")
        terminalreporter.write_line(", ".join(f"{name}: {counts[name]}" for name in sorted(counts)))
