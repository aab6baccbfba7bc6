"""Per-thread context: the default device, the context mesh, and the key that both give to dispatch caches."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from cuplace import errors
from cuplace.placement import mesh as _mesh
from cuplace.placement.mesh import EMPTY_MESH, AxisType, Mesh
from cuplace.runtime import platform as _platform
from cuplace.runtime.config import PLATFORM_NAMES, config
from cuplace.runtime.device import Device
from cuplace.runtime.levels import NO_LEVELS, Levels, configured


class ContextKey:
    """What of the context decides a call besides its operands; interned, so that identity is equality.

    Attributes:
        levels: those of the transfer guards; None where everything is allowed.
        unguarded: the same context where everything is allowed: what a call does, as opposed to whether it may.
    """

    __slots__ = ("device", "levels", "mesh", "unguarded", "x64")

    def __init__(self, device: Device, mesh: Mesh, x64: bool, levels: Levels | None) -> None:
        self.device = device
        self.mesh = mesh
        self.x64 = x64
        self.levels = levels
        self.unguarded = self if levels is None else _interned(device, mesh, x64, None)


class _Thread(threading.local):
    device: Device | None = None
    mesh: Mesh | None = None
    key: ContextKey | None = None
    seen: tuple[int, object] = (-1, None)
    levels: Levels = NO_LEVELS  # what the blocks of transfer guards say

    def __init__(self) -> None:
        self.outer_devices: list[Device | None] = []  # those that `with default_device` blocks set aside


_thread = _Thread()
_keys: dict[tuple[Device, Mesh, bool, Levels | None], ContextKey] = {}
_generation = 0


def _bump(name: str) -> None:
    global _generation
    _generation += 1


config.on_change(_bump)


def context_key() -> ContextKey:
    """The calling thread's context; the same object as long as nothing in it changes."""
    key = _thread.key
    if key is not None and _thread.seen == (_generation, _platform._current):
        return key
    return _refresh()


def _refresh() -> ContextKey:
    device = current_default_device()
    key = _interned(device, _thread.mesh or EMPTY_MESH, bool(config.enable_x64), current_levels())
    _thread.key = key
    _thread.seen = (_generation, _platform._current)
    return key


def _interned(device: Device, mesh: Mesh, x64: bool, levels: Levels | None) -> ContextKey:
    parts = (device, mesh, x64, levels)
    key = _keys.get(parts)
    if key is None:
        key = _keys[parts] = ContextKey(*parts)
    return key


def current_levels() -> Levels | None:
    """The levels of the transfer guards in this thread; None where everything is allowed."""
    levels = _thread.levels.over(configured())
    return None if levels.all_allowed else levels


def thread_levels() -> Levels:
    """The levels that blocks have set in this thread, over what the options say."""
    return _thread.levels


def set_levels(levels: Levels) -> Levels:
    """Let these hold in this thread, over what the options say; those that held before."""
    before, _thread.levels = _thread.levels, levels
    _thread.key = None
    return before


def current_default_device() -> Device:
    """Where new uncommitted arrays go: ``default_device``, else the option, else the first device."""
    if _thread.device is not None:
        return _thread.device
    configured = config.default_device
    if configured is None:
        return _platform.current().devices[0]
    return _as_device(configured)


def _as_device(value: Any) -> Device:
    if isinstance(value, Device):
        return value
    if value in PLATFORM_NAMES:
        return _platform.devices(value)[0]
    raise errors.DefaultDeviceError(value)


