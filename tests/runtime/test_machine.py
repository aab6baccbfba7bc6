"""Machines: presets with DESIGN's figures, and files that describe others, or say what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cuplace.errors import MachineError
from cuplace.runtime.backends.sim import open_backend
from cuplace.runtime.machine import Gpu, HostLink, Machine, Network, PeerLink, StagedPath, read_machine
from cuplace.runtime.platform import Platform, open_platform
from cuplace.runtime.presets import PRESETS, find_machine

SHORT = """
gpus = 4
[gpu]
tflops = 30
memory_gb_s = 900.5
[host]
up_gb_s = 25
down_gb_s = 24
"""
LONG = """
name = "mine"
gpus = 2
nodes = 3
submit_us = 0
[gpu]
tflops = 30.5
memory_gb_s = 900
launch_us = 0.5
copy_engines = 2
[host]
up_gb_s = 25
down_gb_s = 24
both_gb_s = 40
latency_us = 1
[peer]
gb_s = 22
latency_us = 4
over_host_link = true
[staged]
gb_s = 9
latency_us = 30
[network]
gb_s = 12
latency_us = 6
"""


def read(tmp_path: Path, text: str) -> Machine:
    path = tmp_path / "box.toml"
    path.write_text(text)
    return read_machine(path)


def test_a_short_file_has_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, SHORT) == Machine("box", 4, Gpu(30, 900.5), HostLink(25, 24), StagedPath(24))


def test_a_long_file_says_everything(tmp_path: Path) -> None:
    machine = read(tmp_path, LONG)
    assert machine == Machine(
        "mine", 2, Gpu(30.5, 900, 0.5, 2), HostLink(25, 24, 40, 1), StagedPath(9, 30), PeerLink(22, 4, True),
        Network(12, 6), 3, 0,
    )  # fmt: skip
    assert machine.total == 6


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("gpus = 4", "", "needs gpus: a whole number of at least 1"),
        ("gpus = 4", "gpus = 0", "gpus must be a whole number of at least 1, got 0"),
        ("gpus = 4", "gpus = 1.5", "gpus must be a whole number of at least 1, got 1.5"),
        ("gpus = 4", "gpus = true", "gpus must be a whole number of at least 1, got True"),
        ("gpus = 4", "gpus = 4\nname = 3", "name must be a text, got 3"),
        ("gpus = 4", "gpus = 4\nnodes = 2", "2 nodes need the table [network] with gb_s, latency_us"),
        ("gpus = 4", "gpus = 4\ncards = 2", "has no key 'cards'; the keys are name, gpus, nodes, submit_us"),
        ("gpus = 4", "gpus = 4\nsubmit_us = -1", "submit_us must be a number of at least 0, got -1"),
        ("gpus = 4", "gpus = 4\npeer = 3", "peer must be a table: [peer], then its figures"),
        ("tflops = 30", "", "[gpu] needs tflops: a number above 0"),
        ("tflops = 30", "tflop = 30", "[gpu] has no key 'tflop'; the keys are tflops, memory_gb_s"),
        ("tflops = 30", "tflops = 'many'", "[gpu]: tflops must be a number above 0, got 'many'"),
        ("tflops = 30", "tflops = 0", "[gpu]: tflops must be a number above 0, got 0"),
        ("tflops = 30", "tflops = inf", "[gpu]: tflops must be a number above 0, got inf"),
        ("tflops = 30", "tflops = nan", "[gpu]: tflops must be a number above 0, got nan"),
        ("[host]", "[net]", "needs the table [host] with up_gb_s, down_gb_s"),
        ("up_gb_s = 25", "up_gb_s = 25\n[peer]", "needs down_gb_s: a number above 0"),
        ("[gpu]", "[gpu", "is not TOML"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, before: str, after: str, text: str) -> None:
    with pytest.raises(MachineError) as caught:
        read(tmp_path, SHORT.replace(before, after, 1))
    assert str(tmp_path / "box.toml") in str(caught.value)
    assert text in str(caught.value)


def test_a_flag_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="over_host_link must be true or false, got 1"):
        read(tmp_path, LONG.replace("over_host_link = true", "over_host_link = 1"))


def test_a_machine_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"There is no machine 'cray'. The machines are one-gpu, pcie-8x, dgx-a100"):
        find_machine("cray")
    with pytest.raises(MachineError, match=r"absent.toml cannot be read: No such file"):
        find_machine(str(tmp_path / "absent.toml"))


def test_presets_have_the_figures_that_were_measured() -> None:
    assert list(PRESETS) == ["one-gpu", "pcie-8x", "dgx-a100", "dgx-h100", "hgx-h200", "two-nodes"]
    assert all(name == machine.name for name, machine in PRESETS.items())
    links = {name: machine.peer and machine.peer.gb_s for name, machine in PRESETS.items()}
    assert links == {
        "one-gpu": None, "pcie-8x": None, "dgx-a100": 276, "dgx-h100": 374, "hgx-h200": 396, "two-nodes": 396,
    }  # fmt: skip
    assert PRESETS["dgx-a100"].host == HostLink(26.0, 26.0, 37.2)
    assert PRESETS["dgx-h100"].host == PRESETS["pcie-8x"].host == HostLink(55.4, 55.1)
    assert PRESETS["pcie-8x"].staged == StagedPath(36.5, 25.0)
    assert PRESETS["hgx-h200"].gpu.memory_gb_s == 4300
    assert PRESETS["two-nodes"].network == Network(50)
    assert PRESETS["two-nodes"].total == 16
    assert {machine.submit_us for machine in PRESETS.values()} == {10.0}


def test_a_chosen_machine_has_its_gpus() -> None:
    assert len(open_platform("sim", machine="two-nodes").devices) == 16
    assert len(open_platform("sim", machine="one-gpu").devices) == 1
    devices = open_platform("sim", 8, machine="one-gpu").devices
    assert [(device.gpu, device.partition) for device in devices] == [(0, i) for i in range(8)]
    devices = open_platform("sim", 3, machine="dgx-a100").devices
    assert [(device.gpu, device.partition) for device in devices] == [(0, 0), (1, 0), (2, 0)]
    devices = Platform(open_backend(machine=replace(PRESETS["one-gpu"], gpus=2)), 5).devices
    assert [(device.gpu, device.partition) for device in devices] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_without_a_machine_each_device_is_a_gpu() -> None:
    devices = open_platform("sim", 20).devices
    assert [(device.gpu, device.partition) for device in devices] == [(i, 0) for i in range(20)]
    assert devices[0].transfer_to(devices[19]).path == "peer"
