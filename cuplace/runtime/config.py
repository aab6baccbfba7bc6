"""Options of the process: ``config.update(name, value)``, or ``CUPLACE_<NAME>`` in the environment.

The environment is read when an option is first used, never at import. JAX's spelling with the prefix
``jax_`` is accepted, so that programs written for JAX run unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cuplace import errors
from cuplace.placement.device import is_device


@dataclass(frozen=True)
class Option:
    """One option: its type, its default, what it means, and whether opening a platform freezes it."""

    type: type
    default: Any
    help: str
    frozen_by_use: bool = False
    optional: bool = False


GUARD_LEVELS = ("allow", "log", "disallow", "log_explicit", "disallow_explicit")
"""What can be done about a transfer: nothing, or something about those that nobody asked for, or about all."""

GUARDED = {
    "transfer_guard_host_to_device": "values from the host that become arrays",
    "transfer_guard_device_to_device": "moves to other devices",
    "transfer_guard_device_to_host": "reading values on the host",
    "transfer_guard_host_sync": "waiting for devices",
    "transfer_guard_host_bounce": "moves through host memory between GPUs that do not reach each other",
}
GUARDS = tuple(GUARDED)

OPTIONS: dict[str, Option] = {
    "platform": Option(str, None, "platform of the default devices: 'cuda', 'cpu' or 'sim'", True, True),
    "num_devices": Option(int, None, "devices to offer, on any platform", True, True),
    "num_cpu_devices": Option(int, None, "devices to offer on the cpu platform", True, True),
    "enable_x64": Option(bool, False, "keep 64-bit types instead of narrowing them to 32 bits"),
    "default_device": Option(object, None, "device of new uncommitted arrays, or a platform's name", optional=True),
    "sim_seed": Option(int, 0, "seed of the simulator's order of execution", True),
    "sim_machine": Option(str, None, "machine that the simulator tells times for: a name or a TOML file", True, True),
    "staging_bytes": Option(int, 256 << 20, "pinned host memory that copies between host and GPUs pass through", True),
    "max_inflight_bytes": Option(
        int, 4 << 30, "bytes of dead memory that may wait for unfinished work before a call waits"
    ),
    "max_device_bytes": Option(int, None, "limit of memory for each device, in bytes", optional=True),
    "check_order": Option(bool, False, "check that waits order all uses of memory that conflict"),
    "poison": Option(bool, False, "fill new memory with a pattern, so that reading too early shows"),
    "sync": Option(bool, False, "wait for the device after every call (for debugging and baselines)"),
    "transfer_guard": Option(str, None, "level of the guards of all three directions of transfers", optional=True),
    **{name: Option(str, None, f"level of the guard of {GUARDED[name]}", optional=True) for name in GUARDS},
}

PLATFORM_NAMES = ("cpu", "gpu", "cuda", "sim")
"""What names the devices of a platform; both ``gpu`` and ``cuda`` mean the backend ``cuda``."""

PREFIX = "CUPLACE_"
"""With what the names of options begin in the environment."""

_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class Config:
    """The options of the process.

    >>> from cuplace import config
    >>> config.update("jax_enable_x64", False)
    >>> config.enable_x64
    False
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[str], None]] = []
        self._frozen: dict[str, str] = {}

    def update(self, name: str, value: Any) -> None:
        """Set an option.

        Raises:
            AttributeError: there is no option of that name.
            ValueError: the value has another type than the option, or is one that it cannot have.
            RuntimeError: the option chooses devices, and devices were used already.
        """
        key = _canonical(name)
        value = _checked(key, value)
        if key in self._frozen and value != getattr(self, key):
            raise errors.ConfigFrozenError(name, self._frozen[key])
        self.__dict__[key] = value
        if key == "transfer_guard":  # takes the place of what was said of single directions before
            for name in GUARDS[:3]:
                self.__dict__[name] = value
        for listener in self._listeners:
            listener(key)

    def freeze(self, reason: str) -> None:
        """Make the options that choose devices refuse other values from now on."""
        self._frozen = {name: reason for name, option in OPTIONS.items() if option.frozen_by_use}

    def thaw(self) -> None:
        """Allow the options that choose devices to change again; for tests that open their own platforms."""
        self._frozen = {}

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call ``listener(name)`` after each change of an option."""
        self._listeners.append(listener)

    def __repr__(self) -> str:
        """Every option with its value, as ``Config(platform=None, ...)``."""
        return f"Config({', '.join(f'{name}={getattr(self, name)!r}' for name in OPTIONS)})"

    def __setattr__(self, name: str, value: Any) -> None:
        # An assignment is an update, or a misspelt name would be taken in silence.
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self.update(name, value)

    def __getattr__(self, name: str) -> Any:
        # Reached only while the option has no value yet: look into the environment once, then keep it.
        if name.startswith("_"):
            raise AttributeError(name)
        key = _canonical(name)
        if key in self.__dict__:
            return self.__dict__[key]
        value = _from_environment(key)
        self.__dict__[key] = value
        return value


def misspelt(environment: Iterable[str]) -> list[tuple[str, str]]:
    """Variables of an environment that are no options, each with the one that was probably meant.

    >>> misspelt(["CUPLACE_PLATFROM", "CUPLACE_PLATFORM", "CUPLACE_OF_MY_OWN", "HOME"])
    [('CUPLACE_PLATFROM', 'CUPLACE_PLATFORM')]
    """
    known = [PREFIX + key.upper() for key in OPTIONS]
    others = [name for name in environment if name.startswith(PREFIX) and name not in known]
    if not others:
        return []
    import difflib  # seldom needed, and not quick to load

    likely = [(name, difflib.get_close_matches(name, known, 1, 0.85)) for name in others]
    return [(name, meant[0]) for name, meant in likely if meant]


def _canonical(name: str) -> str:
    key = name.removeprefix("jax_")
    if key not in OPTIONS:
        raise errors.UnknownOptionError(name, list(OPTIONS))
    return key


def _checked(key: str, value: Any) -> Any:
    option = OPTIONS[key]
    if value is None and option.optional:
        return None
    if key.startswith("transfer_guard"):
        check_level(value)
        return value
    if option.type is bool and isinstance(value, int) and value in (0, 1):
        return bool(value)
    if not isinstance(value, option.type) or (option.type is int and isinstance(value, bool)):
        raise errors.OptionTypeError(key, option.type, option.optional, value)
    _check_value(key, key, value)
    return value


def check_level(value: Any, where: str | None = None) -> None:
    """Check the level of a guard; ``where`` is what set it, for the error.

    Raises:
        GuardLevelError: a ValueError, with JAX's text.
    """
    if value is not None and value not in GUARD_LEVELS:
        raise errors.GuardLevelError(value, GUARD_LEVELS, where)


def _check_value(key: str, name: str, value: Any) -> None:
    option = OPTIONS[key]
    if option.type is int and key != "sim_seed" and value < 1:
        raise errors.OptionValueError(name, value, "a whole number of at least 1")
    if key.startswith("transfer_guard"):
        check_level(value, name)
    if key == "default_device" and value not in PLATFORM_NAMES and not is_device(value):
        raise errors.DefaultDeviceError(value)


def _from_environment(key: str) -> Any:
    option = OPTIONS[key]
    variable = PREFIX + key.upper()
    text = os.environ.get(variable)
    if text is None:
        return option.default
    if option.type is bool:
        word = _WORDS.get(text.strip().lower())
        if word is None:
            raise errors.OptionValueError(variable, text, "one of 1, 0, true, false")
        return word
    value: int | str = text
    if option.type is int:
        try:
            value = int(text)
        except ValueError:
            raise errors.OptionValueError(variable, text, "a whole number") from None
    _check_value(key, variable, value)
    return value


config = Config()
