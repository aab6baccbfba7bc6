"""The command line: `python -m cuplace` says what is here, `demo` shows it at work, `topology` and `plan` tell what
moves would take, here or on another machine, and `bench` measures."""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform as python_platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuplace.command_line import Parser, exit_status

DEMO_DEVICES = 8
LARGEST = {"devices": 1024, "microbatches": 1000, "stages": 1000, "size": 16384}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status: 0, 1 for a failure, 2 for a wrong option.

    Example:
        >>> main(["demo", "--microbatches", "1", "--size", "8"])  # doctest: +ELLIPSIS
        Platform ...
        0
    """
    parser = _parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["bench"]:
        return _bench(given[1:], f"{parser.prog} bench")
    options = parser.parse_args(given)
    command = {"demo": _demo, "topology": _topology, "plan": _plan}.get(options.command, _info)
    return exit_status(parser.prog, lambda: command(options), (ValueError, RuntimeError, MemoryError))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m cuplace", description="Say which version and which devices are here.")
    commands = parser.add_subparsers(dest="command", metavar="command", parser_class=Parser)
    commands.add_parser("info", help="version, platform and devices (the default)")
    demo = commands.add_parser(
        "demo",
        help="a pipeline over all devices, checked, with a timeline",
        description="Move microbatches through a pipeline of stages on meshes of their own, check the results "
        "against NumPy, and draw who worked when.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument("--platform", help="cuda, cpu or sim (default: as configured)", default=argparse.SUPPRESS)
    demo.add_argument(
        "--machine",
        help="machine of which the simulator tells times: a name or a TOML file, see docs/machines.md",
        default=argparse.SUPPRESS,
    )
    demo.add_argument(
        "--devices",
        type=_count("devices"),
        help=f"devices to offer (default: {DEMO_DEVICES}, or all GPUs of the machine)",
        default=argparse.SUPPRESS,
    )
    demo.add_argument("--stages", type=_count("stages"), help="stages of the pipeline", default=4)
    demo.add_argument("--microbatches", type=_count("microbatches"), help="microbatches to move", default=8)
    demo.add_argument("--size", type=_count("size"), help="rows and columns of a microbatch", default=1024)
    demo.add_argument("--svg", metavar="FILE", help="draw the timeline as a picture, too", default=argparse.SUPPRESS)
    _add_topology(commands)
    _add_plan(commands)
    commands.add_parser("bench", help="measure overlap, pipelines, moves and calls; the same as python -m bench")
    return parser


def _add_topology(commands: Any) -> None:
    parser = commands.add_parser(
        "topology",
        help="how copies travel between the devices",
        description="Show by which path copies between each two devices travel: of the platform at hand, or of a "
        "machine that is not here.",
    )
    parser.add_argument("--machine", help="a machine's name, or a TOML file, see docs/machines.md")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _add_plan(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="what a move would do, before a byte moves",
        description="Plan a move between two layouts on a machine that need not be here: its copies, how long they "
        "take, and what memory they need. A layout is MESH/SPEC/DEVICES: axes with their sizes, an axis or - for each "
        "dimension, and which GPUs.",
        epilog="example: python -m cuplace plan 'float32[4096,8192]' x=4/x,-/0-3 y=2,z=2/-,y+z/4-7 --machine hgx-h200",
    )
    parser.add_argument("array", help="dtype and shape, as float32[4096,8192]")
    parser.add_argument("source", help="where it is, as x=4/x,-/0-3; or host")
    parser.add_argument("target", help="where it shall be, as x=4/-,x/4-7")
    parser.add_argument(
        "--machine", default="hgx-h200",
        help="a machine's name, or a TOML file, see docs/machines.md (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--max-bytes", type=_bytes, help="memory to take of each device at most, as 3000000 or 2GiB")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--svg", metavar="FILE", help="write the matrix of bytes between devices as a picture")


def _bench(arguments: Sequence[str], prog: str) -> int:
    """The benchmarks, which have options of their own."""
    if importlib.util.find_spec("cuplace.bench") is not None:
        main = importlib.import_module("cuplace.bench.command").main
    else:  # a source tree that is used without being installed
        root = str(Path(__file__).resolve().parents[1])
        if root not in sys.path:
            sys.path.append(root)
        main = importlib.import_module("bench.command").main
    return int(main(arguments, prog))


def _topology(options: argparse.Namespace) -> int:
    from cuplace.runtime.survey import topology

    found = topology(options.machine)
    print(json.dumps(found.to_dict(), indent=1) if options.json else found)
    return 0


def _plan(options: argparse.Namespace) -> int:
    from cuplace.array.plan import plan
    from cuplace.array.struct import ShapeDtypeStruct
    from cuplace.demo.layouts import read_array, read_layout
    from cuplace.runtime.survey import topology

    shape, dtype = read_array(options.array)
    devices = topology(options.machine).devices
    target = read_layout(options.target, devices)
    source = options.source if options.source == "host" else read_layout(options.source, devices)
    array = ShapeDtypeStruct(shape, dtype)
    made = plan(array, target, source=source, machine=options.machine, max_bytes=options.max_bytes)
    if options.svg:
        try:
            Path(options.svg).write_text(made.svg())
        except OSError as error:
            raise ValueError(f"--svg {options.svg} cannot be written: {error.strerror}") from None
    print(json.dumps(made.to_dict(), indent=1) if options.json else f"{made}\n\n{made.matrix()}")
    return 0


def _count(name: str) -> type[int]:
    def whole_number(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= LARGEST[name]:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {LARGEST[name]}")
        return int(text)

    return whole_number  # type: ignore[return-value]


def _bytes(text: str) -> int:
    number = text.rstrip("KMGTiB")
    unit = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}.get(text[len(number) :])
    if unit is None or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes, as 3000000 or 64MiB")
    return int(number) * unit


def _demo(options: argparse.Namespace) -> int:
    from cuplace.runtime.config import config

    if "platform" in options:
        config.update("platform", options.platform)
    devices = _demo_devices(options)
    config.update("num_devices", devices)
    config.update("num_cpu_devices", devices)
    width = max(1, devices // options.stages)
    if options.size % width:
        raise ValueError(f"--size {options.size} does not split evenly over the {width} devices of a stage")

    from cuplace.demo.report import demo

    return demo(options)


def _demo_devices(options: argparse.Namespace) -> int:
    """How many devices to offer; chooses the machine on the way, where one is named."""
    from cuplace.runtime.config import config

    if "machine" not in options and config.sim_machine is None:
        return options.devices if "devices" in options else DEMO_DEVICES
    from cuplace.runtime.presets import find_machine

    if "machine" in options:
        if config.platform != "sim":
            raise ValueError(f"--machine {options.machine} needs --platform sim")
        config.update("sim_machine", options.machine)
    machine = find_machine(config.sim_machine)
    return options.devices if "devices" in options else machine.total


def _info(options: argparse.Namespace) -> int:
    import numpy

    import cuplace
    from cuplace.runtime.platform import current

    here = current()
    print(f"cuplace   {cuplace.__version__} (Python {python_platform.python_version()}, NumPy {numpy.__version__})")
    print(f"platform  {here.name}: {here.reason}")
    print(f"devices   {len(here.devices)}: {', '.join(repr(device) for device in here.devices)}")
    for number, line in enumerate(here.backend.hardware() if here.name == "cuda" else ()):
        ids = [str(device.id) for device in here.devices if device.gpu == number]
        print(f"gpu {number:<5} {line}: device{'s' if len(ids) > 1 else ''} {', '.join(ids)}")
    return 0
