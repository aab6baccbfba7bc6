"""Machine: what a machine can do, in figures: its GPUs, its links and its host. Simulated, or planned for."""

from __future__ import annotations

import math
import tomllib
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any

from cuplace import errors


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        tflops: float32 operations a second, in 10^12.
        memory_gb_s: bytes a second that its memory reads plus writes.
        launch_us: what a piece of work takes at least.
        copy_engines: how many copies it makes at once: with one, all copies queue for it; with two, those to the
            GPU have their own; with three, those to the host, and those to other GPUs, too. More serve other GPUs.
    """

    tflops: float
    memory_gb_s: float
    launch_us: float = 2.0
    copy_engines: int = 3


@dataclass(frozen=True)
class HostLink:
    """Between each GPU and pinned memory of the host.

    Attributes:
        up_gb_s, down_gb_s: to the GPU, and from it.
        both_gb_s: the sum of both directions when both run; their sum where it is not given.
        latency_us: what a copy takes before its first byte moves.
    """

    up_gb_s: float
    down_gb_s: float
    both_gb_s: float | None = None
    latency_us: float = 5.0


@dataclass(frozen=True)
class PeerLink:
    """Between GPUs of a node that reach one another's memory.

    Attributes:
        gb_s: of each GPU, out of it and into it: it is shared by all copies that leave, or reach, the GPU.
        latency_us: what a copy takes before its first byte moves.
        over_host_link: peer copies share the link to the host (PCIe), and ``gb_s`` is the most that one of them gets.
    """

    gb_s: float
    latency_us: float = 3.0
    over_host_link: bool = False


@dataclass(frozen=True)
class StagedPath:
    """Copies through memory of the host, where GPUs do not reach one another.

    Attributes:
        gb_s: the most that one copy gets.
        latency_us: what a copy takes before its first byte moves.
    """

    gb_s: float
    latency_us: float = 25.0


@dataclass(frozen=True)
class Network:
    """Between nodes, one network card for each GPU.

    Attributes:
        gb_s: of each card, in each direction.
        latency_us: what a copy takes before its first byte moves.
    """

    gb_s: float
    latency_us: float = 5.0


@dataclass(frozen=True)
class Machine:
    """One or more equal nodes of equal GPUs.

    Attributes:
        name: what it is called.
        gpus: GPUs of a node.
        gpu, host, staged: figures of each GPU, of its link to the host, and of copies through the host.
        peer: how GPUs of a node reach one another; None where they do not.
        network: how nodes are joined; needed where there are several.
        nodes: how many there are.
        submit_us: what it costs the host to enqueue one piece of work.
        host_memory_gb_s: bytes a second that computing on host memory, and copies inside of it, read plus write.
    """

    name: str
    gpus: int
    gpu: Gpu
    host: HostLink
    staged: StagedPath
    peer: PeerLink | None = None
    network: Network | None = None
    nodes: int = 1
    submit_us: float = 10.0
    host_memory_gb_s: float = 200.0

    @property
    def total(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus


def read_machine(path: Path) -> Machine:
    """The machine that a TOML file describes (see docs/machines.md).

    Raises:
        MachineError: a ValueError; the file is missing or not TOML, or a figure in it is missing or makes no sense.
    """
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise errors.MachineError(f"{path} cannot be read: {error.strerror}.") from None
    except tomllib.TOMLDecodeError as error:
        raise errors.MachineError(f"{path} is not TOML: {error}.") from None
    return machine_of(table, str(path), path.stem)


TABLES: dict[str, Any] = {
    "gpu": Gpu, "host": HostLink, "peer": PeerLink, "staged": StagedPath, "network": Network,
}  # fmt: skip


def machine_of(table: dict[str, Any], where: str, name: str) -> Machine:
    """The machine that a parsed TOML file describes; ``where`` names it in errors.

    Raises:
        MachineError: see ``read_machine``.
    """
    parts = {key: table[key] for key in TABLES if key in table}
    for key, part in parts.items():
        if not isinstance(part, dict):
            raise errors.MachineError(f"{where}: {key} must be a table: [{key}], then its figures.")
    for key in ("gpu", "host"):
        if key not in parts:
            raise errors.MachineError(f"{where} needs the table [{key}] with {_keys(TABLES[key])}.")
    made = {key: _record(TABLES[key], part, f"{where}: [{key}]") for key, part in parts.items()}
    host: HostLink = made["host"]
    made.setdefault("staged", StagedPath(min(host.up_gb_s, host.down_gb_s)))
    plain = {key: value for key, value in table.items() if key not in TABLES}
    machine: Machine = _record(Machine, {"name": name, **plain}, where, **made)
    if machine.nodes > 1 and machine.network is None:
        raise errors.MachineError(f"{where}: {machine.nodes} nodes need the table [network] with {_keys(Network)}.")
    return machine


def _record(kind: Any, table: dict[str, Any], where: str, **made: Any) -> Any:
    """A record of ``kind`` from a table of figures, and what has been made of its tables."""
    known = {field.name: field for field in fields(kind) if field.name not in TABLES}
    for key in table:
        if key not in known:
            raise errors.MachineError(f"{where} has no key {key!r}; the keys are {_keys(kind)}.")
    for key, field in known.items():
        if key in table:
            _check(where, key, field, table[key])
        elif field.default is MISSING:
            raise errors.MachineError(f"{where} needs {key}: {_expected(field)}.")
    return kind(**table, **made)


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text"), "bool": ((bool,), "true or false"), "int": ((int,), "a whole number of at least 1"),
    "float": ((int, float), "a number above 0"), "float | None": ((int, float), "a number above 0"),
}  # fmt: skip


def _expected(field: Field[Any]) -> str:
    return "a number of at least 0" if field.name.endswith("_us") else _KINDS[str(field.type)][1]


def _check(where: str, key: str, field: Field[Any], value: Any) -> None:
    types, _ = _KINDS[str(field.type)]
    right = isinstance(value, types) and isinstance(value, bool) == (types == (bool,))
    if right and isinstance(value, int | float) and not isinstance(value, bool):
        least_included = key.endswith("_us")
        right = math.isfinite(value) and (value > 0 or (least_included and value == 0))
    if not right:
        raise errors.MachineError(f"{where}: {key} must be {_expected(field)}, got {value!r}.")


def _keys(kind: Any) -> str:
    return ", ".join(field.name for field in fields(kind) if field.name not in TABLES)
