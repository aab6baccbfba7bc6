"""The memory report as a value: what it prints, and what it is as plain data."""

from __future__ import annotations

import json

from cuplace.runtime.usage import DeviceUsage, GpuUsage, MemoryReport, PinnedUsage

CPU = DeviceUsage("cpu:0", 1000, 200, 12_800, 0, 64, 20_000, None, 3)
GPU = GpuUsage(1, "NVIDIA H200", "GPU-1234", 1 << 30, None, 1 << 37, 1 << 36, 0)


def test_it_prints_as_a_table() -> None:
    other = DeviceUsage("cpu:10", 0, 0, 0, 0, 0, 0, 1 << 20, 0)
    assert repr(MemoryReport("cpu", (CPU, other))).splitlines() == [
        "Memory of cpu in bytes",
        "device  arrays  compute  transfer  parked  unused    peak      limit  waits",
        "cpu:0    1,000      200    12,800       0      64  20,000          -      3",
        "cpu:10       0        0         0       0       0       0  1,048,576      0",
    ]


def test_gpus_and_pinned_memory_are_tables_of_their_own() -> None:
    report = MemoryReport("cuda", (), (GPU,), PinnedUsage(10_000, 20_000, 30_000, 4))
    assert str(report).splitlines()[2:] == [
        "",
        "gpu         name            total            free        cuplace  pooled  others",
        "1    NVIDIA H200  137,438,953,472  68,719,476,736  1,073,741,824       -       0",
        "",
        "pinned: 10,000 of at most 30,000, peak 20,000, 4 waits for it",
    ]


def test_it_is_plain_data_on_request() -> None:
    report = MemoryReport("cuda", (CPU,), (GPU,), PinnedUsage(1, 2, 3, 4))
    data = json.loads(json.dumps(report.to_dict()))
    assert DeviceUsage(**data["devices"][0]) == CPU
    assert GpuUsage(**data["gpus"][0]) == GPU
    assert PinnedUsage(**data["pinned"]) == report.pinned
    assert MemoryReport("cpu", ()).to_dict() == {"platform": "cpu", "devices": [], "gpus": [], "pinned": None}
