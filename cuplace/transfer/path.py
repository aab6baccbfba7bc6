"""path_between: how a move travels between two devices, decided from what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuplace.placement.memory_space import DEVICE, UNPINNED_HOST
from cuplace.runtime.topology import CALLER

if TYPE_CHECKING:
    from cuplace.runtime.device import Device
    from cuplace.runtime.topology import Caller

HOST_PLATFORM = "cpu"


def path_between(
    source: Device | Caller, target: Device, kinds: tuple[str | None, str | None] = (DEVICE, DEVICE)
) -> str:
    """The path of a copy from `source`'s memory to `target`'s; `kinds` are the kinds of memory.

    - ``local``: inside one GPU (stream-partitions of a GPU have memories of their own), or inside the host;
    - ``peer``: between two GPUs of this process;
    - ``host``: between a GPU and pinned host memory, of whichever device it is, and from values of the caller's;
    - ``staged``: between a GPU and host memory that is not pinned, through memory that is;
    - ``network``: between two processes.

    A shard that needs no copy at all is an *alias* of the plan and has no path.
    """
    if source.process_index != target.process_index:
        return "network"
    if source is CALLER:
        return "host"
    on_host = [kind not in (None, DEVICE) for kind in kinds]
    if all(on_host) or source.platform == HOST_PLATFORM:
        return "local"
    if any(on_host):
        return "staged" if UNPINNED_HOST in kinds else "host"
    if source is target or source.gpu == target.gpu:
        return "local"
    return "peer"
