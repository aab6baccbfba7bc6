"""Overlap: how much of a transfer hides behind computing, or of computing behind a transfer.

For each way that data travels, and for each ratio of computing to transfer, the two are measured alone and at once. As
much as both at once are faster than one after the other was hidden; at best that is all of the shorter one. Beside it
stands what the same machine hides without cuplace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import cuplace
from cuplace import NamedSharding, P
from cuplace.runtime.platform import activated, open_platform

from . import limits
from .bare import Bare, bare, between
from .chart import DASHED, WIDE, Chart, Panel, Series
from .figure import Figure, told
from .harness import Bench, Benchmark, Budget, Column, Result, Row, Table
from .limits import MIB, cores
from .load import Load
from .reshard import scaled

RATIOS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
"""Of computing to the transfer."""

SIZES = {"cpu": 32 * MIB, "sim": MIB, "cuda": 256 * MIB}
QUICK_SIZE = MIB
ENLARGED = 4096
"""On the simulator a byte stands for so many, so that what the links move need not be moved here."""

LONG_ENOUGH = 2e-3  # seconds; a way that is faster is taken several times, since calls take some of that
MOST_TIMES = 8
GUESSED = 1e-5  # seconds of a transfer where there are no times
ENOUGH = 0.95


@dataclass(frozen=True)
class Way:
    """A way that data travels.

    Attributes:
        name, title: of it.
        once: enqueues a transfer, and returns what is to arrive.
        bare: the names of the same copies without cuplace.
        times: how often it is taken, one right after the other.
    """

    name: str
    title: str
    once: Callable[[], list[Any]]
    bare: tuple[str, ...]
    times: int = 1

    def start(self) -> list[Any]:
        """Enqueue it as often as it is taken."""
        return [arriving for _ in range(self.times) for arriving in self.once()]

    def transfer(self) -> None:
        """The whole of it."""
        cuplace.block_until_ready(self.start())


def ways(bench: Bench, nbytes: int) -> list[Way]:
    """To and from the first device, and to another one, all of the same size; and the three at once."""
    first, second = between(bench.platform.devices)
    source = np.arange(nbytes // 4, dtype=np.float32)
    host = NamedSharding(cuplace.make_mesh((1,), ("x",), devices=[first]), P(), memory_kind="pinned_host")
    x = cuplace.block_until_ready(cuplace.device_put(source, first))
    starts: dict[str, Callable[[], Any]] = {
        "d2d": lambda: cuplace.device_put(x, second),
        "d2h": lambda: cuplace.device_put(x, host),
        "h2d": lambda: cuplace.device_put(source, first),  # the last one: the caller reads the array meanwhile
    }
    neighbour = "device to device" if first.gpu != second.gpu or bench.name == "cpu" else "partition to partition"
    found = [
        Way("h2d", "host to device", lambda: [starts["h2d"]()], ("h2d",)),
        Way("d2h", "device to host", lambda: [starts["d2h"]()], ("d2h",)),
        Way("d2d", neighbour, lambda: [starts["d2d"]()], ("d2d",)),
        Way("all", "all three at once", lambda: [start() for start in starts.values()], tuple(starts)),
    ]
    for way in found:
        for arrived in way.start():
            np.testing.assert_array_equal(np.asarray(arrived), source)
    return found


def run(bench: Bench) -> Result:
    """Measure all ways at all ratios."""
    nbytes = QUICK_SIZE if bench.quick else SIZES[bench.name]
    ratios = RATIOS[::3] if bench.quick and bench.name != "sim" else RATIOS
    bench.progress.expect(1 + 4 * len(ratios))
    bench.step("limits")
    alone = limits.measure(bench)
    rows: list[Row] = []
    with enlarged(bench) as own:
        load = Load(own)
        found = ways(own, nbytes)
        with bare(own, load, nbytes) as without:
            for way in found:
                taken, alone_s = long_enough(own, way)
                for ratio in ratios:
                    bench.step(f"{way.title}, {named(ratio)}")
                    told_of = {"way": way.name, "ratio": ratio, "times": taken.times}
                    rows.append({**told_of, **measured(own, load, taken, ratio * alone_s, without)})
    size = told(nbytes * (ENLARGED if bench.machine is not None else 1), "B")
    titles = {way.name: way.title for way in found}
    tables = [summary(rows, titles), *(_table(rows, name, title, size) for name, title in titles.items())]
    return Result(tables, alone, _budgets(bench, rows, titles), _notes(bench), _chart(bench, rows, titles, size))


def long_enough(bench: Bench, way: Way) -> tuple[Way, float]:
    """The way, taken so often that the calls are a small part of it, and how long that takes."""
    once = bench.seconds(way.transfer)
    if once is None:
        return way, GUESSED
    times = min(MOST_TIMES, math.ceil(LONG_ENOUGH / once.median))
    if times == 1 or bench.quick:
        return way, once.median
    several = replace(way, times=times)
    found = bench.seconds(several.transfer)
    return several, times * once.median if found is None else found.median


@contextmanager
def enlarged(bench: Bench) -> Iterator[Bench]:
    """The same bench; on the simulator with links that are slower by as much as the arrays stand for larger ones."""
    if bench.machine is None:
        yield bench
        return
    platform = open_platform("sim", len(bench.platform.devices), machine=scaled(bench.machine, ENLARGED))
    try:
        with activated(platform):
            yield replace(bench, platform=platform)
    finally:
        platform.close()


def measured(bench: Bench, load: Load, way: Way, seconds: float, without: Bare | None) -> Row:
    """Computing for so long, the transfer, and both at once; and the same without cuplace."""
    device = bench.platform.devices[0]

    def compute() -> None:
        device.scheduler.host_wait([load.enqueue(device, seconds)])

    def both() -> None:
        computed = load.enqueue(device, seconds)
        cuplace.block_until_ready(way.start())
        device.scheduler.host_wait([computed])

    runs: dict[str, Callable[[], None]] = {"compute": compute, "transfer": way.transfer, "both": both}
    if without is not None:
        runs["bare_compute"] = lambda: without.run((), seconds)
        runs["bare_transfer"] = lambda: without.run(way.bare * way.times)
        runs["bare_both"] = lambda: without.run(way.bare * way.times, seconds)
    samples = bench.turns(runs)
    row: Row = {name: Figure.of(found) for name, found in samples.items()}
    row["hidden"] = hidden(*(samples[name] for name in ("compute", "transfer", "both")))
    if without is not None:
        row["bare_hidden"] = hidden(*(samples[f"bare_{name}"] for name in ("compute", "transfer", "both")))
    return row


def hidden(compute: Sequence[float], transfer: Sequence[float], both: Sequence[float]) -> Figure | None:
    """The share of the smaller that was hidden, in each round. What disturbs a round may make it less than nothing, or
    more than all.

    >>> hidden([2.0], [1.0], [2.0]).median, hidden([2.0], [1.0], [2.5]).median, hidden([1.0], [1.0], [2.0]).median
    (1.0, 0.5, 0.0)
    """
    rounds = zip(compute, transfer, both, strict=True)
    return Figure.of([(one + other - at_once) / min(one, other) for one, other, at_once in rounds], "share")


def named(ratio: float) -> str:
    """A ratio as people write it.

    >>> named(1 / 8), named(4.0)
    ('1/8', '4')
    """
    return f"{ratio:g}" if ratio >= 1 else f"1/{1 / ratio:g}"


# ---------------------------------------------------------------------- what is told


def summary(rows: Sequence[Row], titles: dict[str, str]) -> Table:
    """The medians of the hidden shares: ways down, ratios across."""
    lines = []
    for name, title in titles.items():
        mine = [row for row in rows if row["way"] == name]
        for key, said in (("hidden", title), ("bare_hidden", "  without cuplace")):
            if any(key in row for row in mine):
                lines.append({"way": said, **{named(row["ratio"]): _median(row[key]) for row in mine}})
    ratios = list(dict.fromkeys(named(row["ratio"]) for row in rows))
    columns = [Column("way", "computing / transfer"), *(Column(ratio, ratio, "share") for ratio in ratios)]
    return Table("Hidden, of the shorter one of computing and transfer", columns, lines)


def _median(figure: Figure | None) -> float | None:
    return None if figure is None else figure.median


def _table(rows: Sequence[Row], name: str, title: str, size: str) -> Table:
    mine = [row for row in rows if row["way"] == name]
    times = mine[0]["times"]
    title = f"{title}, {size}{f', {times} times' if times > 1 else ''}"
    columns = [
        Column("ratio", "ratio"), Column("compute", "computing alone", "s"), Column("transfer", "transfer alone", "s"),
        Column("both", "both at once", "s"), Column("hidden", "hidden", "share"),
    ]  # fmt: skip
    if any("bare_hidden" in row for row in mine):
        columns.append(Column("bare_hidden", "without cuplace", "share"))
    return Table(title[0].upper() + title[1:], columns, [{**row, "ratio": named(row["ratio"])} for row in mine])


def _budgets(bench: Bench, rows: Sequence[Row], titles: dict[str, str]) -> list[Budget]:
    """On the processor copies and computing share cores and memory, so that only the comparison says something."""
    if bench.name == "cpu" or (bench.name == "cuda" and bench.quick):
        return []
    found = []
    for name, title in titles.items():
        shares = [_median(row["hidden"]) for row in rows if row["way"] == name]
        known = [share for share in shares if share is not None]
        least = min(known) if known else None
        found.append(Budget(f"{title}: hidden at every ratio", least, ENOUGH, "share", least=True))
    return found


def _notes(bench: Bench) -> list[str]:
    notes = ["hidden: (computing alone + transfer alone - both at once) / the shorter one of the two"]
    if bench.name == "cpu":
        many = "one core: nothing can be hidden" if cores() == 1 else f"{cores()} cores: one computes, others copy"
        notes.append(f"{many}; copies and computing share the memory's bandwidth and the caches")
        notes.append("without cuplace: the same matmuls and flat copies, each in a thread of its own")
    if bench.name == "cuda":
        notes.append("computing: a kernel that spins; without cuplace: it, and flat copies of pinned memory")
    if bench.machine is not None:
        notes.append(f"a byte stands for {ENLARGED}: links and memory are slower by that; latencies are what they are")
        enqueueing = told(bench.machine.submit_us * 1e-6, "s")
        notes.append(f"the host enqueues a piece of work in {enqueueing}, which nothing hides")
    return notes


def _chart(bench: Bench, rows: Sequence[Row], titles: dict[str, str], size: str) -> Chart | None:
    """Times in units of the transfer: what both took at once, between all hidden and nothing hidden."""
    if not bench.timed:
        return None
    where = f"{bench.machine.name}, virtual time" if bench.machine is not None else bench.name
    return Chart(
        f"What both take at once ({where}, {size})", "computing / transfer, each alone", "time / transfer alone",
        [Panel(title, _series([row for row in rows if row["way"] == name])) for name, title in titles.items()],
        subtitle="labels: the share of the shorter one that was hidden", log_x=True, log_y=True,
        x_ticks=[(ratio, named(ratio)) for ratio in dict.fromkeys(row["ratio"] for row in rows)],
    )  # fmt: skip


def _series(rows: Sequence[Row]) -> list[Series]:
    transfer, x = [row["transfer"].median for row in rows], [row["ratio"] for row in rows]
    compute = [row["compute"].median for row in rows]

    def units(values: Sequence[float]) -> list[float]:
        return [value / one for value, one in zip(values, transfer, strict=True)]

    together, longer = zip(*((a + b, max(a, b)) for a, b in zip(compute, transfer, strict=True)), strict=True)
    labels = [f"{round(row['hidden'].median, 2) + 0.0:.0%}" for row in rows]  # never -0%
    found = [
        Series("one after the other", x, units(together), DASHED),
        Series("all hidden", x, units(longer), WIDE, colour=2),
    ]
    if "bare_both" in rows[0]:
        scale = [row["bare_transfer"].median for row in rows]
        bare_both = [row["bare_both"].median / one for row, one in zip(rows, scale, strict=True)]
        found.append(Series("without cuplace", x, bare_both, DASHED, colour=1))
    low, high = ([getattr(row["both"], end) for row in rows] for end in ("low", "high"))
    both = units([row["both"].median for row in rows])
    return [*found, Series("cuplace", x, both, labels=labels, low=units(low), high=units(high), colour=0)]


BENCHMARK = Benchmark(
    "computing alone, transfer alone, both at once, and the share of the shorter one that was hidden", run,
    devices=2, least=2,
)  # fmt: skip
