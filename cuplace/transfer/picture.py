"""What a plan looks like: lines of text, a table and a picture of bytes between devices, plain numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuplace.placement.box import Box
    from cuplace.transfer.plan import TransferPlan

LINES_SHOWN = 16
MOST_DRAWN = 64
"""Devices up to which every pair has a cell of its own."""

_CELL, _MARGIN, _FOOT, _CAPTION = 48, 64, 24, 420
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def as_lines(plan: TransferPlan) -> list[str]:
    """A summary, then the first of its moves and aliases, one a line."""
    tos = plan.target.flat_devices
    lines = [repr(plan), *_summary(plan)]
    lines += [
        f"  {plan.device_of(move)} -> {tos[move.target]}  {index_text(move.box)}  {move.nbytes} B  {move.path}"
        + ("" if move.after is None else f", after move {move.after}")
        for move in plan.moves[:LINES_SHOWN]
    ]
    if plan.num_moves > LINES_SHOWN:
        lines.append(f"  ... {plan.num_moves - LINES_SHOWN} more")
    lines += [f"  {tos[target]}  aliased" for _, target in plan.aliases[:LINES_SHOWN]]
    if len(plan.aliases) > LINES_SHOWN:
        lines.append(f"  ... {len(plan.aliases) - LINES_SHOWN} more aliased")
    return lines


def _summary(plan: TransferPlan) -> list[str]:
    by_path: dict[str, int] = {}
    for move in plan.moves:
        by_path[move.path] = by_path.get(move.path, 0) + move.nbytes
    paths = ", ".join(f"{size_text(nbytes)} {path}" for path, nbytes in by_path.items()) or "nothing is copied"
    time = "time not known" if plan.seconds is None else f"{time_text(plan.seconds)} on {plan.topology.machine.name}"
    lines = [f"  {paths}; rounds: {plan.rounds}; {time}; {memory_text(plan)}"]
    if plan.num_moves:
        port, nbytes = max(plan.bytes_through.items(), key=lambda item: item[1] / plan.topology.capacity(item[0]))
        lines.append(f"  busiest: {port}, {size_text(nbytes)}")
    return lines


def memory_text(plan: TransferPlan) -> str:
    """What the moves take of the memory of the devices, and the bound on it."""
    peak, staging = (max(found.values(), default=0) for found in (plan.peak_bytes, plan.staging.staging_bytes))
    of_it = f" ({size_text(staging)} of it staging)" if staging else ""
    bound = "" if plan.max_bytes is None else f", bound {size_text(plan.max_bytes)}"
    return f"new memory a device: at most {size_text(peak)}{of_it}{bound}"


def as_dict(plan: TransferPlan) -> dict[str, Any]:
    """Numbers and texts only."""
    tos = plan.target.flat_devices
    return {
        "shape": list(plan.shape),
        "dtype": plan.dtype.name,
        "source": str(plan.source),
        "target": str(plan.target),
        "machine": plan.topology.machine.name if plan.topology.is_measured else None,
        "bytes": plan.nbytes,
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "peak_bytes": {str(device): nbytes for device, nbytes in plan.peak_bytes.items()},
        "staging_bytes": {str(device): nbytes for device, nbytes in plan.staging.staging_bytes.items()},
        "max_bytes": plan.max_bytes,
        "bytes_through": {str(port): nbytes for port, nbytes in plan.bytes_through.items()},
        "aliases": [list(alias) for alias in plan.aliases],
        "moves": [
            {
                "source": str(plan.device_of(move)), "target": str(tos[move.target]), "start": list(move.box.start),
                "stop": list(move.box.stop), "bytes": move.nbytes, "path": move.path, "after": move.after,
            }
            for move in plan.moves
        ],
    }  # fmt: skip


def as_text(plan: TransferPlan) -> str:
    """A table with a row for each device that sends and a column for each that receives."""
    froms, tos = _ends(plan)
    between = plan.bytes_between
    aliased = {plan.target.flat_devices[target] for _, target in plan.aliases}

    def cell(here: Any, there: Any) -> str:
        if (here, there) in between:
            return size_text(between[here, there])
        return "=" if here is there and there in aliased else "."

    rows = [["from \\ to", *map(str, tos)], *[[str(here), *[cell(here, there) for there in tos]] for here in froms]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def as_svg(plan: TransferPlan) -> str:
    """The table as squares: the darker, the more bytes; green where nothing has to be copied. Below, what memory it
    takes."""
    froms, tos = _ends(plan)
    between, most = plan.bytes_between, max(plan.bytes_between.values(), default=1)
    aliased = {plan.target.flat_devices[target] for _, target in plan.aliases}
    table = _MARGIN + _CELL * len(tos)
    width, height = max(table, _CAPTION), _MARGIN + _CELL * len(froms) + _FOOT
    left = (width - table) // 2
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    font = '''font-family="Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="10" text-anchor="middle"'''
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>', f"<title>{_escaped(repr(plan))}</title>"]
    parts.append(f'<path d="M0 0H{width}V{height}H0z" fill="#fff"/>')
    parts.append(_label(width / 2, 20, "bytes from each device (row) to each device (column)"))
    parts += [_label(left + _MARGIN + _CELL * (j + 0.5), _MARGIN - 8, str(there)) for j, there in enumerate(tos)]
    for i, here in enumerate(froms):
        y = _MARGIN + _CELL * i
        parts.append(_label(left + _MARGIN / 2, y + _CELL / 2 + 4, str(here)))
        for j, there in enumerate(tos):
            nbytes = between.get((here, there), 0)
            fill = "#c8e6c9" if here is there and there in aliased else _shade(nbytes / most)
            x = left + _MARGIN + _CELL * j
            text = size_text(nbytes) if nbytes else ("=" if here is there and there in aliased else "")
            parts.append(
                f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" fill="{fill}" stroke="#999">'
                f"<title>{_escaped(f'{here} -> {there}: {nbytes} bytes')}</title></rect>"
            )
            if text:
                parts.append(_label(x + _CELL / 2, y + _CELL / 2 + 4, text, "#fff" if nbytes > most / 2 else "#000"))
    parts.append(_label(width / 2, height - _FOOT / 3, f"rounds: {plan.rounds}; {memory_text(plan)}"))
    return "\n".join([*parts, "</svg>"])


def _ends(plan: TransferPlan) -> tuple[list[Any], list[Any]]:
    """The devices that hold the array or pass it on, and those that will hold it."""
    tos = list(plan.target.flat_devices)
    relays = {here for here, _ in plan.bytes_between}
    froms = list(dict.fromkeys([*plan.source.flat_devices, *[device for device in tos if device in relays]]))
    return froms[:MOST_DRAWN], tos[:MOST_DRAWN]


def _shade(part: float) -> str:
    red, green = round(255 - 220 * part), round(255 - 160 * part)
    return f"#{red:02x}{green:02x}ff" if part else "#ffffff"


def _label(x: float, y: float, text: str, fill: str = "#000") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{fill}">{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def index_text(box: Box) -> str:
    """A box as it would be written between brackets."""
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in zip(box.start, box.stop, strict=True)) + "]"


def size_text(nbytes: int) -> str:
    """Bytes in the unit that suits.

    >>> size_text(3 << 19), size_text(8)
    ('1.5 MiB', '8 B')
    """
    for size, unit in _UNITS:
        if nbytes >= size:
            return f"{nbytes / size:.4g} {unit}"
    return f"{nbytes} B"


def time_text(seconds: float) -> str:
    """Seconds in the unit that suits.

    >>> time_text(0.00125)
    '1.25 ms'
    """
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
