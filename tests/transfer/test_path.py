from __future__ import annotations

from cuplace.transfer.path import path_between
from tests.transfer.shardings import PretendedDevice


def test_the_path_follows_from_where_the_devices_are():
    first, second, third = PretendedDevice(0), PretendedDevice(1), PretendedDevice(2)
    assert path_between(first, first) == "local"
    assert path_between(first, second) == "local"  # two partitions of one GPU
    assert path_between(first, third) == "peer"
    assert path_between(first, PretendedDevice(0, process_index=1)) == "network"
    assert path_between(PretendedDevice(0, platform="cpu"), PretendedDevice(5, platform="cpu")) == "local"
