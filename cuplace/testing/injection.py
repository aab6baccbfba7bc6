"""Faults on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cuplace import errors
from cuplace.array.route import route
from cuplace.runtime.device import Device
from cuplace.runtime.faults import Faults
from cuplace.runtime.platform import current
from cuplace.transfer.execute import forget_paths

__all__ = ["faults"]


@contextmanager
def faults(
    *,
    no_p2p: bool | Iterable[Any] = (),
    corrupt_pair: Iterable[Any] = (),
    slow_link: Mapping[tuple[Any, Any], float] | None = None,
    fail_op: str | tuple[str, int] | None = None,
    oom_after: int | None = None,
) -> Iterator[None]:
    """Let things go wrong inside the ``with`` block, on the devices of the current platform.

    A pair is (source, target), two devices or their ids. Programs survive the first three faults, which only cost
    time, and need the simulator or GPUs; the other two, which work on every platform, are told where results are waited
    for, or at once. An inner block takes the place of an outer one.

    Args:
        no_p2p: pairs of GPUs that do not reach each other's memory, or one such pair, or True for all: their copies
            go through the host.
        corrupt_pair: pairs, or one pair, whose direct copies deliver zeros, as some machines with an IOMMU do. Each
            pair is tried out before it is trusted, so their copies go through the host.
        slow_link: how many times slower copies of a pair are: ``{(0, 1): 10.0}``. A GPU spins before each copy, as
            long as fast links make it; the simulator knows how long it is.
        fail_op: the operation, or the jitted function, that fails with InjectedFaultError, by name, each time; or
            ``(name, n)``: only the n-th time, from 1.
        oom_after: so many allocations succeed, those of memory that is used again included, then there is no memory
            left on any device.

    Raises:
        FaultError: a ValueError; an argument makes no sense.
        NoFaultsError: a RuntimeError; links are to fail, and the current platform is cpu.

    Example::

        with cuplace.testing.faults(fail_op=("step", 3)):
            with pytest.raises(cuplace.errors.InjectedFaultError):
                train(batches)
    """
    platform = current()
    wanted = Faults(
        no_p2p if isinstance(no_p2p, bool) else _pairs("no_p2p", no_p2p, platform.devices),
        _pairs("corrupt_pair", corrupt_pair, platform.devices),
        _slowdowns(slow_link or {}, platform.devices),
        _failing(fail_op),
        _count(oom_after),
    )
    before = platform.set_faults(wanted)
    _plan_anew()
    try:
        yield
    finally:
        platform.set_faults(before)
        _plan_anew()


def _plan_anew() -> None:
    route.cache_clear()
    forget_paths()


def _pairs(name: str, given: Iterable[Any], devices: tuple[Device, ...]) -> list[tuple[int, int]]:
    """Pairs of GPUs, from pairs of devices or ids, or from a single pair."""
    pairs = list(given)
    if len(pairs) == 2 and not any(isinstance(item, tuple | list) for item in pairs):
        pairs = [tuple(pairs)]
    return [_pair(name, pair, devices) for pair in pairs]


def _pair(name: str, pair: Any, devices: tuple[Device, ...]) -> tuple[int, int]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise errors.FaultError(name, pair, "a pair of devices or of their ids")
    ids = [end.id if isinstance(end, Device) else end for end in pair]
    for end in ids:
        if not isinstance(end, int) or isinstance(end, bool) or not 0 <= end < len(devices):
            raise errors.FaultError(name, pair, f"a pair of devices, or of ids from 0 to {len(devices) - 1}")
    return devices[ids[0]].gpu, devices[ids[1]].gpu


def _slowdowns(given: Mapping[tuple[Any, Any], float], devices: tuple[Device, ...]) -> dict[tuple[int, int], float]:
    if not isinstance(given, Mapping):
        raise errors.FaultError("slow_link", given, "a dict from pairs to how many times slower they are")
    for slowdown in given.values():
        if not isinstance(slowdown, int | float) or not slowdown >= 1:
            raise errors.FaultError("slow_link", slowdown, "how many times slower a pair is, at least 1")
    return {_pair("slow_link", pair, devices): float(slowdown) for pair, slowdown in given.items()}


def _failing(given: str | tuple[str, int] | None) -> tuple[str, int] | None:
    if given is None:
        return None
    if isinstance(given, str):
        return given, 0
    if isinstance(given, tuple) and [type(part) for part in given] == [str, int] and given[1] >= 1:
        return given
    raise errors.FaultError("fail_op", given, "a name, or (name, n) with n from 1")


def _count(given: int | None) -> int | None:
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 0):
        raise errors.FaultError("oom_after", given, "a number of allocations, from 0")
    return given
