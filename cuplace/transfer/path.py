"""path_between: how a move travels between two devices, decided from what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cuplace.runtime.device import Device

HOST_PLATFORM = "cpu"


def path_between(source: Device, target: Device) -> str:
    """The path of a copy from `source`'s memory to `target`'s.

    - ``local``: inside one GPU (stream-partitions of a GPU have memories of their own), or inside the host;
    - ``peer``: between two GPUs of this process;
    - ``network``: between two processes.

    A shard that needs no copy at all is an *alias* of the plan and has no path.
    """
    if source.process_index != target.process_index:
        return "network"
    if source is target or source.platform == HOST_PLATFORM or source.gpu == target.gpu:
        return "local"
    return "peer"
