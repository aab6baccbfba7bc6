"""Occupancy: who has the memory of a GPU: cuplace, CuPy's pool, or others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import cupy
from cupy.cuda import runtime

from cuplace.runtime.backends.cuda.nvml import read_memory
from cuplace.runtime.backends.cuda.storage import pool_of
from cuplace.runtime.usage import GpuUsage

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.gpu import Gpu

_BLAME = (
    "Others are other libraries in this process, arrays of your own that are CuPy's, other processes (nvidia-smi lists "
    "them) and CUDA itself. What they have would do: free it there (torch.cuda.empty_cache(), "
    "cupy.get_default_memory_pool().free_all_blocks()), or give them less."
)


def gpu_usage(gpus: Sequence[Gpu]) -> tuple[GpuUsage, ...]:
    """The memory of each GPU, with what NVML tells of it."""
    usages = []
    for gpu, told in zip(gpus, read_memory([gpu.uuid for gpu in gpus]), strict=True):
        pooled = _pooled(gpu)
        uuid = total = free = others = None
        if told is not None:
            uuid, total, free = told
            others = _others(gpu, total, free, pooled)
        usages.append(GpuUsage(gpu.ordinal, gpu.name, uuid, gpu.taken, pooled, total, free, others))
    return tuple(usages)


def shortage(gpu: Gpu, nbytes: int) -> list[str]:
    """Lines that tell who has the memory of a GPU, where there are no ``nbytes``, and whether others are to blame."""
    if gpu.lost is not None:
        return []
    with gpu.device:
        free, total = map(int, runtime.memGetInfo())
    pooled = _pooled(gpu) or 0
    others = _others(gpu, total, free, pooled)
    who = (
        f"Of the {total:,} bytes of GPU {gpu.ordinal} cuplace has {gpu.taken:,}, CuPy's pool keeps {pooled:,} unused, "
        f"others have {others:,}, and {free:,} are free."
    )
    return [who, _BLAME] if free < nbytes <= free + others else [who]


def _others(gpu: Gpu, total: int, free: int, pooled: int | None) -> int:
    return max(0, total - free - gpu.taken - (pooled or 0))


def _pooled(gpu: Gpu) -> int | None:
    """Bytes that CuPy's current memory pool keeps unused on a GPU, for whoever asks next; None for other allocators."""
    pool = pool_of(cupy.cuda.get_allocator())
    if pool is None or gpu.lost is not None:
        return None
    with gpu.device:
        return int(pool.free_bytes())
