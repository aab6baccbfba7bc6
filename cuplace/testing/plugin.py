"""The pytest plugin: each marked test runs on a platform of its own, and a race is its failure.

It is there where cuplace and pytest are installed. A test asks for a platform by the fixture ``cuplace_platform``, by
the marker ``cuplace``, or by both::

    @pytest.mark.cuplace(platform="sim", devices=8, seeds=range(20), faults=dict(no_p2p=True))
    def test_step(cuplace_platform):
        devices = cuplace_platform.devices

The arguments of the marker are those of `cuplace.testing.marker.Marker`; markers of a class and of a module add what a
test does not say itself. cuplace is loaded when the first such test is collected.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cuplace.runtime.platform import Platform
    from cuplace.testing.setting import Setting

FIXTURE = "cuplace_platform"
PLATFORMS = ("cpu", "sim", "cuda")

_platform = pytest.StashKey["Platform"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two options: on which platform, and with which seeds."""
    group = parser.getgroup("cuplace")
    group.addoption("--cuplace-platform", choices=PLATFORMS, help="run tests that use cuplace on this platform only")
    group.addoption(
        "--cuplace-seeds",
        type=seeds_of,
        metavar="N|FIRST-LAST",
        help="run tests that use cuplace with seeds 0 to N - 1, or FIRST to LAST, instead of their own",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker is a known one."""
    config.addinivalue_line(
        "markers",
        "cuplace(platform, machine, devices, seeds, faults, check_order): run the test on its own platform",
    )


def seeds_of(text: str) -> range:
    """The seeds that an option names: ``20`` are 0 to 19, ``7-9`` are 7 to 9."""
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise ValueError(text)
    return range(int(first), int(last) + 1) if dash else range(int(first))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test runs once in each of its settings."""
    markers = list(metafunc.definition.iter_markers("cuplace"))
    if FIXTURE not in metafunc.fixturenames:
        if not markers:
            return
        metafunc.fixturenames.append(FIXTURE)
    option = metafunc.config.getoption
    settings = _settings(markers, option("--cuplace-platform"), option("--cuplace-seeds"))
    ids = [setting.label for setting in settings]
    metafunc.parametrize(FIXTURE, settings, ids=ids, indirect=True)


def _settings(markers: list[pytest.Mark], only: str | None, seeds: range | None) -> list[Setting]:
    from cuplace.errors import MarkerError
    from cuplace.testing.marker import Marker

    arguments: dict[str, Any] = {}
    for marker in reversed(markers):  # the closest one comes first
        if marker.args:
            pytest.fail(f"The marker cuplace takes keywords only, got {marker.args!r}.", pytrace=False)
        arguments.update(marker.kwargs)
    try:
        return Marker.of(arguments).settings((lambda: [only]) if only else _at_hand, seeds)
    except MarkerError as error:
        pytest.fail(str(error), pytrace=False)


def _at_hand() -> list[str]:
    from cuplace.runtime.backends.cuda import find_gpus

    return ["cpu", "sim", *(["cuda"] if find_gpus().gpus else [])]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A marker alone is enough to get a platform. What is for other platforms than the one that was asked for is left
    out, visibly."""
    only = config.getoption("--cuplace-platform")
    dropped = []
    for item in items:
        setting = _setting_of(item)
        if setting is None:
            continue
        if FIXTURE not in item.fixturenames:  # type: ignore[attr-defined]
            item.fixturenames.insert(0, FIXTURE)  # type: ignore[attr-defined]
        if only not in (None, setting.platform):
            dropped.append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


def _setting_of(item: pytest.Item) -> Setting | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get(FIXTURE)


@pytest.fixture
def cuplace_platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    """A fresh cuplace platform, the current one during the test; it has ``name`` and ``devices``."""
    setting: Setting = request.param
    if setting.platform == "cuda":
        _need_gpu()
    with setting.active() as platform:
        request.node.stash[_platform] = platform
        request.node.user_properties.append(("cuplace", str(setting)))
        yield platform


def _need_gpu() -> None:
    from cuplace.runtime.backends.cuda import find_gpus

    found = find_gpus()
    if found.gpus:
        return
    if "cuda" in os.environ.get("CUPLACE_REQUIRE", "").split(","):
        pytest.fail(f"CUPLACE_REQUIRE asks for a GPU: {found.reason}", pytrace=False)
    pytest.skip(f"needs a GPU: {found.reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A race fails the test, also where the test has caught its error."""
    result = yield
    platform = item.stash.get(_platform, None)
    if platform is not None and platform.races:
        pytest.fail(platform.races[0], pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure tells on what the test ran, and how to run it like that again."""
    report = yield
    setting = dict(item.user_properties).get("cuplace")
    if report.failed and setting is not None:
        report.sections.append(("cuplace", f"{setting}\nagain: pytest '{item.nodeid}'"))
    return report
