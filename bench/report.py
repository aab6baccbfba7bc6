"""What a benchmark found, as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import environment
from .figure import Figure, cell
from .harness import Budget, Limit, Result, Row, Table
from .svg import svg_text

if TYPE_CHECKING:
    from .settings import Settings

WIDTH = 100  # of notes
BUSY = 0.15  # of the processors, by others: so much spoils the figures


def write(settings: Settings, result: Result, record: dict[str, Any]) -> None:
    """Print the text, and write the files that were asked for."""
    options = settings.options
    told = json.dumps({**record, **as_dict(result)}, indent=1)
    if options.json == "-":
        print(told)
    else:
        print(text(result, record, settings.notes), end="")
    if options.json not in (None, "-"):
        Path(options.json).write_text(told + "\n")
    plot = getattr(options, "plot", None)
    if plot is not None:
        if result.chart is None:
            raise ValueError("--plot: there is nothing to draw without times")
        Path(plot).write_text(svg_text(result.chart))


# ---------------------------------------------------------------------- JSON


def as_dict(result: Result) -> dict[str, Any]:
    """Tables by title, limits and budgets; a figure is its median, low and high, in the unit of its column."""
    return {
        "tables": [
            {"title": table.title, "units": {column.key: column.unit for column in table.columns},
             "rows": [{key: _plain(value) for key, value in row.items()} for row in table.rows]}
            for table in result.tables
        ],
        "limits": [{"name": limit.name, "unit": limit.unit, "value": _plain(limit.value)} for limit in result.limits],
        "budgets": [
            {"name": budget.name, "unit": budget.unit, "value": budget.value, "limit": budget.limit,
             "least": budget.least, "met": budget.met}
            for budget in result.budgets
        ],
        "notes": list(result.notes),
    }  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, Figure):
        return {"median": value.median, "low": value.low, "high": value.high}
    return value


# ---------------------------------------------------------------------- text


def text(result: Result, record: dict[str, Any], notes: Iterable[str] = ()) -> str:
    """What is printed."""
    lines = _head(record)
    for table in result.tables:
        lines += ["", *table_lines(table)]
    if result.limits:
        lines += ["", "What the machine does by itself", *_limits(result.limits)]
    if result.budgets:
        lines += ["", "Budgets", *_budgets(result.budgets)]
    said = [*notes, *result.notes, *_busy(record)]
    if said:
        lines += ["", *(line for note in said for line in textwrap.wrap(note, WIDTH, subsequent_indent="  "))]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _head(record: dict[str, Any]) -> list[str]:
    machine, software = environment.lines(record["environment"])
    where = record["platform"]
    if not record["timed"]:
        where += " on fake GPUs, which have no times"
    elif where == "sim" and not record["virtual"]:
        where += ", in processor time of the host"
    elif where == "sim":
        where += ", in virtual time" + (f" on {record['machine']}" if record["machine"] else "")
    devices = "" if record["devices"] is None else f"; {record['devices']} devices"
    spread = "; medians [lowest..highest]" if record["timed"] and record["rounds"] > 1 else ""
    rounds = f"; {record['rounds']} round{'' if record['rounds'] == 1 else 's'}{spread}"
    return [
        f"{record['benchmark']}: {record['title']}",
        f"Platform  {where}{devices}{rounds}",
        f"Machine   {machine}",
        f"Software  {software}",
    ]


def table_lines(table: Table) -> list[str]:
    """Columns as wide as they need; the first is flush left, and so are words; numbers are flush right."""
    cells = [[cell(row.get(column.key), column.unit) for column in table.columns] for row in table.rows]
    left = [i == 0 or _has_words(column.key, table.rows) for i, column in enumerate(table.columns)]
    heads = [column.title for column in table.columns]
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(heads))]

    def joined(line: list[str]) -> str:
        parts = zip(line, widths, left, strict=True)
        return "  " + "  ".join(f"{part:<{width}}" if flush else f"{part:>{width}}" for part, width, flush in parts)

    return [table.title, joined(heads), *map(joined, cells)]


def _has_words(key: str, rows: Iterable[Row]) -> bool:
    return any(isinstance(row.get(key), str) and row[key][:1].isalpha() for row in rows)


def _limits(limits: Iterable[Limit]) -> list[str]:
    found = [(limit.name, cell(limit.value, limit.unit)) for limit in limits]
    width = max(len(name) for name, _ in found)
    return [f"  {name:{width}}  {value}" for name, value in found]


def _budgets(budgets: Iterable[Budget]) -> list[str]:
    found = list(budgets)
    width = max(len(budget.name) for budget in found)
    verdicts = {True: "PASS", False: "MISS", None: "-"}
    return [
        f"  {budget.name:{width}}  {cell(budget.value, budget.unit):>9}  {'at least' if budget.least else 'at most':8} "
        f"{cell(budget.limit, budget.unit):>7}  {verdicts[budget.met]}"
        for budget in found
    ]


def _busy(record: dict[str, Any]) -> list[str]:
    """A warning where the machine had something else to do."""
    others = record["environment"]["busy"]
    if others is None or others <= BUSY or not record["timed"] or record["platform"] == "sim":
        return []
    return [f"Others kept {others:.0%} of the processors busy meanwhile: these times say little."]
