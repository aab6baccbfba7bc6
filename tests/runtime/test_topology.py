"""Topologies: paths and links of machines, of platforms, and of devices that are not here."""

from __future__ import annotations

import pytest

from cuplace.runtime.machine import Machine
from cuplace.runtime.platform import Platform
from cuplace.runtime.presets import PRESETS
from cuplace.runtime.topology import Port, find_topology, topology_of


@pytest.mark.parametrize("machine", PRESETS.values(), ids=PRESETS)
def test_every_pair_of_a_machine_has_a_link_that_its_ports_carry(machine: Machine) -> None:
    topology = find_topology(machine)
    for source in range(machine.total):
        for target in range(machine.total):
            link = topology.link(source, target)
            assert link.path == topology.path(source, target)
            assert {port.gpu for port, _ in link.ports} == {source, target}
            assert 0 < link.most <= min(topology.capacity(port) / amount for port, amount in link.ports)


def test_paths_follow_from_the_machine() -> None:
    assert find_topology(PRESETS["hgx-h200"]).path(0, 7) == "peer"
    assert find_topology(PRESETS["pcie-8x"]).path(0, 7) == "staged"
    two = find_topology(PRESETS["two-nodes"])
    assert [two.path(0, gpu) for gpu in (0, 7, 8)] == ["local", "peer", "network"]
    assert [two.node(gpu) for gpu in (0, 7, 8, 15)] == [0, 0, 1, 1]


def test_figures_are_those_of_the_machine() -> None:
    two = find_topology(PRESETS["two-nodes"])
    assert (two.link(0, 1).most, two.link(0, 8).most) == (396e9, 50e9)
    assert two.capacity(Port("up", 3)) == 55.4e9
    assert find_topology(PRESETS["pcie-8x"]).link(0, 1).most == 36.5e9


def test_devices_of_a_machine_know_their_topology() -> None:
    topology = find_topology(PRESETS["two-nodes"])
    devices = topology.devices
    assert len(devices) == 16
    assert (repr(devices[3]), str(devices[3]), devices[3].gpu) == ("ModelDevice(id=3)", "model:3", 3)
    assert topology_of(devices[3]) is topology
    assert topology_of(object()).machine is PRESETS["hgx-h200"]


def test_a_platform_tells_the_paths_that_its_copies_take(platform: Platform) -> None:
    devices = platform.devices
    topology = topology_of(devices[0])
    for one in devices[:3]:
        for other in devices[:3]:
            stream = one.transfer_to(other)
            assert topology.path(one.gpu, other.gpu) == (stream.path or "local")


@pytest.mark.sound_links
def test_pairs_are_trusted_once_they_have_delivered(platform: Platform) -> None:
    one, other = platform.devices[0], platform.devices[7]
    topology = topology_of(one)
    assert topology.trust(one.gpu, other.gpu) is None
    one.transfer_to(other)
    expected = {"peer": True}.get(topology.path(one.gpu, other.gpu))
    assert topology.trust(one.gpu, other.gpu) == expected