class default_device:
    """Context manager: new uncommitted arrays, and work on uncommitted arrays only, go to ``device``.

    ``device`` is a Device or a platform name; None restores the usual default. It holds for the calling thread;
    one object may be entered any number of times.

    Raises:
        ValueError: ``device`` is neither.
        RuntimeError: there is no such platform here.

    >>> import cuplace, cuplace.numpy as jnp
    >>> with cuplace.default_device(cuplace.devices()[-1]):
    ...     x = jnp.arange(3)
    >>> x.devices() == {cuplace.devices()[-1]}
    True
    """

    def __init__(self, device: Any) -> None:
        self._device = None if device is None else _as_device(device)

    def __enter__(self) -> None:
        _thread.outer_devices.append(_thread.device)
        _thread.device = self._device
        _thread.key = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _thread.device = _thread.outer_devices.pop()
        _thread.key = None


class set_mesh:
    """Set the context mesh of this thread: from the call on, or inside a ``with`` block.

    Under it bare PartitionSpecs are accepted as targets, and new arrays are placed on the mesh.

    Raises:
        ValueError: ``mesh`` is not a Mesh, or the call is inside ``jit``.

    >>> import cuplace
    >>> with cuplace.set_mesh(cuplace.make_mesh((1,), ("x",))):
    ...     cuplace.sharding.get_mesh().axis_names
    ('x',)
    """

    def __init__(self, mesh: Mesh | None) -> None:
        if mesh is not None and not isinstance(mesh, Mesh):
            raise errors.MeshTypeError(mesh)
        if is_tracing():
            raise errors.ContextInsideJitError("`set_mesh` can only be used outside of `jax.jit`.")
        self._before = _thread.mesh
        _thread.mesh = None if mesh is None or mesh.empty else mesh
        _thread.key = None

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _thread.mesh = self._before
        _thread.key = None


def get_mesh() -> Mesh:
    """The context mesh; an empty mesh where none is set.

    Raises:
        ContextInsideJitError: a ValueError, while a function is traced: there, types know abstract meshes only.

    >>> import cuplace
    >>> cuplace.sharding.get_mesh()
    Mesh(axis_sizes=(), axis_names=())
    """
    if is_tracing():
        raise errors.ContextInsideJitError(
            "`get_mesh` can only be used outside of `jax.jit`. Maybe you want `jax.sharding.get_abstract_mesh()`?"
        )
    return _thread.mesh or EMPTY_MESH


def context_mesh() -> Mesh | None:
    """The context mesh or None; for use in any place, also while tracing."""
    return _thread.mesh


def get_abstract_mesh() -> _mesh.AbstractMesh:
    """The abstract mesh of the context; an empty one where none is set. Also for use in traced functions.

    >>> import cuplace
    >>> with cuplace.set_mesh(cuplace.make_mesh((1,), ("x",))):
    ...     cuplace.sharding.get_abstract_mesh().axis_names
    ('x',)
    """
    return (_thread.mesh or EMPTY_MESH).abstract_mesh


def is_tracing() -> bool:
    """Whether this thread is tracing a function under ``jit``; the staging floor tells."""
    return tracing.depth > 0


class _Tracing(threading.local):
    depth: int = 0


tracing = _Tracing()
"""Raised and lowered by the staging floor around the trace of a function."""


def reset() -> None:
    """Forget this thread's context; for tests."""
    _thread.outer_devices.clear()
    _thread.device = None
    _thread.mesh = None
    _thread.levels = NO_LEVELS
    _thread.key = None


def make_mesh(
    axis_shapes: Sequence[int], axis_names: Sequence[str], axis_types: Sequence[AxisType] | None = None,
    *, devices: Sequence[Device] | None = None,
) -> Mesh:  # fmt: skip
    """A mesh of ``devices`` (default: all) in the given shape; fewer devices than given take the first.

    Axis types default to Explicit. Equal arguments give the same object.

    Raises:
        ValueError: more devices needed than there are, wrong number of names or types, duplicates.

    >>> import cuplace
    >>> cuplace.make_mesh((1,), ("x",))
    Mesh(axis_sizes=(1,), axis_names=('x',), axis_types=(Explicit,))
    """
    return _mesh.make_mesh(
        axis_shapes, axis_names, axis_types, devices=_platform.devices() if devices is None else devices
    )
