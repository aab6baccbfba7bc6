"""What placement needs to know of a device: who it is, and nothing about how it works."""

from __future__ import annotations

from typing import Protocol

from cuplace.errors import ForeignDeviceError


class DeviceLike(Protocol):
    """A device as placement sees it: a name tag, equal only to itself.

    The devices of the runtime are of this kind. `local_hardware_id` is None for a device of another process, as in
    JAX; `memory_kinds` lists the memories of the device, the default one first.
    """

    @property
    def id(self) -> int: ...

    @property
    def platform(self) -> str: ...

    @property
    def device_kind(self) -> str: ...

    @property
    def process_index(self) -> int: ...

    @property
    def local_hardware_id(self) -> int | None: ...

    @property
    def memory_kinds(self) -> tuple[str, ...]: ...


_MARKS = ("id", "platform", "device_kind", "process_index")


def is_device(candidate: object) -> bool:
    """Whether the object has what makes a device."""
    return all(hasattr(candidate, mark) for mark in _MARKS)


def check_device(candidate: object, where: str) -> None:
    """Raises ForeignDeviceError, a TypeError, unless the object is a device. `where` names its place, for the text."""
    if not is_device(candidate):
        raise ForeignDeviceError(
            f"{where} takes devices, got {candidate!r} of type {type(candidate).__name__}.\n"
            "Devices are what cuplace.devices() lists, in a list or an array; write for example cuplace.devices()[0]."
        )
