"""Platforms: which devices there are, by which names, and what devices say of themselves."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cuplace.errors import AbsentDeviceError, AbsentPlatformError, NoGpuError, UnknownPlatformError
from cuplace.runtime import platform as platform_module
from cuplace.runtime.backends import cuda
from cuplace.runtime.config import OPTIONS, config
from cuplace.runtime.platform import (
    Platform,
    activated,
    current,
    default_backend,
    device_by_id,
    device_count,
    devices,
    local_device_count,
    local_devices,
    open_platform,
    process_count,
    process_index,
)
from cuplace.runtime.submission import Submission
from tests.runtime.streams import ADD_ONE, compute, in_threads, move, put, read, used

CLASS_NAMES = {"cpu": "CpuDevice", "sim": "SimDevice", "gpu": "CudaDevice"}


def test_the_devices_of_the_platform(platform: Platform) -> None:
    assert devices() == list(platform.devices)
    assert devices(platform.name) == devices()
    assert local_devices() == devices()
    assert device_count() == local_device_count() == device_count(platform.name) == 8
    assert default_backend() == platform.backend.device_platform
    assert (process_index(), process_count()) == (0, 1)
    assert current() is platform
    devices().clear()
    assert len(devices()) == 8


def test_a_device_says_who_it_is(platform: Platform) -> None:
    partitions = 8 // len({device.gpu for device in platform.devices})
    for i, device in enumerate(platform.devices):
        name = platform.backend.device_platform
        assert repr(device) == f"{CLASS_NAMES[name]}(id={i})"
        assert str(device) == f"{name}:{i}"
        assert (device.id, device.platform, device.device_kind) == (i, name, platform.backend.device_kind)
        assert (device.process_index, device.local_hardware_id) == (0, i)
        assert (device.gpu, device.partition) == divmod(i, partitions)
        assert device.memory_kinds == ("device", "pinned_host", "unpinned_host")
        assert device.default_memory_kind == "device"


def test_devices_are_equal_by_identity_only(platform: Platform) -> None:
    other = open_platform(platform.name, 2)
    try:
        assert platform.devices[0] != other.devices[0]
        assert len({*platform.devices, *other.devices}) == 10
        assert copy.copy(platform.devices[0]) is platform.devices[0]
        assert copy.deepcopy([platform.devices[1]])[0] is platform.devices[1]
        with pytest.raises(TypeError):
            sorted(platform.devices)
        with pytest.raises(AttributeError):
            platform.devices[0].note = "nothing may be attached"
    finally:
        other.close()


def test_devices_pickle_where_they_exist(platform: Platform) -> None:
    data = pickle.dumps(platform.devices[5])
    assert pickle.loads(data) is platform.devices[5]
    other = open_platform("cpu", 2)
    try:
        with activated(other), pytest.raises(AbsentDeviceError, match=f"There is no device {platform.devices[5]} here"):
            pickle.loads(data)
    finally:
        other.close()
    name = platform.backend.device_platform
    assert device_by_id(name, 0) is platform.devices[0]
    with pytest.raises(RuntimeError, match="set num_devices before first use"):
        device_by_id("sim" if name == "gpu" else "gpu", 0)


@pytest.mark.parametrize("name", ["gpu", "cuda"])
def test_a_platform_that_is_absent(platform: Platform, name: str) -> None:
    if platform.name == "cuda":
        name = {"gpu": "cpu", "cuda": "sim"}[name]
    with pytest.raises(AbsentPlatformError) as caught:
        devices(name)
    first, help_text = str(caught.value).splitlines()
    assert "CUPLACE_PLATFORM" in help_text
    assert first == (
        f"Unknown backend: '{name}' requested, but no platforms that are instances of {name} are present. "
        f"Platforms present are: {platform.backend.device_platform}"
    )
    assert isinstance(caught.value, RuntimeError)
    with pytest.raises(AbsentPlatformError):
        device_count(name)


@pytest.mark.parametrize("name", ["bogus", "", "CPU", 3])
def test_a_platform_that_does_not_exist(platform: Platform, name: Any) -> None:
    with pytest.raises(UnknownPlatformError) as caught:
        devices(name)
    available = platform.backend.device_platform
    first, help_text = str(caught.value).splitlines()
    assert first == f"Unknown backend {name}. Available backends are ['{available}']"
    assert "one of cuda, cpu and sim" in help_text
    assert isinstance(caught.value, RuntimeError)


def test_opening_what_does_not_exist() -> None:
    with pytest.raises(UnknownPlatformError, match="Unknown backend bogus"):
        open_platform("bogus")


def test_the_number_of_devices() -> None:
    assert len(open_platform("cpu").devices) == 1
    assert len(open_platform("sim").devices) == 8
    assert len(open_platform("sim", 3).devices) == 3
    assert repr(open_platform("cpu", 2)) == "Platform('cpu', 2 devices)"


def test_platforms_side_by_side(platform: Platform) -> None:
    """Arrays of one platform go on while another is current."""
    mine = put(platform.devices[0], np.arange(4))
    other = open_platform("sim", 2, seed=3)
    try:
        with activated(other):
            assert devices() == list(other.devices)
            theirs = compute(ADD_ONE, put(other.devices[1], np.arange(4)))
            np.testing.assert_array_equal(read(compute(ADD_ONE, mine)), np.arange(1, 5))
            np.testing.assert_array_equal(read(theirs), np.arange(1, 5))
        assert current() is platform
    finally:
        other.close()


@pytest.mark.order(once=True)
@pytest.mark.parametrize("platform", ["cpu", "sim"], indirect=True)
def test_a_closed_platform_gives_its_memory_back(platform: Platform) -> None:
    other = open_platform(platform.name, 2)
    big = np.zeros(1 << 20)
    moved = move(put(other.devices[0], big), other.devices[1])
    read(moved)
    del moved
    memory = [weakref.ref(block) for block in _kept(other)]
    assert memory
    assert other.scheduler.graveyard
    other.close()
    assert not other.scheduler.graveyard
    gc.collect()
    assert [block() for block in memory] == [None] * len(memory)


@pytest.mark.order(once=True)
def test_what_was_not_waited_for_is_forgotten_when_a_platform_is_closed() -> None:
    """Caches may keep a scheduler for long after its platform was closed; what that ran is not kept with it."""
    other = open_platform("sim", 2, eagerness=0.0)
    one, two = other.devices
    source = put(one, np.arange(8))
    latch = other.scheduler.hold(one.transfer_to(two))
    for _ in range(20):
        move(source, two)
    assert latch.held
    del source, latch
    other.scheduler.park()
    assert used(other)["bytes_parked"]
    other.close()
    assert used(other) == {"bytes_in_use": 0, "bytes_parked": 0}
    gc.collect()
    records = [found for found in gc.get_objects() if isinstance(found, Submission)]
    assert sum(record.stream.device in other.devices for record in records) < 5  # the last of each stream


def _kept(platform: Platform) -> list[Any]:
    """The blocks that a platform's pools hold unused."""
    found = []
    for device in platform.devices:
        for arena in device.memory.arenas.values():
            pool: Any = arena.pool
            if platform.name == "cpu":
                found += [block.memory.base for blocks in pool._unused.values() for block in blocks]
            else:
                found += [free.segment for free in pool._free]
    return found


