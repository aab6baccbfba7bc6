"""How near plans come to what links allow, on machines that are not here: `python -m bench reshard`.

Each plan is executed on the simulator, whose links are shared by the copies that are under way. Arrays are scaled
down and links are slowed down by the same factor, so that values are really moved; latencies and the cost of
enqueueing stay. The bound is computed here, from bytes alone; the naive plan copies every piece straight from the
first device that holds it, in the order of the targets.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from cuplace.placement.box import Box
from cuplace.placement.mesh import AxisType, Mesh
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import P
from cuplace.runtime.machine import Machine
from cuplace.runtime.platform import Platform, open_platform
from cuplace.runtime.presets import PRESETS
from cuplace.runtime.task import CopyTask
from cuplace.transfer.execute import move
from cuplace.transfer.plan import TransferPlan, plan_move
from cuplace.transfer.upload import upload

from .harness import Bench, Benchmark, Column, Result, Row, Table, WrongOption

SHAPE = (1024, 2048)
DTYPE = np.dtype("float32")  # 8 MiB
SCALE = 8192  # so many times larger are the arrays that the times are those of: 64 GiB
BUDGET = 1.1
MACHINES = tuple(name for name, machine in PRESETS.items() if machine.total > 1)


def scaled(machine: Machine, factor: float = SCALE) -> Machine:
    """The machine with everything that has a bandwidth so many times slower."""
    parts = {
        name: replace(part, **{key: value / factor for key, value in vars(part).items() if _is_bandwidth(key, value)})
        for name, part in vars(machine).items()
        if hasattr(part, "__dataclass_fields__")
    }
    return replace(machine, **parts)


def _is_bandwidth(name: str, value: object) -> bool:
    return name.endswith("gb_s") and value is not None


def _mesh(devices: Sequence[Any], *sizes: int) -> Mesh:
    array = np.empty(len(devices), dtype=object)
    array[:] = list(devices)
    return Mesh(array.reshape(sizes), tuple("xyz"[: len(sizes)]), (AxisType.Explicit,) * len(sizes))


def _on(devices: Sequence[Any], *spec: Any) -> NamedSharding:
    return NamedSharding(_mesh(devices, len(devices)), P(*spec))


Pair = tuple[NamedSharding, NamedSharding]


def cases(devices: Sequence[Any]) -> dict[str, Pair]:
    """Pairs of shardings over the devices of a machine: over all, over halves, over halves that overlap."""
    half = len(devices) // 2
    left, right, middle = devices[:half], devices[half:], devices[half // 2 : half // 2 + half]
    swapped = NamedSharding(_mesh(devices, 2, half), P("x", "y")), NamedSharding(_mesh(devices, half, 2), P("y", "x"))
    return {
        "same layout, other half": (_on(left, "x"), _on(right, "x")),
        "rows to columns": (_on(devices, "x", None), _on(devices, None, "x")),
        "rows to columns, other half": (_on(left, "x", None), _on(right, None, "x")),
        "sharded to replicated": (_on(devices, "x"), _on(devices)),
        "sharded to replicated, other half": (_on(left, "x"), _on(right)),
        "sharded to replicated, half to all": (_on(left, "x"), _on(devices)),
        "one to replicated, other half": (_on(devices[:1]), _on(right)),
        "replicated to sharded": (_on(devices), _on(devices, "x")),
        "replicated to sharded, other half": (_on(left), _on(right, "x")),
        "half to all": (_on(left, "x"), _on(devices, "x")),
        "all to half": (_on(devices, "x"), _on(left, "x")),
        "2 x n to n x 2, axes swapped": swapped,
        "overlapping halves": (_on(left, "x"), _on(middle, "x")),
        "overlapping, rows to columns": (_on(left, "x", None), _on(middle, None, "x")),
        "reversed": (_on(devices, "x"), _on(devices[::-1], "x")),
    }


# --- the bound ----------------------------------------------------------------------------------------------


def bound(machine: Machine, source: NamedSharding, target: NamedSharding) -> float:
    """Seconds that no way of moving the bytes beats, in which a box passes only devices that hold it or need it."""
    need = _Need(machine, source, target)
    return max([*need.ways_in(), *need.ways_out(), *need.cards(), *need.into_nodes(), *need.inside(), 0.0])


class _Need:
    """Which device lacks which box, and who holds it."""

    def __init__(self, machine: Machine, source: NamedSharding, target: NamedSharding) -> None:
        self.machine = machine
        old, new = source.layout(SHAPE), target.layout(SHAPE)
        held = {device.gpu: box for device, box in zip(source.flat_devices, old.boxes, strict=True)}
        self.all = {*held, *(device.gpu for device in target.flat_devices)}
        self.lacks: dict[int, list[tuple[int, frozenset[int]]]] = {}  # bytes, and the GPUs that hold them
        self.local: dict[int, int] = {}
        self.boxes: dict[Box, tuple[frozenset[int], set[int]]] = {}  # who holds a box, and who lacks it
        for device, wanted in zip(target.flat_devices, new.boxes, strict=True):
            own = held.get(device.gpu)
            for box in old.holders:
                part = box.intersect(wanted)
                if part is None or (own is not None and own == wanted):
                    continue
                nbytes = part.size * DTYPE.itemsize
                if own == box:
                    self.local[device.gpu] = self.local.get(device.gpu, 0) + nbytes
                    continue
                holders = frozenset(source.flat_devices[shard].gpu for shard in old.holders[box])
                self.lacks.setdefault(device.gpu, []).append((nbytes, holders))
                self.boxes.setdefault(part, (holders, set()))[1].add(device.gpu)

    def node(self, gpu: int) -> int:
        return gpu // self.machine.gpus

    @property
    def inside_rate(self) -> float:
        """Bytes a second of a GPU to or from its node: copies through the host go one at a time, each way."""
        machine = self.machine
        return 1e9 * (machine.staged.gb_s if machine.peer is None else machine.peer.gb_s)

    @property
    def card_rate(self) -> float:
        return 0.0 if self.machine.network is None else 1e9 * self.machine.network.gb_s

    def rate(self, gpu: int) -> float:
        """What a GPU sends, or receives, over all its links."""
        mates = [other for other in self.all if other != gpu and self.node(other) == self.node(gpu)]
        others = any(self.node(other) != self.node(gpu) for other in self.all)
        return (self.inside_rate if mates else 0.0) + (self.card_rate if others else 0.0)

    def ways_in(self) -> Iterator[float]:
        for gpu, parts in self.lacks.items():
            near = sum(nbytes for nbytes, holders in parts if self.node(gpu) in map(self.node, holders))
            yield near / self.inside_rate
            yield sum(nbytes for nbytes, _ in parts) / self.rate(gpu)

    def ways_out(self) -> Iterator[float]:
        """What one GPU alone holds has to leave it at least once."""
        only: dict[int, int] = {}
        for box, (holders, _) in self.boxes.items():
            if len(holders) == 1:
                (gpu,) = holders
                only[gpu] = only.get(gpu, 0) + box.size * DTYPE.itemsize
        return (nbytes / self.rate(gpu) for gpu, nbytes in only.items())

    def cards(self) -> Iterator[float]:
        """What only one GPU of a node holds or needs passes its network card, if it comes from, or is for, others."""
        sends: dict[int, int] = {}
        receives: dict[int, int] = {}
        for box, (holders, lacking) in self.boxes.items():
            nbytes = box.size * DTYPE.itemsize
            for node in set(map(self.node, lacking)) - set(map(self.node, holders)):
                inside = [gpu for gpu in lacking if self.node(gpu) == node]
                if len(inside) == 1:
                    receives[inside[0]] = receives.get(inside[0], 0) + nbytes
                if len(holders) == 1 and {self.node(gpu) for gpu in lacking} == {node}:
                    (gpu,) = holders
                    sends[gpu] = sends.get(gpu, 0) + nbytes
        return (nbytes / self.card_rate for nbytes in (*sends.values(), *receives.values()))

    def into_nodes(self) -> Iterator[float]:
        """What no GPU of a node holds has to pass the network cards of those that take part, at least once."""
        for node in set(map(self.node, self.all)):
            crossing = [
                (box.size * DTYPE.itemsize, holders)
                for box, (holders, lacking) in self.boxes.items()
                if node in map(self.node, lacking) and node not in map(self.node, holders)
            ]
            if crossing:
                total = sum(nbytes for nbytes, _ in crossing)
                yield total / (self.card_rate * sum(self.node(gpu) == node for gpu in self.all))
                yield total / (self.card_rate * sum(self.node(gpu) != node for gpu in self.all))

    def inside(self) -> Iterator[float]:
        """What stays on its GPU is read and written there."""
        return (2.0 * nbytes / (1e9 * self.machine.gpu.memory_gb_s) for nbytes in self.local.values())


# --- what it takes ------------------------------------------------------------------------------------------


def executed(platform: Platform, source: NamedSharding, target: NamedSharding) -> tuple[float, TransferPlan]:
    """Virtual seconds from the call to the last byte, and the plan; the values are checked."""
    plan = plan_move(SHAPE, DTYPE, source, target)
    return _time(platform, source, target, lambda old: move(old, plan, None)), plan


def naive(platform: Platform, source: NamedSharding, target: NamedSharding) -> float:
    """The same, of the plan that comes to mind first."""
    old, new = source.layout(SHAPE), target.layout(SHAPE)
    scheduler = platform.scheduler

    def run(buffers: list[Any]) -> list[Any]:
        made = scheduler.allocate_batch(target.flat_devices, new.shard_shape, DTYPE)
        launches = []
        for buffer, device, wanted in zip(made, target.flat_devices, new.boxes, strict=True):
            for box, shards in old.holders.items():
                part = box.intersect(wanted)
                if part is not None:
                    stream = source.flat_devices[shards[0]].transfer_to(device)
                    task = CopyTask(part.within(box), part.within(wanted), "", part.size * DTYPE.itemsize)
                    launches.append((task, stream, buffers[shards[0]], buffer))
        scheduler.submit_moves(launches)
        return made

    return _time(platform, source, target, run)


def _time(
    platform: Platform, source: NamedSharding, target: NamedSharding, run: Callable[[list[Any]], list[Any]]
) -> float:
    values = np.arange(np.prod(SHAPE), dtype=DTYPE).reshape(SHAPE)
    scheduler = platform.scheduler
    old = upload(values, source, None)
    scheduler.host_wait(old)
    with scheduler.log.record() as records:
        new = run(old)
        scheduler.host_wait(new)
    for buffer, box in zip(new, target.layout(SHAPE).boxes, strict=True):
        if not np.array_equal(scheduler.download(buffer), values[box.slices()]):
            raise AssertionError(f"{source} -> {target}: wrong values")
    if not records:
        return 0.0
    return (max(record.end for record in records) - min(record.enqueue for record in records)) * 1e-9


@dataclass(frozen=True)
class Line:
    """One line of the table; times in seconds."""

    machine: str
    case: str
    moves: int
    bound: float
    took: float
    planned: float
    naive: float

    @property
    def ratio(self) -> float:
        return self.took / self.bound if self.bound else 1.0


def measure(real: Machine, only: str = "", with_naive: bool = True) -> Iterator[Line]:
    """The lines of one machine."""
    machine = scaled(real)
    platform = open_platform("sim", machine=machine, eagerness=1.0)
    for case, (source, target) in cases(platform.devices).items():
        if only in case:
            took, plan = executed(platform, source, target)
            slow = naive(platform, source, target) if with_naive else float("nan")
            yield Line(real.name, case, plan.num_moves, bound(machine, source, target), took, plan.seconds or 0.0, slow)
    platform.close()


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="TEXT", default="", help="only cases whose name contains this text")


def run(bench: Bench) -> Result:
    """The lines of one machine, or of all."""
    machines = [PRESETS[name] for name in (("hgx-h200",) if bench.quick else MACHINES)]
    if bench.machine is not None:
        machines = [bench.machine]
    if machines[0].total == 1:
        raise WrongOption(f"--machine {machines[0].name} has one GPU, and nothing moves between devices")
    bench.progress.expect(len(machines))
    lines: list[Line] = []
    for machine in machines:
        bench.step(machine.name)
        lines += measure(machine, bench.options.only)
    if not lines:
        raise WrongOption(f"no case contains {bench.options.only!r}")
    size = np.prod(SHAPE) * DTYPE.itemsize * SCALE / 2**30
    title = f"float32 arrays of {size:.0f} GiB; naive: each piece straight from the first device that holds it"
    return Result([Table(title, COLUMNS, [_row(line) for line in lines])])


def _row(line: Line) -> Row:
    met = line.ratio <= BUDGET
    slower = line.naive / line.bound if line.bound else 1.0
    verdict = {"limit": BUDGET, "met": met, "verdict": "PASS" if met else "MISS"}
    return {**asdict(line), "ratio": line.ratio, "naive_ratio": slower, **verdict}


COLUMNS = (
    Column("machine", "machine"), Column("case", "case"), Column("moves", "moves"), Column("bound", "bound", "s"),
    Column("took", "took", "s"), Column("ratio", "ratio", "x"), Column("naive", "naive", "s"),
    Column("naive_ratio", "ratio", "x"), Column("verdict", ""),
)  # fmt: skip

BENCHMARK = Benchmark(
    "executed on the simulator, beside the least that the bytes need", run, platforms=("sim",), rounds=1, opens=False,
    options=_options, draws=False,
)  # fmt: skip
