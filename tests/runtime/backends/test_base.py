"""Every backend keeps the contract of `cuplace.runtime.backends.base`: its names, what they promise."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from cuplace.runtime.backends import base
from cuplace.runtime.memory import COMPUTE, TRANSFER
from cuplace.runtime.platform import Platform
from tests.runtime.streams import ADD_ONE, compute, put, read

VALUES = np.arange(6, dtype=np.int64)


def members(protocol: type) -> dict[str, Any]:
    """The methods of a protocol by name; properties and annotated attributes have None."""
    found: dict[str, Any] = dict.fromkeys(getattr(protocol, "__annotations__", {}))
    for name, value in vars(protocol).items():
        if not name.startswith("_"):
            found[name] = value if inspect.isfunction(value) else None
    return found


def check(thing: Any, protocol: type) -> None:
    for name, method in members(protocol).items():
        assert hasattr(thing, name), f"{type(thing).__name__} has no {name}"
        if method is None:
            continue
        wanted = len(inspect.signature(method).parameters) - len(["self"])
        assert len(inspect.signature(getattr(thing, name)).parameters) == wanted, f"{type(thing).__name__}.{name}"


def test_all_names_are_there_and_take_what_they_should(platform: Platform) -> None:
    device, backend = platform.devices[0], platform.backend
    check(backend, base.Backend)
    for stream in (*device.streams(), device.transfer_to(platform.devices[1])):
        check(stream, base.Stream)
        assert stream.device is device
        assert stream.role in ("compute", "upload", "download", "move")
    latch = platform.scheduler.hold(device.compute)
    event = compute(ADD_ONE, put(device, VALUES)).writes[0]
    check(event, base.Event)
    check(latch, base.Latch)
    assert event.stream is device.compute
    latch.release()
    for arena in (COMPUTE, TRANSFER):
        check(device.memory.arenas[arena].pool, base.StoragePool)


def test_devices_have_the_platform_of_their_backend_and_a_place(platform: Platform) -> None:
    backend = platform.backend
    assert backend.device_count(3) == 3
    assert backend.device_count(None) >= 1
    places = [backend.place(i, len(platform.devices)) for i in range(len(platform.devices))]
    assert len(set(places)) == len(places)
    assert [(device.gpu, device.partition) for device in platform.devices] == places
    assert {device.platform for device in platform.devices} == {backend.device_platform}
    assert repr(platform.devices[2]) == f"{backend.device_class}(id=2)"


def test_an_event_that_is_complete_stays_so_and_is_told_by_all(platform: Platform) -> None:
    device, backend = platform.devices[0], platform.backend
    latch = platform.scheduler.hold(device.compute)
    result = compute(ADD_ONE, put(device, VALUES))
    (event,) = result.writes
    assert not event.done
    assert not backend.query(event)
    assert event.error is None
    latch.release()
    backend.synchronize(event)
    assert event.done
    assert backend.query(event)
    backend.synchronize(event)
    np.testing.assert_array_equal(read(result), VALUES + 1)


def test_a_view_is_contiguous_and_as_asked(platform: Platform) -> None:
    pool = platform.devices[0].memory.arenas[TRANSFER].pool
    storage = pool.allocate(4 * 3 * 5)
    for shape, dtype in (((3, 5), np.dtype("float32")), ((0, 4), np.dtype("int8")), ((), np.dtype("complex64"))):
        view = platform.backend.view(storage, shape, dtype)
        assert (view.shape, view.dtype) == (shape, dtype)
        assert view.flags.c_contiguous
    pool.free(storage)
    assert pool.trim() >= 0


def test_values_come_to_the_host_as_a_copy_or_in_place(platform: Platform) -> None:
    buffer = put(platform.devices[0], VALUES)
    np.testing.assert_array_equal(read(buffer), VALUES)
    copied = platform.backend.to_host(buffer.array, buffer.device)
    np.testing.assert_array_equal(copied, VALUES)
    copied[...] = 7
    np.testing.assert_array_equal(read(buffer), VALUES)
    in_place = platform.backend.host_view(buffer.array)
    assert in_place is None or np.shares_memory(in_place, buffer.array)


def test_more_memory_than_there_is_raises_memory_error(platform: Platform) -> None:
    with pytest.raises(MemoryError):
        platform.devices[0].memory.arenas[TRANSFER].pool.allocate(1 << 62)
