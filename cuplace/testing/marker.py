"""Marker: the settings that a test asks for with ``@pytest.mark.cuplace(...)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from cuplace import errors
from cuplace.runtime.platform import NAMES
from cuplace.testing.setting import Setting

DEVICES = 8
"""How many devices a test gets that asks for no number of them and names no machine."""


@dataclass(frozen=True)
class Marker:
    """What a test asks for.

    Attributes:
        platform: names of platforms, or one name; by default those that are here, or sim alone where the test asks
            for what only the simulator has.
        machine: what the simulator tells times for, a name or a TOML file.
        devices: how many; by default 8, or as many as the machine has.
        seeds: the test runs once with each.
        faults: arguments of ``cuplace.testing.faults``.
        check_order: whether uses of memory that nothing orders are errors; by default on sim.

    Raises:
        MarkerError: a ValueError; something in it makes no sense.
    """

    platform: str | Sequence[str] = ()
    machine: str | None = None
    devices: int | None = None
    seeds: Iterable[int] = ()
    faults: Mapping[str, Any] = field(default_factory=dict)
    check_order: bool | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Marker:
        """The marker with these keyword arguments."""
        known = [each.name for each in fields(cls)]
        for name in arguments:
            if name not in known:
                raise errors.MarkerError(name, arguments[name], f"nothing: the arguments are {', '.join(known)}")
        return cls(**arguments)

    def __post_init__(self) -> None:
        for name in self._platforms():
            if name not in NAMES:
                raise errors.MarkerError("platform", self.platform, f"names out of {', '.join(NAMES)}")
        if self.machine is not None and set(self._platforms()) - {"sim"}:
            raise errors.MarkerError("machine", self.machine, "the platform sim, and no other one")
        if self.devices is not None and not _is_count(self.devices, 1):
            raise errors.MarkerError("devices", self.devices, "a whole number of at least 1")
        if isinstance(self.seeds, int | str) or not all(_is_count(seed, 0) for seed in self.seeds):
            raise errors.MarkerError("seeds", self.seeds, "whole numbers from 0, like range(20)")
        if not isinstance(self.faults, Mapping):
            raise errors.MarkerError("faults", self.faults, "a dict of arguments for cuplace.testing.faults")

    def settings(self, at_hand: Callable[[], Sequence[str]], seeds: Iterable[int] | None = None) -> list[Setting]:
        """The settings to run the test in.

        Args:
            at_hand: gives the platforms to run on where the test names none.
            seeds: take the place of its own.
        """
        names = self._platforms()
        if not names:
            names = ("sim",) if self.machine is not None or self.faults else tuple(at_hand())
        chosen = tuple(self.seeds if seeds is None else seeds) or (None,)
        return [self._setting(name, seed) for name in names for seed in (chosen if name != "cuda" else (None,))]

    def _platforms(self) -> tuple[str, ...]:
        return (self.platform,) if isinstance(self.platform, str) else tuple(self.platform)

    def _setting(self, name: str, seed: int | None) -> Setting:
        check_order = name == "sim" if self.check_order is None else self.check_order
        devices = DEVICES if self.devices is None and self.machine is None else self.devices
        return Setting(name, devices, seed, self.machine, self.faults, check_order)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