def test_a_forgotten_platform_goes_away() -> None:
    platform = open_platform("sim", 2)
    read(move(compute(ADD_ONE, put(platform.devices[0], np.arange(3))), platform.devices[1]))
    gone = weakref.ref(platform), weakref.ref(platform.devices[0])
    del platform
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


# ---------------------------------------------------------------------- first use


@pytest.fixture
def unopened(restored_config: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No platform is current and no option set, as in a new process."""
    monkeypatch.setattr(platform_module, "_current", None)
    monkeypatch.setattr(cuda, "find_gpus", lambda: cuda.Found(0, "no GPU in this test"))
    for name in OPTIONS:
        monkeypatch.delenv("CUPLACE_" + name.upper(), raising=False)
        config.__dict__.pop(name, None)
    config.thaw()
    yield
    opened: Platform | None = platform_module._current
    if opened is not None:
        opened.close()


def test_without_options_it_is_the_cpu(unopened: None) -> None:
    assert (default_backend(), device_count()) == ("cpu", 1)
    assert current().reason


@pytest.mark.parametrize("surprising", [False, True])
def test_why_it_is_the_cpu_is_told_once_where_a_gpu_was_to_be_expected(
    unopened: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], surprising: bool
) -> None:
    monkeypatch.setattr(cuda, "find_gpus", lambda: cuda.Found(0, "the driver sleeps", surprising))
    assert default_backend() == default_backend() == "cpu"
    assert current().reason == "the driver sleeps"
    told = capsys.readouterr().err.splitlines()
    line = "cuplace uses the cpu platform: the driver sleeps. (CUPLACE_PLATFORM=cpu chooses it without this line.)"
    assert told == ([line] if surprising else [])


def test_cuda_without_a_gpu_says_why(unopened: None, monkeypatch: pytest.MonkeyPatch) -> None:
    config.update("platform", "cuda")
    with pytest.raises(NoGpuError, match=r"cannot be opened: no GPU in this test\.\nWrite CUPLACE_PLATFORM=cpu"):
        devices()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"num_cpu_devices": 3}, ("cpu", 3)),
        ({"num_devices": 4}, ("cpu", 4)),
        ({"num_devices": 4, "num_cpu_devices": 3}, ("cpu", 3)),
        ({"platform": "cpu", "num_devices": 2}, ("cpu", 2)),
        ({"platform": "sim"}, ("sim", 8)),
        ({"platform": "sim", "num_devices": 2, "num_cpu_devices": 3}, ("sim", 2)),
        ({"platform": "sim", "sim_machine": "two-nodes"}, ("sim", 16)),
    ],
    ids=str,
)
def test_options_choose(unopened: None, options: dict[str, Any], expected: tuple[str, int]) -> None:
    for name, value in options.items():
        config.update(name, value)
    assert (default_backend(), device_count()) == expected
    assert current().reason


def test_an_unknown_platform_may_be_corrected(unopened: None) -> None:
    config.update("platform", "bogus")
    with pytest.raises(UnknownPlatformError):
        devices()
    config.update("platform", "sim")
    assert default_backend() == "sim"


def test_threads_that_come_first_together_get_one_platform(unopened: None) -> None:
    config.update("num_cpu_devices", 2)
    found = in_threads([current] * 8)
    assert len(set(found)) == 1


def test_the_workers_of_a_closed_platform_end() -> None:
    before = threading.active_count()
    platform = open_platform("cpu", 2)
    read(compute(ADD_ONE, put(platform.devices[0], np.arange(4))))
    platform.close()
    assert threading.active_count() == before
