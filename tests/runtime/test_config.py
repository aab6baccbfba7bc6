"""Options: types, values, the environment, JAX's spelling, and what is frozen by use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cuplace.errors import (
    ConfigFrozenError,
    OptionTypeError,
    OptionValueError,
    UnknownOptionError,
    UnknownVariableWarning,
)
from cuplace.runtime import platform as platform_module
from cuplace.runtime.backends import cuda
from cuplace.runtime.config import OPTIONS, Config, config
from cuplace.runtime.platform import Platform


@pytest.fixture(autouse=True)
def _no_options_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OPTIONS:
        monkeypatch.delenv("CUPLACE_" + name.upper(), raising=False)


@pytest.fixture
def fresh() -> Config:
    """The options as a new process has them."""
    return Config()


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_its_default(fresh: Config, name: str) -> None:
    assert getattr(fresh, name) == OPTIONS[name].default
    assert getattr(fresh, "jax_" + name) == OPTIONS[name].default
    assert OPTIONS[name].help


def test_it_prints_every_option_with_its_value(fresh: Config) -> None:
    fresh.update("jax_num_devices", 3)
    text = repr(fresh)
    assert text.startswith("Config(platform=None, num_devices=3, num_cpu_devices=None, enable_x64=False, ")
    assert all(f"{name}=" in text for name in OPTIONS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("platform", "sim"), ("num_devices", 3), ("num_cpu_devices", 8), ("enable_x64", True), ("sim_seed", -5),
        ("default_device", "cpu"), ("max_inflight_bytes", 1), ("max_device_bytes", 1 << 40), ("poison", True),
        ("sync", False), ("platform", None), ("num_devices", None), ("max_device_bytes", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["", "jax_"])
def test_options_keep_what_they_are_given(fresh: Config, prefix: str, name: str, value: Any) -> None:
    fresh.update(prefix + name, value)
    assert getattr(fresh, name) == value
    assert getattr(fresh, "jax_" + name) == value


def test_an_assignment_is_an_update(fresh: Config) -> None:
    heard: list[str] = []
    fresh.on_change(heard.append)
    fresh.jax_num_devices = 3
    assert (fresh.num_devices, heard) == (3, ["num_devices"])
    with pytest.raises(UnknownOptionError, match=r"^Unrecognized config option: num_device\n"):
        fresh.num_device = 4
    with pytest.raises(OptionTypeError):
        fresh.num_devices = "4"
    fresh.freeze("devices were used already")
    with pytest.raises(ConfigFrozenError):
        fresh.num_devices = 4
    assert fresh.num_devices == 3


@pytest.mark.parametrize("name", ["bogus", "jax_bogus", "jax_jax_sync", ""])
def test_an_unknown_option(fresh: Config, name: str) -> None:
    with pytest.raises(UnknownOptionError, match=f"^Unrecognized config option: {name}\n.*num_cpu_devices") as caught:
        fresh.update(name, 1)
    assert isinstance(caught.value, AttributeError)
    assert not hasattr(fresh, name or "bogus")


def test_a_value_of_another_type(fresh: Config) -> None:
    with pytest.raises(OptionTypeError) as caught:
        fresh.update("jax_num_cpu_devices", "a")
    assert str(caught.value).splitlines() == [
        "new int config value must be None or of type int, got a of type <class 'str'>",
        "The option is num_cpu_devices.",
    ]
    assert isinstance(caught.value, ValueError)
    assert fresh.num_cpu_devices is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("platform", 1), ("num_devices", 1.0), ("num_devices", True), ("enable_x64", None), ("enable_x64", "yes"),
        ("enable_x64", 1.0), ("enable_x64", 2), ("max_inflight_bytes", None), ("sim_seed", "1"), ("sync", []),
    ],
)  # fmt: skip
def test_other_wrong_types_change_nothing(fresh: Config, name: str, value: Any) -> None:
    with pytest.raises(OptionTypeError, match=f"The option is {name}"):
        fresh.update(name, value)
    assert getattr(fresh, name) == OPTIONS[name].default


@pytest.mark.parametrize("name", ["num_devices", "num_cpu_devices", "max_inflight_bytes", "max_device_bytes"])
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_are_positive(fresh: Config, name: str, value: int) -> None:
    with pytest.raises(OptionValueError, match=f"^{name} must be a whole number of at least 1, got {value}"):
        fresh.update(name, value)
    assert getattr(fresh, name) == OPTIONS[name].default


def test_numbers_stand_for_switches(fresh: Config) -> None:
    fresh.update("poison", 1)
    assert fresh.poison is True
    fresh.update("poison", 0)
    assert fresh.poison is False


@pytest.mark.parametrize("value", [3, "bogus", object(), 1.5])
def test_default_device_is_a_device_or_a_platform(fresh: Config, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^jax.default_device must be passed either a Device object"):
        fresh.update("default_device", value)
    assert fresh.default_device is None


# ---------------------------------------------------------------------- environment


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("platform", "sim", "sim"), ("num_devices", "3", 3), ("num_devices", " 12 ", 12), ("sim_seed", "-4", -4),
        ("enable_x64", "1", True), ("enable_x64", "True", True), ("sync", "off", False), ("poison", "no", False),
        ("max_device_bytes", "1000", 1000), ("default_device", "cpu", "cpu"),
    ],
)  # fmt: skip
def test_the_environment(fresh: Config, monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: Any) -> None:
    monkeypatch.setenv("CUPLACE_" + name.upper(), text)
    assert getattr(fresh, name) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("num_devices", "many", "a whole number, got 'many'"),
        ("num_devices", "", "a whole number, got ''"),
        ("num_devices", "0", "a whole number of at least 1, got 0"),
        ("sync", "perhaps", "one of 1, 0, true, false, got 'perhaps'"),
    ],
)
def test_nonsense_in_the_environment(
    fresh: Config, monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    variable = "CUPLACE_" + name.upper()
    monkeypatch.setenv(variable, text)
    with pytest.raises(OptionValueError, match=f"^{variable} must be {message}"):
        getattr(fresh, name)


def test_the_environment_is_read_at_first_use_and_once(fresh: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPLACE_NUM_DEVICES", "3")
    assert fresh.num_devices == 3
    monkeypatch.setenv("CUPLACE_NUM_DEVICES", "5")
    assert fresh.num_devices == 3


def test_update_beats_the_environment(fresh: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPLACE_NUM_DEVICES", "3")
    fresh.update("num_devices", 2)
    assert fresh.num_devices == 2


# ---------------------------------------------------------------------- listeners and freezing


def test_listeners_hear_of_changes(fresh: Config) -> None:
    heard: list[str] = []
    fresh.on_change(heard.append)
    fresh.update("jax_enable_x64", True)
    with pytest.raises(OptionTypeError):
        fresh.update("sync", "no")
    assert heard == ["enable_x64"]


def test_frozen_options_take_their_own_value_only(fresh: Config) -> None:
    fresh.update("num_cpu_devices", 8)
    fresh.freeze("devices were used already")
    fresh.update("jax_num_cpu_devices", 8)
    with pytest.raises(ConfigFrozenError) as caught:
        fresh.update("jax_num_cpu_devices", 4)
    first, second = str(caught.value).splitlines()
    assert first == (
        "jax_num_cpu_devices config should be updated before backends are initialized i.e. before any JAX operation "
        "is executed. You should initialize this config immediately after `import jax`."
    )
    assert "CUPLACE_NUM_CPU_DEVICES" in second
    assert "devices were used already" in second
    assert isinstance(caught.value, RuntimeError)
    assert fresh.num_cpu_devices == 8
    fresh.update("enable_x64", True)
    fresh.update("max_device_bytes", 100)
    fresh.thaw()
    fresh.update("num_cpu_devices", 4)


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.frozen_by_use])
def test_what_chooses_devices_is_frozen(fresh: Config, name: str) -> None:
    fresh.freeze("devices were used already")
    with pytest.raises(ConfigFrozenError, match=f"^{name} config should be updated before"):
        fresh.update(name, {"platform": "sim", "sim_machine": "one-gpu"}.get(name, 77))


@pytest.fixture
def unopened(restored_config: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No platform is current, as in a new process."""
    monkeypatch.setattr(platform_module, "_current", None)
    monkeypatch.setattr(cuda, "find_gpus", lambda: cuda.Found(0, "no GPU in this test"))
    for name in OPTIONS:
        config.__dict__.pop(name, None)
    config.thaw()
    yield
    opened: Platform | None = platform_module._current
    if opened is not None:
        opened.close()


