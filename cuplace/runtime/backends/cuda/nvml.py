"""What NVML tells of the memory of GPUs, found by UUID. NVML is optional: where it does not answer, nothing is told."""

from __future__ import annotations

from typing import Any, NamedTuple


class NvmlMemory(NamedTuple):
    """Memory of one GPU or MIG instance, in bytes, all processes together."""

    uuid: str
    total: int
    free: int


def read_memory(uuids: list[bytes]) -> list[NvmlMemory | None]:
    """The memory of the GPUs with these UUIDs, as CuPy tells them; None for each that NVML cannot tell of.

    NVML counts all GPUs of the machine in an order of its own, so numbers of GPUs mean nothing to it.
    """
    nothing: list[NvmlMemory | None] = [None] * len(uuids)
    try:
        import pynvml
    except ImportError:
        return nothing
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return nothing
    try:
        named = _handles(pynvml)
        return [_memory_of(pynvml, named, uuid) for uuid in uuids]
    except pynvml.NVMLError:
        return nothing
    finally:
        pynvml.nvmlShutdown()


def _handles(nvml: Any) -> dict[str, Any]:
    """What CUDA may offer as a device, by the UUID's name: GPUs, or their instances where a GPU is cut into these."""
    named: dict[str, Any] = {}
    for i in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(i)
        for handle in _instances(nvml, gpu) or [gpu]:
            named[_text(nvml.nvmlDeviceGetUUID(handle))] = handle
    return named


def _instances(nvml: Any, gpu: Any) -> list[Any]:
    try:
        if not nvml.nvmlDeviceGetMigMode(gpu)[0]:
            return []
    except nvml.NVMLError:  # a GPU without MIG
        return []
    found = []
    for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i))
        except nvml.NVMLError:  # no instance of this number
            continue
    return found


def _memory_of(nvml: Any, named: dict[str, Any], uuid: bytes) -> NvmlMemory | None:
    names = [name for name in named if _matches(name, uuid)]
    if len(names) != 1:
        return None
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(named[names[0]])
    except nvml.NVMLError:
        return None
    return NvmlMemory(names[0], int(memory.total), int(memory.free))


def _matches(name: str, uuid: bytes) -> bool:
    """Whether a name such as ``GPU-8f3bc1a2-...`` or ``MIG-...`` is that of a UUID.

    CuPy reads the 16 bytes as text, which a zero byte ends, and which goes on behind them where there is none.
    """
    try:
        whole = bytes.fromhex(name.partition("-")[2].replace("-", ""))
    except ValueError:  # the names of old drivers for instances: MIG-GPU-.../1/0
        return False
    return whole == uuid[:16] if len(uuid) >= 16 else whole.startswith(uuid + b"\0")


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
