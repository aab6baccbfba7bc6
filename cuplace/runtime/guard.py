"""Transfer guards: calls that move data, or wait, where the program did not ask for it are logged or refused.

A guard judges the call, never the state of a cache: the second reading of an array is judged like the first one,
and so is the second call of a function. On the hot path it costs one look at ``armed``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType

from cuplace.errors import TransferGuardError
from cuplace.runtime import context as _context
from cuplace.runtime.caller import caller
from cuplace.runtime.config import check_level, config
from cuplace.runtime.levels import ALLOW, Levels, configured

TO_DEVICE, BETWEEN_DEVICES, TO_HOST, SYNC, BOUNCE = Levels._fields
"""The kinds of what is guarded."""

armed: list[object] = []
"""What may forbid something, in any thread: the blocks that are entered, and the options. Mostly empty."""

_OPTIONS = object()  # stands in `armed` for the options, while they have not been read, and where they forbid

_NAMES = {
    TO_DEVICE: "host-to-device transfer",
    BETWEEN_DEVICES: "device-to-device transfer",
    TO_HOST: "device-to-host transfer",
    SYNC: "wait for the device",
    BOUNCE: "bounce through the host",
}
_INSTEAD = {
    TO_DEVICE: "Write device_put(value, sharding) for a transfer that is meant.",
    BETWEEN_DEVICES: "Write device_put(x, sharding) for a move that is meant.",
    TO_HOST: "Write device_get(x) for a transfer that is meant.",
    SYNC: "Write x.block_until_ready(), or device_get(x), where a wait is meant.",
    BOUNCE: "Choose devices that reach each other, or allow it: `with transfer_guard_host_bounce('allow')`.",
}

_log = logging.getLogger("cuplace.transfer_guard")


def judge(kind: str, explicit: bool, what: Callable[[], str]) -> None:
    """Log or refuse, as the levels of this thread say, what a call is about to do.

    Args:
        kind: one of the kinds above.
        explicit: whether it is what the call is for, as in `device_put`.
        what: describes it, for the error; called where it is needed.

    Raises:
        TransferGuardError: a RuntimeError.
    """
    if _OPTIONS in armed:
        _read_options()
    levels = _context.current_levels()
    if levels is None:
        return
    if levels.refuses(kind, explicit):
        raise TransferGuardError(_NAMES[kind], what(), f"transfer_guard_{kind}", getattr(levels, kind), _INSTEAD[kind])
    if levels.logs(kind, explicit):
        _log.warning("%s: %s at %s", _NAMES[kind], what(), caller())


def watches(kind: str) -> bool:
    """Whether a guard of this kind may log or refuse something in this thread."""
    levels = _context.current_levels()
    return levels is not None and getattr(levels, kind) not in (None, ALLOW)


def _read_options() -> None:
    if configured().all_allowed and _OPTIONS in armed:
        armed.remove(_OPTIONS)


def _heed_option(name: str) -> None:
    if (not name or name.startswith("transfer_guard")) and _OPTIONS not in armed:
        armed.append(_OPTIONS)


config.on_change(_heed_option)
_heed_option("")


class _Guard:
    """What all guards are: a context manager that sets some levels for the calling thread."""

    _kinds: tuple[str, ...] = ()

    def __init__(self, new_val: str | None) -> None:
        check_level(new_val)
        self._level = new_val
        self._before: list[Levels] = []

    def __enter__(self) -> None:
        levels = _context.thread_levels()
        armed.append(self)
        self._before.append(_context.set_levels(levels._replace(**dict.fromkeys(self._kinds, self._level))))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _context.set_levels(self._before.pop())
        armed.remove(self)


class transfer_guard(_Guard):
    """Context manager: what is done about transfers in any direction, in the calling thread.

    A transfer is *explicit* where it is what the call is for, as in `device_put` and `device_get`; it is *implicit*
    where a NumPy array or a number is combined with arrays, where an uncommitted array follows another one to its
    devices, and where values are read by ``numpy.asarray``, ``float``, ``bool``, by indexing a list, or by printing.

    Args:
        new_val: ``allow``; ``log`` or ``disallow`` for implicit transfers; ``log_explicit`` or ``disallow_explicit``
            for all of them; None for what the option ``transfer_guard`` says. What is logged is a warning of the
            logger ``cuplace.transfer_guard``.

    Raises:
        GuardLevelError: a ValueError, for another level.
        TransferGuardError: a RuntimeError, from a call in the block that is not allowed; nothing has changed then.

    >>> import numpy as np, cuplace, cuplace.numpy as jnp
    >>> x = jnp.arange(2.0)
    >>> with cuplace.transfer_guard("disallow"):
    ...     y = x + cuplace.device_put(np.float32([1, 2]))
    ...     x + np.float32([1, 2])
    Traceback (most recent call last):
    cuplace.errors.TransferGuardError: INVALID_ARGUMENT: Disallowed host-to-device transfer: ...
    """

    _kinds = (TO_DEVICE, BETWEEN_DEVICES, TO_HOST)


class transfer_guard_host_to_device(_Guard):
    """Like `transfer_guard`, for values from the host that become arrays.

    >>> import cuplace
    >>> with cuplace.transfer_guard_host_to_device("disallow"):
    ...     cuplace.numpy.arange(2) + 1
    Traceback (most recent call last):
    cuplace.errors.TransferGuardError: INVALID_ARGUMENT: Disallowed host-to-device transfer: ...
    """

    _kinds = (TO_DEVICE,)


class transfer_guard_device_to_device(_Guard):
    """Like `transfer_guard`, for moves of arrays to other devices.

    >>> import cuplace
    >>> x = cuplace.device_put(1.0, cuplace.devices()[0])
    >>> with cuplace.transfer_guard_device_to_device("disallow_explicit"):
    ...     cuplace.device_put(x, cuplace.devices()[-1])
    Traceback (most recent call last):
    cuplace.errors.TransferGuardError: INVALID_ARGUMENT: Disallowed device-to-device transfer: ...
    """

    _kinds = (BETWEEN_DEVICES,)


class transfer_guard_device_to_host(_Guard):
    """Like `transfer_guard`, for reading values on the host.

    >>> import cuplace
    >>> with cuplace.transfer_guard_device_to_host("disallow"):
    ...     float(cuplace.device_put(1.0))
    Traceback (most recent call last):
    cuplace.errors.TransferGuardError: INVALID_ARGUMENT: Disallowed device-to-host transfer: ...
    """

    _kinds = (TO_HOST,)


class transfer_guard_host_sync(_Guard):
    """Like `transfer_guard`, for calls that wait for devices.

    Waiting is explicit in `block_until_ready`, `device_get` and `iter_host`; it is implicit where values are read
    otherwise, whether or not they are there already. `transfer_guard` does not set this level.

    >>> import cuplace
    >>> with cuplace.transfer_guard_host_sync("disallow"):
    ...     bool(cuplace.device_put(1.0).block_until_ready())
    Traceback (most recent call last):
    cuplace.errors.TransferGuardError: INVALID_ARGUMENT: Disallowed wait for the device: ...
    """

    _kinds = (SYNC,)


class transfer_guard_host_bounce(_Guard):
    """Like `transfer_guard`, for copies between GPUs that do not reach each other and go through host memory.

    No call asks for that, so it is always implicit. `transfer_guard` does not set this level.

    >>> import cuplace
    >>> with cuplace.transfer_guard_host_bounce("disallow"):
    ...     cuplace.device_put(cuplace.device_put(1.0), cuplace.devices()[-1])
    Array(1., dtype=float32, weak_type=True)
    """

    _kinds = (BOUNCE,)
