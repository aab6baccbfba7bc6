"""Platform: the devices of one backend with their scheduler, and which platform is the current one."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cuplace import errors
from cuplace.runtime.caller import warn_caller
from cuplace.runtime.config import PLATFORM_NAMES, config, misspelt
from cuplace.runtime.device import Device
from cuplace.runtime.faults import Faults, limit
from cuplace.runtime.memory import DeviceMemory
from cuplace.runtime.order.watch import Watch
from cuplace.runtime.scheduler import Scheduler

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Backend

NAMES = ("cuda", "cpu", "sim")
"""Platforms that this version has."""


class Platform:
    """The devices of one backend. Opened once; devices are equal by identity."""

    def __init__(self, backend: Backend, num_devices: int | None = None, reason: str = "") -> None:
        self.backend = backend
        self.name = backend.name
        self.reason = reason
        self.scheduler = Scheduler(backend)
        count = backend.device_count(num_devices)
        self.devices = tuple(Device(i, backend.place(i, count), backend, self.scheduler) for i in range(count))
        for device in self.devices:
            device.memory = DeviceMemory(device, backend, self.scheduler.graveyard, self.scheduler.parking)
        self.scheduler.devices = self.devices
        self._watch: Watch | None = None
        self.check_order(config.check_order)
        _opened.add(self)

    def check_order(self, wanted: bool) -> None:
        """Follow all uses of memory and report those that no wait orders, or stop doing so."""
        if wanted and self._watch is None:
            self._watch = Watch(self.scheduler, self.devices)
        elif not wanted and self._watch is not None:
            watch, self._watch = self._watch, None
            watch.end()

    @property
    def races(self) -> list[str]:
        """What was found since the order is checked: the texts of the errors that were raised."""
        return [] if self._watch is None else self._watch.detector.races

    def set_faults(self, faults: Faults) -> Faults:
        """From now on this goes wrong (see ``cuplace.testing.faults``); what did before. How copies travel is found out
        anew.

        Raises:
            NoFaultsError: a RuntimeError: links are to fail, and the platform has none.
        """
        set_links = getattr(self.backend, "set_faults", None)
        if set_links is None and faults.of_links:
            raise errors.NoFaultsError(self.name)
        scheduler = self.scheduler
        with scheduler.lock:
            before, scheduler.faults = scheduler.faults, faults
            for device in self.devices:
                for arena in device.memory.arenas.values():
                    limit(arena, faults)
            if set_links is not None and set_links(faults):
                for device in self.devices:
                    device.forget_moves()
        return before

    def close(self) -> None:
        """Stop the backend's threads and return its unused memory; its arrays are not usable afterwards."""
        self.backend.finish()
        self._trim()  # while the streams are there, in whose order allocators may take memory back
        self.backend.close()
        self._trim()
        self.scheduler.forget_past()  # caches of plans and programs may keep a scheduler for long

    def _trim(self) -> None:
        self.scheduler.tidy()
        for device in self.devices:
            for memory in device.memories():
                memory.trim()

    def __repr__(self) -> str:
        return f"Platform({self.name!r}, {len(self.devices)} devices)"


_opened: weakref.WeakSet[Platform] = weakref.WeakSet()
_lock = threading.Lock()
_current: Platform | None = None


def open_platform(name: str, num_devices: int | None = None, *, reason: str = "", **options: Any) -> Platform:
    """Open a platform without making it the current one. ``options`` go to its backend (``seed`` for sim).

    Raises:
        UnknownPlatformError: there is no such platform.
    """
    if name not in NAMES:
        raise errors.UnknownPlatformError(name, NAMES)
    module = importlib.import_module(f"cuplace.runtime.backends.{name}")
    return Platform(module.open_backend(**options), num_devices, reason)


def current() -> Platform:
    """The platform of the default devices, opened at first use from the configuration."""
    global _current
    if _current is None:
        with _lock:
            if _current is None:
                _current = _open_configured()
                config.freeze("devices were used already")
    return _current


def _heed_option(name: str) -> None:
    if name == "check_order" and _current is not None:
        _current.check_order(config.check_order)


config.on_change(_heed_option)


def _open_configured() -> Platform:
    for variable, meant in misspelt(os.environ):
        text = f"{variable} is set in the environment, and is no option. Was {meant} meant?"
        warn_caller(text, errors.UnknownVariableWarning)
    name, reason = config.platform, "chosen by the option platform"
    if name is None:
        name, reason = _choose()
    requested = config.num_cpu_devices if name == "cpu" and config.num_cpu_devices else config.num_devices
    options = {"seed": config.sim_seed, "machine": config.sim_machine} if name == "sim" else {}
    return open_platform(name, requested, reason=reason, **options)


def _choose() -> tuple[str, str]:
    """The platform to open where none was asked for, and why: cuda where a GPU answers, else cpu."""
    from cuplace.runtime.backends.cuda import find_gpus

    found = find_gpus()
    if found.gpus:
        return "cuda", found.reason
    if found.surprising:
        print(  # noqa: T201
            f"cuplace uses the cpu platform: {found.reason}. (CUPLACE_PLATFORM=cpu chooses it without this line.)",
            file=sys.stderr,
        )
    return "cpu", found.reason


@contextmanager
def activated(platform: Platform) -> Iterator[Platform]:
    """Make ``platform`` the current one inside the ``with`` block (for tests)."""
    global _current
    before, _current = _current, platform
    try:
        yield platform
    finally:
        _current = before


def devices(name: str | None = None) -> list[Device]:
    """All devices of the default platform, or of the platform ``name``.

    Raises:
        RuntimeError: there is no such platform here.

    >>> import cuplace
    >>> cuplace.devices()[0].platform in ("cpu", "gpu", "sim")
    True
    """
    platform = current()
    if name is None or name == platform.name or name == platform.backend.device_platform:
        return list(platform.devices)
    if name not in PLATFORM_NAMES:
        raise errors.UnknownPlatformError(name, (platform.backend.device_platform,))
    raise errors.AbsentPlatformError(name, (platform.backend.device_platform,))


def device_by_id(platform: str, id: int) -> Device:
    """The device of the current platform with this id; how devices are unpickled.

    Raises:
        RuntimeError: the current platform is another one or has fewer devices.
    """
    here = current()
    if here.backend.device_platform != platform or id >= len(here.devices):
        raise errors.AbsentDeviceError(f"{platform}:{id}", [str(device) for device in here.devices])
    return here.devices[id]


def local_devices() -> list[Device]:
    """The devices that this process drives: in a program of one process, all.

    >>> import cuplace
    >>> cuplace.local_devices() == cuplace.devices()
    True
    """
    return devices()


def device_count(name: str | None = None) -> int:
    """How many devices there are, on the default platform or on the platform ``name``. Raises as `devices` does.

    >>> import cuplace
    >>> cuplace.device_count() == len(cuplace.devices())
    True
    """
    return len(devices(name))


def local_device_count(name: str | None = None) -> int:
    """How many devices this process drives: in a program of one process, `device_count`."""
    return len(devices(name))


def process_index() -> int:
    """The number of this process among the processes of the program, from 0; always 0 in a program of one."""
    return 0


def process_count() -> int:
    """How many processes the program has; always 1 as long as programs are of one process."""
    return 1


def default_backend() -> str:
    """The platform name of the default devices: ``cpu``, ``gpu`` or ``sim``.

    >>> import cuplace
    >>> cuplace.default_backend() == cuplace.devices()[0].platform
    True
    """
    return current().backend.device_platform


def _forget_devices_in_child() -> None:
    for platform in list(_opened):
        platform.scheduler.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_devices_in_child)
