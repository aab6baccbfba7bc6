"""NVML: GPUs are found by their UUIDs, whatever order NVML has; what it does not tell is no error."""

from __future__ import annotations

import importlib.util
import sys
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.runtime.backends.cuda.nvml import NvmlMemory, read_memory

ALL = [uuid.UUID(int=0x1234_5678_9ABC_DEF0_1122_3344_5566_7788 + i) for i in range(3)]
HOLE = uuid.UUID("8f3bc100-a2b3-c4d5-e6f7-1234567890ab")  # CuPy sees 8f3bc1
OTHER = uuid.UUID("8f3bc1ff-a2b3-c4d5-e6f7-1234567890ab")


class NVMLError(Exception):
    pass


class Nvml:
    """What of `pynvml` is used. GPUs have a UUID and bytes; those that are cut have instances, by number."""

    NVMLError = NVMLError

    def __init__(self, *gpus: SimpleNamespace) -> None:
        self.gpus = gpus
        self.opened = 0

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> SimpleNamespace:
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle: SimpleNamespace) -> str | bytes:
        return handle.name

    def nvmlDeviceGetMigMode(self, handle: SimpleNamespace) -> list[int]:
        if handle.instances is None:
            raise NVMLError("Not Supported")
        return [bool(handle.instances)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: SimpleNamespace) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: SimpleNamespace, index: int) -> SimpleNamespace:
        if index not in handle.instances:
            raise NVMLError("Not Found")
        return handle.instances[index]

    def nvmlDeviceGetMemoryInfo(self, handle: SimpleNamespace) -> SimpleNamespace:
        if handle.total is None:
            raise NVMLError("Unknown Error")
        return SimpleNamespace(total=handle.total, free=handle.total // 2, used=0)


def gpu(found: uuid.UUID, total: int | None = 100, instances: Any = None, kind: str = "GPU") -> SimpleNamespace:
    return SimpleNamespace(name=f"{kind}-{found}", total=total, instances=instances)


def instance(found: uuid.UUID, total: int) -> SimpleNamespace:
    return gpu(found, total, kind="MIG")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Nvml]:
    """Puts a fake in the place of `pynvml`."""

    def install(*gpus: SimpleNamespace) -> Nvml:
        nvml = Nvml(*gpus)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
        return nvml

    return install


def test_gpus_are_found_by_uuid_not_by_number(installed: Callable[..., Nvml]) -> None:
    """As with CUDA_VISIBLE_DEVICES, or CUDA's own order: the fastest first."""
    nvml = installed(*(gpu(found, 100 * i + 100) for i, found in enumerate(ALL)))
    found = read_memory([ALL[2].bytes, ALL[0].bytes])
    assert found == [NvmlMemory(f"GPU-{ALL[2]}", 300, 150), NvmlMemory(f"GPU-{ALL[0]}", 100, 50)]
    assert nvml.opened == 0


def test_instances_of_a_gpu_are_found_in_its_place(installed: Callable[..., Nvml]) -> None:
    instances = {0: instance(ALL[1], 40), 4: instance(ALL[2], 20)}
    installed(gpu(ALL[0], 100, instances))
    told = read_memory([ALL[2].bytes, ALL[1].bytes, ALL[0].bytes])
    assert told[:2] == [NvmlMemory(f"MIG-{ALL[2]}", 20, 10), NvmlMemory(f"MIG-{ALL[1]}", 40, 20)]
    assert told[2] is None, "the whole GPU's memory is not an instance's"


def test_a_gpu_that_could_be_cut_and_is_not_is_found(installed: Callable[..., Nvml]) -> None:
    installed(gpu(ALL[0], 100, {}))
    assert read_memory([ALL[0].bytes]) == [NvmlMemory(f"GPU-{ALL[0]}", 100, 50)]


def test_names_of_old_drivers_match_nothing(installed: Callable[..., Nvml]) -> None:
    old = SimpleNamespace(name=f"MIG-GPU-{ALL[1]}/1/0", total=1, instances=None)
    installed(gpu(ALL[0], 100, {0: old}), gpu(ALL[2], 300))
    assert read_memory([ALL[1].bytes, ALL[2].bytes]) == [None, NvmlMemory(f"GPU-{ALL[2]}", 300, 150)]


def test_names_may_be_bytes(installed: Callable[..., Nvml]) -> None:
    installed(SimpleNamespace(name=f"GPU-{ALL[0]}".encode(), total=100, instances=None))
    assert read_memory([ALL[0].bytes]) == [NvmlMemory(f"GPU-{ALL[0]}", 100, 50)]


def test_a_zero_byte_ends_what_cupy_tells(installed: Callable[..., Nvml]) -> None:
    assert HOLE.bytes[3] == 0
    installed(gpu(OTHER, 300), gpu(HOLE, 100))
    assert read_memory([HOLE.bytes[:3]]) == [NvmlMemory(f"GPU-{HOLE}", 100, 50)]


def test_what_is_not_the_only_one_is_not_told(installed: Callable[..., Nvml]) -> None:
    twin = uuid.UUID("8f3bc100-ffff-c4d5-e6f7-1234567890ab")
    installed(gpu(HOLE), gpu(twin))
    assert read_memory([HOLE.bytes[:3], ALL[0].bytes]) == [None, None]


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=8, unique=True), st.binary(max_size=8))
def test_a_uuid_as_cupy_reads_it_finds_its_gpu_or_none(names: list[bytes], behind: bytes) -> None:
    """CuPy reads the 16 bytes as text: up to the first zero, and beyond the end where there is none."""
    gpus = [gpu(uuid.UUID(bytes=name), i) for i, name in enumerate(names)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", Nvml(*gpus))  # type: ignore[arg-type]
        for i, told in enumerate(read_memory([(name + behind).partition(b"\0")[0] for name in names])):
            assert told is None or told.total == i


@pytest.mark.parametrize("fails", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetUUID"])
def test_an_nvml_that_does_not_answer_is_no_error(
    installed: Callable[..., Nvml], monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    nvml = installed(gpu(ALL[0]))

    def fail(*arguments: object) -> None:
        raise NVMLError("Driver/library version mismatch")

    monkeypatch.setattr(nvml, fails, fail)
    assert read_memory([ALL[0].bytes]) == [None]
    assert nvml.opened == 0


def test_a_gpu_that_does_not_answer_leaves_the_others(installed: Callable[..., Nvml]) -> None:
    installed(gpu(ALL[0], None), gpu(ALL[1]))
    assert read_memory([found.bytes for found in ALL[:2]]) == [None, NvmlMemory(f"GPU-{ALL[1]}", 100, 50)]


def test_without_the_package_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    assert read_memory([ALL[0].bytes]) == [None]


def test_the_fake_has_the_names_of_the_package() -> None:
    if importlib.util.find_spec("pynvml") is None:
        assert "pynvml" not in sys.modules
        return
    import pynvml

    used = [name for name in vars(Nvml) if name.startswith(("nvml", "NVML"))]
    assert len(used) == 10
    assert [name for name in used if not callable(getattr(pynvml, name, None))] == []
