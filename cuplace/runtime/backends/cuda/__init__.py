"""The cuda platform: CuPy arrays, CUDA streams and events, on NVIDIA GPUs. The only place that imports CuPy."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from typing import TYPE_CHECKING, NamedTuple

from cuplace import errors

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.backend import CudaBackend


class Found(NamedTuple):
    """How many GPUs answer; where none does, why, and whether the user would want to know."""

    gpus: int
    reason: str
    surprising: bool = False


def find_gpus() -> Found:
    """Look for GPUs that CuPy can use. Loads the driver and CuPy where they are installed."""
    installed, driver = importlib.util.find_spec("cupy") is not None, _has_driver()
    if not installed:
        return Found(0, "CuPy is not installed: pip install 'cuplace[cuda12]' or 'cuplace[cuda13]'", driver)
    if not driver:
        return Found(0, "CuPy is installed, but there is no CUDA driver", True)
    try:
        from cupy.cuda import runtime

        count = int(runtime.getDeviceCount())
    except Exception as error:
        return Found(0, f"CuPy and a CUDA driver are installed, but no GPU answers: {error}", True)
    return Found(count, f"{count} GPUs answer" if count else "the CUDA driver finds no GPU", not count)


def open_backend(gpus: int | None = None) -> CudaBackend:
    """A new backend on all GPUs that the process sees, or on the first ``gpus`` of them.

    Raises:
        NoGpuError: a RuntimeError: there are none or too few, and why.
    """
    found = find_gpus()
    if found.gpus < (gpus or 1):
        raise errors.NoGpuError(found.reason)
    from cuplace.runtime.backends.cuda.backend import CudaBackend

    return CudaBackend(gpus)


def _has_driver() -> bool:
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True
