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


def test_host_memory_is_reached_over_the_link_to_the_host_or_through_pinned_memory():
    here, there = PretendedDevice(0), PretendedDevice(4)
    for source, target in ((here, here), (here, there)):
        for pair in (("device", "pinned_host"), ("pinned_host", "device")):
            assert path_between(source, target, pair) == "host"
        for pair in (("device", "unpinned_host"), ("unpinned_host", "device")):
            assert path_between(source, target, pair) == "staged"
        for pair in (("pinned_host", "unpinned_host"), ("pinned_host", "pinned_host")):
            assert path_between(source, target, pair) == "local"
        assert path_between(source, target, ("device", None)) == path_between(source, target)
    host = PretendedDevice(0, platform="cpu")
    assert path_between(host, host, ("device", "unpinned_host")) == "local"
