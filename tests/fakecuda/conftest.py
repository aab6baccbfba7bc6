"""The fixture of the fake's own tests: CuPy on eight fake GPUs, and nothing of the test before."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests import fakecuda
from tests.fakecuda.schedules import MODES

DEVICES = 8


def required() -> bool:
    """Whether a machine without what the fake needs fails its tests instead of skipping them."""
    return "fakecuda" in os.environ.get("CUPLACE_REQUIRE", "").split(",")


@pytest.fixture(scope="session")
def installed() -> None:
    reason = fakecuda.missing()
    if reason is not None:
        (pytest.fail if required() else pytest.skip)(reason)
    fakecuda.install(devices=DEVICES)


@pytest.fixture
def cp(installed: None) -> Iterator[ModuleType]:
    """CuPy, in eager mode; whatever the test leaves behind is forgotten."""
    import cupy

    fakecuda.reset()
    fakecuda.set_mode("eager")
    enabled = _disable_peer_access(cupy)
    cupy.cuda.Device(0).use()
    cupy.cuda.Stream.null.use()
    yield cupy
    fakecuda.set_mode("eager")
    fakecuda.reset()
    _enable_peer_access(cupy, enabled)


def _disable_peer_access(cupy: ModuleType) -> list[tuple[int, int]]:
    """Take back the peer access that tests of the library enabled in this process; the pairs that had it."""
    runtime, enabled = cupy.cuda.runtime, []
    for device, peer in itertools.permutations(range(DEVICES), 2):
        with cupy.cuda.Device(device), contextlib.suppress(runtime.CUDARuntimeError):
            runtime.deviceDisablePeerAccess(peer)
            enabled.append((device, peer))
    return enabled


def _enable_peer_access(cupy: ModuleType, pairs: list[tuple[int, int]]) -> None:
    runtime = cupy.cuda.runtime
    for device, peer in pairs:
        with cupy.cuda.Device(device), contextlib.suppress(runtime.CUDARuntimeError):  # enabled again by the test
            runtime.deviceEnablePeerAccess(peer)


@pytest.fixture(params=[*MODES, "random-2"])
def mode(request: pytest.FixtureRequest, cp: ModuleType) -> str:
    """Each mode, and random with two seeds."""
    name, _, seed = request.param.partition("-")
    fakecuda.set_mode(name, int(seed or 1))
    return str(request.param)


@pytest.fixture
def clean(cp: ModuleType) -> Iterator[None]:
    """The test is correct code: nothing may be reported."""
    yield
    fakecuda.set_mode("eager")
    assert fakecuda.take_reports() == []
