"""What a device has: streams and memory. Who it is, is tested with its platform."""

from __future__ import annotations

import numpy as np
import pytest

from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform
from tests.runtime.streams import move, put, read

pytestmark = pytest.mark.order(once=True)


def test_streams_are_made_once(platform: Platform) -> None:
    device, other = platform.devices[:2]
    assert device.streams() == [device.compute, device.upload, device.download]
    there, within = device.transfer_to(other), device.transfer_to(device)
    assert device.streams()[3:] == [there, within]
    assert other.transfer_to(device) is not there
    assert len({*device.streams(), *other.streams()}) == 9
    assert [stream.role for stream in device.streams()] == ["compute", "upload", "download", "move", "move"]
    assert all(stream.device is device for stream in device.streams())


def test_a_move_within_a_device_is_a_copy(platform: Platform) -> None:
    device = platform.devices[0]
    source = put(device, np.arange(5))
    copied = move(source, device)
    platform.scheduler.upload(source, np.zeros(5, np.int64))
    np.testing.assert_array_equal(read(copied), np.arange(5))


def test_memory_stats(platform: Platform) -> None:
    device = platform.devices[0]
    assert device.memory_stats() == {"bytes_in_use": 0, "bytes_parked": 0, "peak_bytes": 0, "memory_waits": 0}
    kept = put(device, np.zeros(100))
    config.update("max_device_bytes", 5000)
    assert device.memory_stats() == {
        "bytes_in_use": 800, "bytes_parked": 0, "peak_bytes": 800, "memory_waits": 0, "bytes_limit": 5000,
    }  # fmt: skip
    platform.scheduler.host_wait([kept])
    del kept
    assert device.memory_stats()["bytes_in_use"] == 0
    assert device.memory_stats()["peak_bytes"] == 800
