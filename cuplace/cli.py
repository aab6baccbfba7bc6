"""The command line: `python -m cuplace` says what is here, `python -m cuplace demo` shows it at work."""

from __future__ import annotations

import argparse
import os
import platform as python_platform
import sys
from collections.abc import Sequence
from typing import NoReturn

DEMO_DEVICES = 8
LARGEST = {"devices": 1024, "microbatches": 1000, "stages": 1000, "size": 16384}


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status: 0, 1 for a failure, 2 for a wrong option.

    Example:
        >>> main(["demo", "--microbatches", "1", "--size", "8"])  # doctest: +ELLIPSIS
        Platform ...
        0
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if options.command == "demo":
            return _demo(options)
        return _info()
    except BrokenPipeError:
        # The reader of our output has left; Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"\n{parser.prog}: interrupted", file=sys.stderr)
        return 130
    except (ValueError, RuntimeError, MemoryError) as error:
        print(f"{parser.prog}: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m cuplace", description="Say which version and which devices are here.")
    commands = parser.add_subparsers(dest="command", metavar="command", parser_class=_Parser)
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
    return parser


def _count(name: str) -> type[int]:
    def whole_number(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= LARGEST[name]:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {LARGEST[name]}")
        return int(text)

    return whole_number  # type: ignore[return-value]


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


def _info() -> int:
    import numpy

    import cuplace
    from cuplace.runtime.platform import current

    here = current()
    print(f"cuplace   {cuplace.__version__} (Python {python_platform.python_version()}, NumPy {numpy.__version__})")
    print(f"platform  {here.name}: {here.reason}")
    print(f"devices   {len(here.devices)}: {', '.join(repr(device) for device in here.devices)}")
    return 0
