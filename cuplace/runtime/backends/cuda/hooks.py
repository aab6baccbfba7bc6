"""What a test may watch, or put in the place of what only a GPU has. Nothing is set in normal use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Region(NamedTuple):
    """The bytes that a kernel touches: elements of ``itemsize`` bytes at ``address``, with strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


host_access: Callable[[int, int, bool], None] | None = None
"""``host_access(address, nbytes, write)``: the host is about to touch pinned memory that copies use, too."""

kernel_access: Callable[[Sequence[Region], Sequence[Region]], None] | None = None
"""``kernel_access(reads, writes)``: what the kernel of ours touches that this thread launches next."""

library: Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any] | None = None
"""``library(name, function, args, kwargs)`` computes what ``function(*args, **kwargs)`` would, a call of cuBLAS,
cuFFT, cuSOLVER or Thrust."""
