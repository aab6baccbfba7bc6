"""Settings and markers: which platforms, devices and seeds a test gets, and what is left behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuplace
from cuplace.errors import MachineError, MarkerError
from cuplace.runtime import platform as current_platform
from cuplace.runtime.config import config
from cuplace.testing.marker import Marker
from cuplace.testing.setting import Setting, fresh


def here() -> tuple[str, ...]:
    return "cpu", "cuda"


@pytest.mark.parametrize(
    ("arguments", "labels"),
    [
        ({}, ["cpu", "cuda"]),
        ({"platform": "sim"}, ["sim"]),
        ({"platform": ["sim", "cpu"], "seeds": [3, 1]}, ["sim-seed3", "sim-seed1", "cpu-seed3", "cpu-seed1"]),
        ({"platform": ("cuda", "cpu"), "seeds": range(2)}, ["cuda", "cpu-seed0", "cpu-seed1"]),
        ({"faults": {"no_p2p": True}}, ["sim"]),
        ({"machine": "one-gpu"}, ["sim"]),
    ],
)
def test_a_marker_is_a_list_of_settings(arguments: dict[str, Any], labels: list[str]) -> None:
    assert [setting.label for setting in Marker.of(arguments).settings(here)] == labels


def test_seeds_from_elsewhere_take_the_place_of_its_own() -> None:
    marker = Marker.of({"platform": "sim", "seeds": range(20)})
    assert [setting.seed for setting in marker.settings(here, (7, 9))] == [7, 9]


@pytest.mark.parametrize(
    ("arguments", "devices"), [({}, 8), ({"devices": 3}, 3), ({"machine": "two-nodes"}, None)]
)  # fmt: skip
def test_a_marker_has_eight_devices_or_those_of_its_machine(arguments: dict[str, Any], devices: int | None) -> None:
    assert Marker.of({"platform": "sim", **arguments}).settings(here)[0].devices == devices


@pytest.mark.parametrize(
    ("asked", "platform", "checked"),
    [
        (None, "sim", True), (None, "cpu", False), (True, "cpu", True), (False, "sim", False),
        (True, "cuda", True), (None, "cuda", False),
    ],
)  # fmt: skip
def test_order_is_checked_on_the_simulator_unless_the_marker_says_otherwise(
    asked: bool | None, platform: str, checked: bool
) -> None:
    (setting,) = Marker.of({"platform": platform, "check_order": asked}).settings(here)
    assert setting.check_order is checked


@pytest.mark.parametrize("arguments", [{"devices": True}, {"seeds": [-1]}, {"platform": ["sim", "gpu"]}, {"seed": 3}])
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(MarkerError, match=rf"cuplace\({next(iter(arguments))}=...\) takes"):
        Marker.of(arguments)


def test_a_setting_tells_all_that_it_sets() -> None:
    setting = Setting("sim", 4, 3, "one-gpu", {"no_p2p": True}, check_order=True)
    assert str(setting) == "sim, 4 devices, seed 3, machine one-gpu, no_p2p=True, order checked"
    assert str(Setting("cpu")) == setting.label.replace("sim-seed3", "cpu")


@pytest.mark.parametrize("setting", [Setting("sim", 3, 5), Setting("cpu", 3, 5), Setting("cpu", 3)], ids=str)
def test_a_setting_is_current_while_it_is_active(setting: Setting, restored_config: None) -> None:
    before = current_platform._current
    config.update("check_order", True)
    with setting.active() as platform:
        assert current_platform.current() is platform
        assert not config.check_order
        x = cuplace.device_put(np.arange(6, dtype=np.int32), platform.devices[2])
        np.testing.assert_array_equal(np.asarray(x * x), np.arange(6) ** 2)
    assert current_platform._current is before
    assert config.check_order


def test_what_cannot_be_opened_leaves_all_as_it_was(restored_config: None) -> None:
    before = current_platform._current
    with pytest.raises(MachineError), Setting("sim", machine="abacus", check_order=True).active():
        pass
    assert current_platform._current is before
    assert not config.check_order


def test_a_failure_inside_leaves_all_as_it_was(restored_config: None) -> None:
    before = current_platform._current
    with pytest.raises(ValueError, match="wrong"), Setting("cpu", 2).active():
        raise ValueError("wrong")
    assert current_platform._current is before


def test_unfinished_work_and_held_latches_do_not_stop_the_end(restored_config: None) -> None:
    for name in ("cpu", "sim"):
        with fresh(Setting(name, 2).open) as platform:
            platform.scheduler.hold(platform.devices[0].compute)
            x = cuplace.device_put(np.arange(4, dtype=np.int32), platform.devices[0]) + 1
            assert not x.is_ready()
            del x