def test_first_use_of_devices_freezes(unopened: None) -> None:
    config.update("jax_num_cpu_devices", 3)
    config.update("jax_num_cpu_devices", 2)
    assert len(platform_module.devices()) == 2
    with pytest.raises(ConfigFrozenError):
        config.update("jax_num_cpu_devices", 3)
    config.update("jax_num_cpu_devices", 2)
    assert len(platform_module.devices()) == 2


def test_the_environment_chooses_the_platform(unopened: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPLACE_PLATFORM", "sim")
    monkeypatch.setenv("CUPLACE_NUM_DEVICES", "3")
    assert [str(device) for device in platform_module.devices()] == ["sim:0", "sim:1", "sim:2"]


def test_a_misspelt_variable_is_told_where_devices_are_first_used(
    unopened: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPLACE_PLATFORM", "cpu")
    monkeypatch.setenv("CUPLACE_NUM_DEVICE", "3")
    monkeypatch.setenv("CUPLACE_OF_MY_OWN", "3")
    with pytest.warns(UnknownVariableWarning) as caught:
        platform_module.current()
    assert [str(warning.message) for warning in caught] == [
        "CUPLACE_NUM_DEVICE is set in the environment, and is no option. Was CUPLACE_NUM_DEVICES meant?"
    ]
    assert caught[0].filename == __file__
