"""Compute: operations over all devices, against NumPy, JAX and CuPy, and against what memory and matmuls allow.

Arrays are spread by rows; of a product the second factor is on every device. JAX has as many devices, CuPy one GPU,
NumPy one thread for all but products. An operation is written once and runs on all of them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import cuplace
import cuplace.numpy as jnp
from cuplace import NamedSharding

from . import limits
from .chart import DASHED, Chart, Panel, Series
from .figure import Figure
from .harness import Bench, Benchmark, Budget, Column, Limit, Result, Row, Table, WrongOption

DTYPE = np.dtype(np.float32)
SIDES = {"cpu": (256, 1024, 4096), "sim": (256, 1024, 4096), "cuda": (1024, 4096, 16384)}
QUICK = (16, 64)
"""Rows of the arrays, which have twice as many columns; products have half of the rows, and are square."""

AGAINST = {"jax": 0.4, "numpy": 0.6}
"""What the jitted chain may take on the cpu, for its largest arrays, of what the peers take."""


@dataclass(frozen=True)
class Operation:
    """What is measured.

    Attributes:
        name: what tables call it.
        run: takes an array module and the operands.
        operands: how many there are.
        results: arrays as large as an operand that it writes.
        is_product: its operands are square, and it is matmuls that bound it.
        jitted: whether `jit` makes one program of it, where there is one.
    """

    name: str
    run: Callable[..., Any]
    operands: int = 1
    results: int = 1
    is_product: bool = False
    jitted: bool = False

    def shape(self, side: int) -> tuple[int, int]:
        """Of an operand."""
        return (side // 2, side // 2) if self.is_product else (side, 2 * side)

    def nbytes(self, side: int) -> int:
        """Of an operand."""
        return math.prod(self.shape(side)) * DTYPE.itemsize

    def traffic(self, side: int) -> int:
        """Bytes that it cannot but read and write."""
        return (self.operands + self.results) * self.nbytes(side)

    def flops(self, side: int) -> float:
        """Of a product; what others compute hides behind their traffic, or should."""
        return 2.0 * self.shape(side)[0] ** 3 if self.is_product else 0.0

    def values(self, side: int) -> list[np.ndarray]:
        """The operands."""
        rng = np.random.default_rng(0)
        return [rng.random(self.shape(side), DTYPE) for _ in range(self.operands)]


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("x + y", lambda xp, x, y: x + y, operands=2),
        Operation("sin(x)", lambda xp, x: xp.sin(x)),
        Operation("sum(x)", lambda xp, x: xp.sum(x), results=0),
        Operation("x @ y", lambda xp, x, y: x @ y, operands=2, is_product=True),
        Operation("jitted sin(x) + 1", lambda xp, x: xp.sin(x) + 1.0, jitted=True),
    )
}
CHAIN = OPERATIONS["jitted sin(x) + 1"]


# --- the peers, each in a process of its own ----------------------------------------------------------------


def numpy_side(name: str, side: int, rounds: int) -> list[float]:
    operation = OPERATIONS[name]
    values = operation.values(side)
    return _timed(lambda: operation.run(np, *values), rounds)


def jax_side(name: str, side: int, rounds: int, devices: int) -> list[float]:
    import jax

    if os.environ.get("JAX_PLATFORMS") == "cpu":
        jax.config.update("jax_num_cpu_devices", devices)
    run = placed(jax, OPERATIONS[name], side, jax.devices()[:devices])
    return _timed(run, rounds)


def cupy_side(name: str, side: int, rounds: int) -> list[float]:
    import cupy

    operation = OPERATIONS[name]
    values = [cupy.asarray(value) for value in operation.values(side)]
    stream = cupy.cuda.get_current_stream()
    apply = cupy.fuse(partial(operation.run, cupy)) if operation.jitted else partial(operation.run, cupy)

    def run() -> None:
        apply(*values)
        stream.synchronize()

    return _timed(run, rounds)


def _timed(run: Callable[[], Any], rounds: int) -> list[float]:
    """Seconds of so many runs, after two that warm up."""
    found = []
    for number in range(rounds + 2):
        start = time.perf_counter()
        run()
        if number > 1:
            found.append(time.perf_counter() - start)
    return found


# --- ours ---------------------------------------------------------------------------------------------------


def placed(library: Any, operation: Operation, side: int, devices: Sequence[Any]) -> Callable[[], Any]:
    """The operation by cuplace or JAX, on arrays that are spread over the devices; it waits for its result."""
    xp = jnp if library is cuplace else library.numpy
    mesh = library.make_mesh((len(devices),), ("x",), devices=devices)
    sharding = NamedSharding if library is cuplace else library.sharding.NamedSharding
    specs = [library.P("x")] + [library.P() if operation.is_product else library.P("x")] * (operation.operands - 1)
    operands = [
        library.block_until_ready(library.device_put(value, sharding(mesh, spec)))
        for value, spec in zip(operation.values(side), specs, strict=True)
    ]
    apply = partial(operation.run, xp)
    apply = library.jit(apply) if operation.jitted else apply
    return lambda: library.block_until_ready(apply(*operands))


def checked(operation: Operation, side: int, devices: Sequence[Any]) -> Callable[[], Any]:
    """Ours.

    Raises:
        AssertionError: it gives something else than NumPy.
    """
    run = placed(cuplace, operation, side, devices)
    expected = operation.run(np, *operation.values(side))
    np.testing.assert_allclose(np.asarray(run()), expected, rtol=1e-4)
    return run


# --- the limits ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rates:
    """What the machine does in a second, all devices together; None where it is not known.

    Attributes:
        traffic: bytes that are read, and written, by flat copies.
        flops: of bare matmuls.
    """

    traffic: float | None
    flops: float | None

    @classmethod
    def of(cls, bench: Bench, found: Sequence[Limit]) -> Rates:
        """From the limits of the machine: of all cores, or of one GPU for each GPU that is used."""
        names = {
            "cpu": (f"memcpy, {limits.cores()} cores", f"matmul, {limits.cores()} cores"),
            "sim": ("copy inside a GPU", "float32"),
            "cuda": ("copy inside a GPU", "float32 matmul"),
        }[bench.name]
        times = 1 if bench.name == "cpu" else len({device.gpu for device in bench.platform.devices})
        values = {limit.name: limit.value for limit in found}
        copied, flops = (_number(values.get(name)) for name in names)
        return cls(None if copied is None else 2.0 * times * copied, None if flops is None else times * flops)

    def seconds(self, operation: Operation, side: int) -> float | None:
        """The least that an operation takes, as far as traffic and matmuls bound it."""
        if self.traffic is None or (operation.is_product and self.flops is None):
            return None
        computing = operation.flops(side) / self.flops if self.flops else 0.0
        return max(operation.traffic(side) / self.traffic, computing)


def _number(value: Figure | float | None) -> float | None:
    return value.median if isinstance(value, Figure) else value


# --- all of it ----------------------------------------------------------------------------------------------


def sides(bench: Bench) -> tuple[int, ...]:
    """Rows of the arrays, all of which split evenly.

    Raises:
        WrongOption: they do not.
    """
    chosen = QUICK if bench.quick else SIDES[bench.name]
    count = len(bench.platform.devices)
    if chosen[0] // 2 % count:
        raise WrongOption(f"--devices {count}: arrays of {chosen[0] // 2} rows do not split evenly over them")
    return chosen


def run(bench: Bench) -> Result:
    chosen = sides(bench)
    bench.step("what the machine does")
    found = limits.measure(bench)
    rates = Rates.of(bench, found)
    rows = [row for operation in OPERATIONS.values() for row in measured(bench, operation, chosen, rates)]
    return Result(
        [_table(bench, rows)], limits=found, budgets=_budgets(bench, rows), notes=_NOTES, chart=_chart(bench, rows)
    )  # fmt: skip


def measured(bench: Bench, operation: Operation, chosen: Sequence[int], rates: Rates) -> Iterator[Row]:
    """A row for each size of one operation."""
    devices = list(bench.platform.devices)
    for side in chosen:
        bench.step(f"{operation.name}, {side} rows")
        ours = bench.seconds(checked(operation, side, devices))
        given: dict[str, Any] = {"name": operation.name, "side": side, "rounds": bench.rounds}
        peers = {
            "numpy": bench.beside("numpy", numpy_side, **given),
            "jax": bench.beside("jax", jax_side, **given, devices=len(devices)),
            "cupy": bench.beside("cupy", cupy_side, **given),
        }
        least = rates.seconds(operation, side)
        yield {
            "operation": operation.name, "nbytes": operation.nbytes(side), "ours": ours, "least": least,
            "share": None if ours is None or least is None else least / ours.median, **peers,
            **{f"of_{peer}": _ratio(ours, theirs) for peer, theirs in peers.items()},
        }  # fmt: skip


def _ratio(ours: Figure | None, theirs: Figure | None) -> float | None:
    return None if ours is None or theirs is None else ours.median / theirs.median


_NOTES = (
    "at least: what its bytes, read and written, take a flat copy, or its operations a bare matmul",
    "arrays that fit into caches can be quicker than flat copies of large ones",
)
_TITLES = {"numpy": "NumPy", "jax": "JAX", "cupy": "CuPy"}


def _table(bench: Bench, rows: list[Row]) -> Table:
    columns = [
        Column("operation", "operation"), Column("nbytes", "an operand", "B"), Column("ours", "cuplace", "s"),
        Column("least", "at least", "s"), Column("share", "of the limit", "share"),
    ]  # fmt: skip
    for peer in bench.peers:
        columns += [Column(peer, _TITLES[peer], "s"), Column(f"of_{peer}", "ratio", "x")]
    return Table(f"Operations over {len(bench.platform.devices)} devices", columns, rows)


def _budgets(bench: Bench, rows: list[Row]) -> list[Budget]:
    if bench.name != "cpu" or bench.quick:
        return []
    last = [row for row in rows if row["operation"] == CHAIN.name][-1]
    return [
        Budget(f"{CHAIN.name}, against {_TITLES[peer]}", last[f"of_{peer}"], most)
        for peer, most in AGAINST.items()
        if peer in bench.peers
    ]


def _chart(bench: Bench, rows: list[Row]) -> Chart | None:
    """Times over sizes, a panel an operation."""
    if not bench.timed:
        return None
    panels = []
    for name in OPERATIONS:
        mine = [row for row in rows if row["operation"] == name]
        x = [float(row["nbytes"]) for row in mine]
        series = [
            Series(title, x, [row[key].median for row in mine])
            for key, title in (("ours", "cuplace"), *((peer, _TITLES[peer]) for peer in bench.peers))
        ]
        if mine[0]["least"] is not None:
            series.append(Series("at least", x, [row["least"] for row in mine], DASHED))
        panels.append(Panel(name, series))
    return Chart("Operations, beside peers and limits", "an operand", "takes", panels, "", "B", "s", True, True)


BENCHMARK = Benchmark(
    "operations and a jitted chain over all devices, against peers, flat copies and bare matmuls", run,
    peers=("numpy", "jax", "cupy"), steps=lambda options: 1 + len(OPERATIONS) * (2 if options.quick else 3),
)  # fmt: skip
