"""Faults on demand: ``from tests.fakecuda import faults``. ``faults.clear()`` and ``fakecuda.reset()`` end them all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from tests.fakecuda import native

ERRORS = {
    "cudaErrorMemoryAllocation": 2,
    "cudaErrorHardwareStackError": 714,
    "cudaErrorMisalignedAddress": 716,
    "cudaErrorIllegalAddress": 700,
    "cudaErrorLaunchOutOfResources": 701,
    "cudaErrorECCUncorrectable": 214,
    "cudaErrorLaunchFailure": 719,
}

ANY_DEVICE = -1


def no_peer(pairs: Iterable[tuple[int, int]] | None = None) -> None:
    """These (device, peer) pairs cannot reach each other's memory directly; None: no pair can.

    ``cudaDeviceCanAccessPeer`` says so, enabling access fails; ``memcpyPeer`` still works, as CUDA stages it.
    """
    for device, peer in _all_pairs() if pairs is None else pairs:
        native.library().fake_fault_no_peer(device, peer, True)


def corrupt_pair(source: int, target: int) -> None:
    """Copies from one device to the other silently write zeros, as some machines with an IOMMU do."""
    native.library().fake_fault_corrupt(source, target, True)


def memory_limit(nbytes: int, device: int = ANY_DEVICE) -> None:
    """A device has no more memory than this: further allocations fail with ``cudaErrorMemoryAllocation``."""
    devices = range(device_count()) if device == ANY_DEVICE else (device,)
    for each in devices:
        native.library().fake_fault_memory_limit(each, nbytes)


def fail_pinned_allocation(at: int = 1, count: int = 1) -> None:
    """Of the next allocations of pinned memory, ``count`` fail, beginning with the one numbered ``at``, from 1."""
    native.library().fake_fault_allocation(True, at - 1, count)


def fail_device_allocation(at: int = 1, count: int = 1) -> None:
    """The same for device memory, of whatever device."""
    native.library().fake_fault_allocation(False, at - 1, count)


def fail_launch(
    kernel: str = "",
    at: int = 1,
    count: int = 1,
    device: int = ANY_DEVICE,
    error: str = "cudaErrorLaunchOutOfResources",
) -> None:
    """Launches of kernels whose name contains ``kernel`` return an error, and the device goes on healthy."""
    _fail(kernel, device, at, count, error, when_run=False)


def fail_kernel(
    kernel: str = "", at: int = 1, device: int = ANY_DEVICE, error: str = "cudaErrorIllegalAddress"
) -> None:
    """A launch succeeds; when the kernel runs, the device is lost: a sticky error, as after a wild pointer."""
    _fail(kernel, device, at, 1, error, when_run=True)


def lose_device(device: int, error: str = "cudaErrorECCUncorrectable") -> None:
    """The device is lost now: no work of it runs any more, and every call that needs it returns the error."""
    native.library().fake_fault_lose(device, ERRORS[error])


def clear() -> None:
    """No faults any more; lost devices are healthy again, and have their memory. What they were to do is never done."""
    native.library().fake_fault_clear()


def device_count() -> int:
    """How many devices the fake was installed with."""
    from tests.fakecuda import counts

    return len(counts.counters().devices)


def _all_pairs() -> list[tuple[int, int]]:
    return list(itertools.permutations(range(device_count()), 2))


def _fail(kernel: str, device: int, at: int, count: int, error: str, *, when_run: bool) -> None:
    native.library().fake_fault_launch(kernel.encode(), device, at - 1, count, ERRORS[error], when_run)
