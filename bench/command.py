"""The command line of the benchmarks: `python -m bench`, or `python -m cuplace bench`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from cuplace.command_line import Parser, exit_status

from .harness import Bench, Benchmark, Result, WrongOption, whole
from .settings import Settings, settle

NAMES = {
    "overlap": "how much of transfers hides behind computing, and of computing behind transfers",
    "transfer": "moves and pipelines, until they are done",
    "reshard": "plans of moves against what the links of machines allow",
    "dispatch": "what calls cost before they return",
    "compute": "operations and jitted functions against NumPy, JAX and CuPy",
    "pipeline": "the pipeline of the tour and one of training steps, against the bubble that they cannot avoid",
    "memory": "what moves and pipelines need at most",
    "scaling": "planning, dispatch and memory from 1 to 512 devices",
}
"""The benchmarks: each is the module of its name."""

_HELP = "see {} --help"


def main(arguments: Sequence[str] | None = None, prog: str = "python -m bench") -> int:
    """Run the command line; the exit status: 0, 1 for a failure, 2 for a wrong option."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--gpu-check" in given:
        given.remove("--gpu-check")
        return _gpu_check(given, prog)
    name = given[0] if given and not given[0].startswith("-") else None
    if name is None or name not in NAMES:
        return _overview(given, prog)
    benchmark: Benchmark = importlib.import_module(f".{name}", __package__).BENCHMARK
    parser = _parser(name, benchmark, f"{prog} {name}")
    options = parser.parse_args(given[1:])
    try:
        return _run(name, benchmark, settle(name, benchmark, options), parser.prog)
    except WrongOption as error:
        parser.error(str(error))


def _overview(given: list[str], prog: str) -> int:
    lines = "\n".join(f"  {name:10} {line}" for name, line in NAMES.items())
    parser = Parser(
        prog=prog, usage=f"{prog} BENCHMARK [options]\n       {prog} --gpu-check [options]",
        description=f"Measure cuplace, beside its peers and what the machine allows.\n\nbenchmarks:\n{lines}",
        epilog=f"`{prog} overlap --help` lists the options of one. --gpu-check runs all that needs a GPU.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    if given and not given[0].startswith("-"):
        parser.error(f"there is no benchmark {given[0]!r}; the benchmarks are {', '.join(NAMES)}")
    parser.parse_args(given)
    parser.print_help()
    return 0


def _parser(name: str, benchmark: Benchmark, prog: str) -> argparse.ArgumentParser:
    parser = Parser(prog=prog, description=f"{NAMES[name]}: {benchmark.title}.", allow_abbrev=False)
    platforms = ", ".join(benchmark.platforms)
    parser.add_argument("--platform", help=f"where to measure: {platforms} (default: as configured, where it can be)")
    if benchmark.machine:
        parser.add_argument("--machine", help="simulate this machine: a name or a TOML file, see docs/machines.md")
    if benchmark.opens:
        text = f"devices to offer, at least {benchmark.least} (default: {benchmark.devices}, or a machine's)"
        parser.add_argument("--devices", type=whole(1, 1024), metavar="N", help=text)
    if benchmark.peers:
        text = f"beside what: some of {','.join(benchmark.peers)}, or none (default: those that are installed)"
        parser.add_argument("--peer", metavar="NAMES", help=text)
    text = f"how often to measure (default: {benchmark.rounds}; 1 on the simulator, where nothing is noise)"
    parser.add_argument("--rounds", type=whole(1, 1000), metavar="N", help=text)
    text = "tiny sizes and few rounds, to see that it runs; virtual times stay what they are"
    parser.add_argument("--quick", action="store_true", help=text)
    parser.add_argument("--json", metavar="FILE", help="write all figures as JSON; - for standard output")
    if benchmark.draws:
        parser.add_argument("--plot", metavar="FILE.svg", help="draw the main figures")
    if "cuda" in benchmark.platforms:
        parser.add_argument("--fake", action="store_true", help="on two fake GPUs, without times; in a checkout")
    if benchmark.options is not None:
        benchmark.options(parser)
    return parser


def _run(name: str, benchmark: Benchmark, settings: Settings, prog: str) -> int:
    from . import report

    def act() -> int:
        result, record = _measure(name, benchmark, settings)
        report.write(settings, result, record)
        return 0

    return exit_status(prog, act, (ValueError, RuntimeError, MemoryError, OSError))


def _measure(name: str, benchmark: Benchmark, settings: Settings) -> tuple[Result, dict[str, Any]]:
    """What was found, and what it was found on."""
    from . import environment
    from .progress import progress

    others = environment.Others()
    steps = benchmark.steps if isinstance(benchmark.steps, int) else benchmark.steps(settings.options)
    with ExitStack() as stack:
        platform = settings.open(stack) if benchmark.opens else None
        bar = stack.enter_context(progress(name, steps))
        bench = Bench(
            platform, settings.platform, settings.options, settings.rounds, settings.options.quick, settings.peers,
            settings.timed, bar, settings.machine or getattr(getattr(platform, "backend", None), "machine", None),
        )  # fmt: skip
        result = benchmark.run(bench)
        record = {
            "benchmark": name, "title": benchmark.title, "platform": settings.platform,
            "machine": settings.machine_name(platform), "devices": None if platform is None else len(platform.devices),
            "timed": settings.timed, "virtual": benchmark.virtual, "rounds": settings.rounds,
            "quick": settings.options.quick, "peers": list(settings.peers),
            "environment": environment.describe(settings, others.share()),
        }  # fmt: skip
    return result, record


def _gpu_check(given: list[str], prog: str) -> int:
    from . import gpu_check
    from .child import top

    if not (top() / "tests" / "hardware.py").is_file():
        print(f"{prog}: --gpu-check runs the tests, so it needs a checkout of the repository", file=sys.stderr)
        return 2
    return gpu_check.main(given)
