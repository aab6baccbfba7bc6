"""Which errors of CUDA end a GPU's context for good, and what they are called."""

from __future__ import annotations

from typing import Any

NOT_READY = 600

STICKY = frozenset({
    214,  # uncorrectable ECC error
    220,  # uncorrectable NVLink error
    226,  # contained error
    700,  # illegal address
    702,  # launch time-out
    709,  # the context is destroyed
    710,  # device-side assert
    714,  # hardware stack error
    715,  # illegal instruction
    716,  # misaligned address
    717,  # invalid address space
    718,  # invalid program counter
    719,  # launch failure
    721,  # contained memory error
})  # fmt: skip
"""Status codes after which every further call on the GPU fails alike (the same numbers in runtime and driver)."""


def status_of(error: BaseException) -> int | None:
    """The status code that an error of CuPy carries; None for other errors."""
    status: Any = getattr(error, "status", None)
    return status if isinstance(status, int) else None


def is_sticky(error: BaseException) -> bool:
    """Whether the GPU is lost after ``error``."""
    return status_of(error) in STICKY
