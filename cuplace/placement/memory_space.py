"""MemorySpace: what a type says of where an array lives, the device or the host; and the kinds of memory there are."""

from __future__ import annotations

from enum import Enum

DEVICE = "device"
PINNED_HOST = "pinned_host"
UNPINNED_HOST = "unpinned_host"

KINDS = (DEVICE, PINNED_HOST, UNPINNED_HOST)
"""The kinds of memory of a device, its own first."""


class MemorySpace(Enum):
    """Memory of the device, or of the host; a target of `device_put` that leaves devices and layout as they are.

    ``Host`` as a target is ``pinned_host``. ``Any`` is there for JAX's sake, and is no target.

    >>> MemorySpace.Host.kind
    'pinned_host'
    """

    Device = 1
    Host = 2
    Any = 3

    @property
    def kind(self) -> str | None:
        """The kind of memory that stands for it; None for ``Any``."""
        return {MemorySpace.Device: DEVICE, MemorySpace.Host: PINNED_HOST}.get(self)

    def __repr__(self) -> str:
        return str(self)


def space_of(kind: str) -> MemorySpace:
    """The space that memory of a kind belongs to."""
    return MemorySpace.Device if kind == DEVICE else MemorySpace.Host
