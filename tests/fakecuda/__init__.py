"""A fake CUDA: the real CuPy wheel on 1 to 8 fake GPUs, on a machine without any.

``install()`` comes before the first import of CuPy::

    from tests import fakecuda

    fakecuda.install(devices=8, mode="lazy")
    import cupy

    x = cupy.arange(4) + 1
    assert fakecuda.take_reports() == []

What is modelled, what is not, and how to read a report is told in ``README.md`` beside this file.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.fakecuda import build, faults, native, overlay, regions
from tests.fakecuda.cache import BuildError
from tests.fakecuda.counts import HOST, Blocking, Copy, Counters, Memory, copies, counters, reset_counters
from tests.fakecuda.hostcalls import host_call, library_call, numpy_library, numpy_view
from tests.fakecuda.overlay import module_source
from tests.fakecuda.regions import (
    Launch,
    Region,
    cupy_pool,
    declare_kernel,
    hand_on,
    host_access,
    kernel_access,
    name_stream,
    pool_block,
    pool_free,
    take_over,
    watched,
)
from tests.fakecuda.reports import Report, Side, take_reports
from tests.fakecuda.schedules import Schedule, reset, schedules, set_latch_timeout, set_mode, visible_devices
from tests.fakecuda.virtual_time import Clock, virtual_time

__all__ = [
    "HOST", "Blocking", "BuildError", "Clock", "Copy", "Counters", "Launch", "Memory", "Region", "Report", "Schedule",
    "Side", "copies", "counters", "cupy_pool", "declare_kernel", "faults", "hand_on", "host_access", "host_call",
    "install", "installed", "kernel_access", "library_call", "missing", "module_source", "name_stream",
    "numpy_library", "numpy_view", "pool_block", "pool_free", "reset", "reset_counters", "schedules",
    "set_latch_timeout", "set_library_folders", "set_mode", "take_over", "take_places", "take_reports", "virtual_time",
    "visible_devices", "watched",
]  # fmt: skip

missing = build.missing
installed = native.loaded

_MOST_DEVICES = 64
_lock = threading.Lock()


def install(
    devices: int | None = None, mode: str | None = None, seed: int = 0, *, library: Sequence[str | Path] = (),
) -> None:  # fmt: skip
    """Put CuPy on the fake. The first call of a process decides on the devices; a later one may change the rest.

    Args:
        devices: how many GPUs; default: the environment's ``FAKECUDA_DEVICES``, else 8.
        mode: the first schedule (see ``set_mode``); default: ``FAKECUDA_MODE``, else ``eager``.
        seed: of the first schedule.
        library: folders of the library under test. Reports show its line and the user's.

    Raises:
        BuildError: the fake cannot be built here; the text says why.
        RuntimeError: CuPy was imported before, or the fake is installed with another number of devices.
        ValueError: no such number of devices.
    """
    devices = devices or int(os.environ.get("FAKECUDA_DEVICES", "8"))
    if not 1 <= devices <= _MOST_DEVICES:
        raise ValueError(f"the fake CUDA has 1 to {_MOST_DEVICES} devices, not {devices}")
    with _lock:
        if not installed():
            overlay.put_in_place(devices)
            regions.watch_threads()
        elif devices != faults.device_count():
            raise RuntimeError(f"the fake CUDA is installed with {faults.device_count()} devices, not {devices}")
    set_library_folders(library)
    set_mode(mode or os.environ.get("FAKECUDA_MODE", "eager"), seed or int(os.environ.get("FAKECUDA_SEED", "0")))


def set_library_folders(folders: Sequence[str | Path]) -> None:
    """Files under these folders are the library under test: the user's line of a report is outside of them."""
    hidden = [f"{build.HERE}/{name}.py" for name in ("regions", "hostcalls", "overlay", "hostkernels")]
    hidden += [f"{build.package_folder(name)}/" for name in ("cupy", "cupy_backends", "cupyx")]
    hidden += [os.path.dirname(threading.__file__) + "/"]
    lists = [[os.fsencode(str(folder)) for folder in group] for group in (hidden, folders)]
    arrays = [(ctypes.c_char_p * max(len(group), 1))(*group) for group in lists]
    native.library().fake_set_folders(arrays[0], len(lists[0]), arrays[1], len(lists[1]))


def take_places(wanted: bool) -> None:
    """Whether calls note the line of Python they come from, which costs about 2 us a call. They do at first."""
    native.library().fake_take_places(wanted)
