"""Runs Python with kernels compiled with the address sanitizer, and with device memory that only their arrays open.

    python -m tests.fakecuda.run_sanitized -m pytest tests/fakecuda/test_kernels.py

A kernel that touches another byte, of its own pool block or of any other, gives a report of the kind ``sanitizer``.
For one host thread, in the modes eager, lazy and random.
"""

from __future__ import annotations

import os
import sys

from tests.fakecuda import build, cache

OPTIONS = {
    "detect_leaks": 0,
    "halt_on_error": 0,
    "handle_segv": 0,
    "handle_sigbus": 0,
    "handle_sigfpe": 0,
    "suppress_equal_pcs": 0,
}


def environment() -> dict[str, str]:
    """The environment that Python must be started with."""
    return {
        **os.environ,
        "FAKECUDA_SANITIZE": "1",
        "LD_PRELOAD": cache.run([build.CXX, "-print-file-name=libasan.so"]).strip(),
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in OPTIONS.items()),
        # The sanitizer's dlopen does not look where NVRTC asks for its second library.
        "LD_LIBRARY_PATH": str(build.package_folder("nvidia.cuda_nvrtc") / "lib"),
    }


if __name__ == "__main__":
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment())
