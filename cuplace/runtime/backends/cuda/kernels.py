"""Kernels: the project's own CUDA C++ sources, compiled by NVRTC and loaded on each GPU, and how each is launched."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from cuplace.runtime.backends.cuda import hooks
from cuplace.runtime.strided import UNITS, StridedCopy, fits_32_bits

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.gpu import Gpu
    from cuplace.runtime.backends.cuda.lane import Lane

_COPIES = tuple(f"copy_{unit}_{bits}" for unit in UNITS for bits in (32, 64))
_SOURCES = {"copy.cu": _COPIES, "probe.cu": ("fill", "checksum"), "wait.cu": ("arrive", "latch", "spin")}
_OPTIONS = ("-std=c++17",)

Uses = tuple[Sequence[hooks.Region], Sequence[hooks.Region]]

_THREADS = 256
_BLOCKS_A_PROCESSOR = 8  # 2048 threads: as many as a multiprocessor takes
_UNITS_A_THREAD = 4


def load(gpu: Gpu) -> None:
    """Compile what is not compiled yet and load it on ``gpu``.

    When the platform opens, since the driver may wait for all running work to load code.
    """
    with gpu.device:
        for names in _SOURCES.values():
            for name in names:
                _ = _kernel(name).num_regs  # asking for an attribute loads a kernel that is loaded lazily


def copy(lane: Lane, strided: StridedCopy, source: int, target: int) -> None:
    """Enqueue a strided copy between addresses that are visible to the lane's GPU."""
    unit = strided.unit(source, target)
    for from_offset, to_offset, box in strided.boxes(unit):
        if hooks.kernel_access is not None:
            _declare(box, unit, source + from_offset, target + to_offset)
        name = f"copy_{unit}_{32 if fits_32_bits(box) else 64}"
        count = int(box["count"])
        _launch(lane, name, count, (np.uintp(target + to_offset), np.uintp(source + from_offset), box))


def fill(lane: Lane, target: int, count: int, seed: int) -> None:
    """Enqueue the pattern of ``count`` words of 8 bytes that ``probe.pattern`` is the twin of."""
    if hooks.kernel_access is not None:
        hooks.kernel_access((), (_words(target, count),))
    _launch(lane, "fill", count, (np.uintp(target), np.uint64(count), np.uint64(seed)))


def checksum(lane: Lane, source: int, count: int, total: int) -> None:
    """Enqueue the sum that ``probe.pattern_sum`` is the twin of, added to the word at address ``total``."""
    if hooks.kernel_access is not None:
        hooks.kernel_access((_words(source, count), _words(total, 1)), (_words(total, 1),))
    _launch(lane, "checksum", count, (np.uintp(source), np.uint64(count), np.uintp(total)))


def arrive(lane: Lane, word: int) -> None:
    """Enqueue that the host is told, by a pinned word of 4 bytes, that the lane has come here."""
    if hooks.kernel_access is not None:
        hooks.kernel_access((), ())
    _launch(lane, "arrive", 1, (np.uintp(word),), threads=1)


def latch(lane: Lane, gate: int, outcome: int, timeout_ns: int, uses: Uses = ((), ())) -> None:
    """Enqueue a wait until the host writes to ``gate`` (both addresses are of pinned words of 4 bytes).

    ``uses`` is what the host reads and writes meanwhile, in the place of the kernel.
    """
    if hooks.kernel_access is not None:
        reads, writes = uses
        hooks.kernel_access(tuple(reads), (*writes, hooks.Region(outcome, (1,), (4,), 4)))
    _launch(lane, "latch", 1, (np.uintp(gate), np.uintp(outcome), np.uint64(timeout_ns)), threads=1)


def spin(lane: Lane, nanoseconds: int) -> None:
    """Enqueue work that lasts for so long and does nothing."""
    if hooks.kernel_access is not None:
        hooks.kernel_access((), ())
    _launch(lane, "spin", 1, (np.uint64(nanoseconds),), threads=1)


def _launch(lane: Lane, name: str, count: int, arguments: tuple[Any, ...], threads: int = _THREADS) -> None:
    wanted = -(-count // (threads * _UNITS_A_THREAD))
    blocks = max(1, min(wanted, lane.gpu.processors * _BLOCKS_A_PROCESSOR))
    with lane.device, lane.on:
        _kernel(name)((blocks,), (threads,), arguments)


def _declare(box: np.ndarray[Any, Any], unit: int, source: int, target: int) -> None:
    assert hooks.kernel_access is not None
    ndim = int(box["ndim"])
    shape, *strides = (
        tuple(box[field][:ndim].tolist()) for field in ("shape", "source_strides", "target_strides")
    )  # fmt: skip
    reads = (hooks.Region(source, shape, strides[0], unit),)
    hooks.kernel_access(reads, (hooks.Region(target, shape, strides[1], unit),))


def _words(address: int, count: int) -> hooks.Region:
    return hooks.Region(address, (count,), (8,), 8)


@cache
def _kernel(name: str) -> Any:
    (source,) = (source for source, names in _SOURCES.items() if name in names)
    return _module(source).get_function(name)


@cache
def _module(source: str) -> Any:
    return cupy.RawModule(code=(_folder() / source).read_text(), options=_OPTIONS)


@cache
def _folder() -> Path:
    spec = importlib.util.find_spec("cuplace.kernels")
    if spec is None or spec.origin is None:  # a source tree that is used without being installed
        return Path(__file__).resolve().parents[4] / "kernels"
    return Path(spec.origin).parent
