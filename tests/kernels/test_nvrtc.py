"""Every kernel source compiles for every architecture, within its budget of registers and without spills."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kernels
from tests.kernels.conftest import absent

ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 120)
REGISTERS = 32
REGISTERS_64 = 48
"""Budgets a thread. With 32 registers all 2048 threads of a multiprocessor fit; indices of 64 bits cost more."""

_ENTRY = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.DOTALL,
)


@pytest.fixture(scope="module")
def nvrtc() -> Any:
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:
        absent("nvrtc", f"NVRTC is not installed: {error}")
    return nvrtc


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", [p for p in kernels.sources().values() if p.suffix == ".cu"], ids=lambda p: p.name)
def test_compiles_within_budget(nvrtc: Any, source: Path, architecture: int) -> None:
    text = source.read_text()
    program = nvrtc.createProgram(text, source.name, [], [])
    options = [f"--gpu-architecture=sm_{architecture}", "-std=c++17", "--ptxas-options=-v"]
    if architecture not in nvrtc.getSupportedArchs():
        pytest.skip(f"this NVRTC no longer compiles for sm_{architecture}")
    nvrtc.compileProgram(program, options)
    entries = {match[1]: tuple(map(int, match.groups()[1:])) for match in _ENTRY.finditer(nvrtc.getProgramLog(program))}
    assert set(entries) == set(re.findall(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(", text))
    for name, (stack, stores, loads, registers) in entries.items():
        assert (stack, stores, loads) == (0, 0, 0), name
        assert registers <= (REGISTERS_64 if name.endswith("_64") else REGISTERS), name
