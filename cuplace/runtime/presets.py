"""Machines that are known by name, with the figures that copies reach, one way.

Sources: NVIDIA's data sheets (float32 rates without tensor cores; memory, of which a copy was measured to reach 4,300
of 4,800 GB/s on H200, taken for all as 0.9); measured copies over NVLink (A100 276, H100 371 to 377, H200 396 GB/s),
pinned copies over PCIe (generation 4: 26.0 GB/s, 18.6 each way when both run; generation 5: 55.4 up, 55.1 down), and
copies through the host between H100 that have no peer access (36 to 37 GB/s, about 25 us). What a launch takes, and
the latencies of other links, are assumed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cuplace import errors
from cuplace.runtime.machine import Gpu, HostLink, Machine, Network, PeerLink, StagedPath, read_machine

A100 = Gpu(tflops=19.5, memory_gb_s=1_835)
H100 = Gpu(tflops=67, memory_gb_s=3_015)
H100_PCIE = Gpu(tflops=51, memory_gb_s=1_800)
H200 = Gpu(tflops=67, memory_gb_s=4_300)

GEN4 = HostLink(up_gb_s=26.0, down_gb_s=26.0, both_gb_s=37.2)
GEN5 = HostLink(up_gb_s=55.4, down_gb_s=55.1)

HGX_H200 = Machine("hgx-h200", 8, H200, GEN5, StagedPath(36.5), PeerLink(396))

PRESETS = {
    machine.name: machine
    for machine in (
        Machine("one-gpu", 1, H100, GEN5, StagedPath(36.5)),
        Machine("pcie-8x", 8, H100_PCIE, GEN5, StagedPath(36.5)),
        Machine("dgx-a100", 8, A100, GEN4, StagedPath(18.6), PeerLink(276)),
        Machine("dgx-h100", 8, H100, GEN5, StagedPath(36.5), PeerLink(374)),
        HGX_H200,
        replace(HGX_H200, name="two-nodes", nodes=2, network=Network(50)),
    )
}


def find_machine(name: str) -> Machine:
    """The machine of this name, or of this TOML file.

    Raises:
        MachineError: a ValueError; there is no such machine, or its file is wrong.
    """
    if name in PRESETS:
        return PRESETS[name]
    if name.endswith(".toml"):
        return read_machine(Path(name))
    raise errors.MachineError(
        f"There is no machine {name!r}. The machines are {', '.join(PRESETS)}; a file that describes another one "
        "has a name that ends in .toml (see docs/machines.md)."
    )
