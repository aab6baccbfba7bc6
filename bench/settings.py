"""Settings: what the options of a benchmark come to, on which platform, with which peers; all checked before anything
runs."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .harness import Benchmark, WrongOption

PLATFORMS = ("cpu", "sim", "cuda")
QUICK_ROUNDS = 2
INSTALL = {"jax": "jax", "numpy": "numpy", "cupy": "'cuplace[cuda12]' or 'cuplace[cuda13]'"}


@dataclass(frozen=True)
class Settings:
    """What is measured, on what.

    Attributes:
        platform: `cpu`, `sim` or `cuda`.
        devices: how many to offer.
        machine: the machine that is simulated, and told times for; None for the platform's own.
        rounds, peers: as asked for, or by default.
        timed: whether there are times; not on fake GPUs.
        options: all options.
        notes: what a person should know of these settings.
    """

    platform: str
    devices: int
    machine: Any
    rounds: int
    peers: tuple[str, ...]
    timed: bool
    options: argparse.Namespace
    notes: tuple[str, ...] = ()

    def open(self, stack: ExitStack) -> Any:
        """The platform, opened and made the current one until the stack ends."""
        from cuplace.runtime.platform import activated, open_platform

        if not self.timed:
            from cuplace.runtime.backends.cuda import hooks
            from tests import fakecuda

            fakecuda.install(devices=2, mode="eager")
            hooks.library = fakecuda.library_call  # no cuBLAS runs there
        given = {"machine": self.machine} if self.platform == "sim" else {}
        opened = open_platform(self.platform, self.devices, reason="chosen by the benchmark", **given)
        stack.callback(opened.close)
        return stack.enter_context(activated(opened))

    def machine_name(self, opened: Any) -> str | None:
        """The simulated machine; None where there is none, or several."""
        if self.machine is not None:
            return str(self.machine.name)
        return opened.backend.machine.name if self.platform == "sim" and opened is not None else None


def settle(name: str, benchmark: Benchmark, options: argparse.Namespace) -> Settings:
    """Check the options.

    Raises:
        WrongOption: they ask for what is not there.
    """
    machine = _machine(options)
    fake = getattr(options, "fake", False)
    platform = _platform(name, benchmark, options, machine is not None, fake)
    peers, notes = _peers(name, benchmark, options, platform)
    plot = getattr(options, "plot", None)
    for option, path in (("--json", options.json), ("--plot", plot)):
        _check_file(option, path)
    if plot is not None and not plot.endswith(".svg"):
        raise WrongOption(f"--plot {plot}: the name of the picture must end in .svg")
    return Settings(
        platform, _devices(name, benchmark, options, machine), machine, _rounds(benchmark, options, platform), peers,
        not fake, options, notes,
    )  # fmt: skip


def _machine(options: argparse.Namespace) -> Any:
    if getattr(options, "machine", None) is None:
        return None
    from cuplace.runtime.presets import find_machine

    try:
        return find_machine(options.machine)
    except ValueError as error:
        raise WrongOption(str(error).splitlines()[0]) from None


def _platform(name: str, benchmark: Benchmark, options: argparse.Namespace, simulated: bool, fake: bool) -> str:
    asked: str | None = options.platform
    if asked is None:
        asked = "sim" if simulated else "cuda" if fake else _configured(benchmark.platforms)
    if asked not in PLATFORMS:
        raise WrongOption(f"there is no platform {asked!r}; the platforms are {', '.join(PLATFORMS)}")
    if asked not in benchmark.platforms:
        raise WrongOption(f"{name} runs on {' and '.join(benchmark.platforms)}, not on {asked}")
    if simulated and asked != "sim":
        raise WrongOption(f"--machine {options.machine} needs --platform sim, which simulates it")
    if fake and asked != "cuda":
        raise WrongOption("--fake needs --platform cuda")
    if asked == "cuda":
        _check_gpus(fake)
    return asked


def _configured(platforms: tuple[str, ...]) -> str:
    """What is measured where nothing is asked for."""
    from cuplace.runtime.config import config

    if config.platform in platforms:
        return str(config.platform)
    if "cuda" in platforms and config.platform is None and _no_gpus() is None:
        return "cuda"
    return platforms[0]


def _no_gpus() -> str | None:
    """Why no GPU can be used."""
    from cuplace.runtime.backends.cuda import find_gpus

    found = find_gpus()
    return None if found.gpus else found.reason


def _check_gpus(fake: bool) -> None:
    if not fake:
        reason = _no_gpus()
        if reason is not None:
            raise WrongOption(f"--platform cuda: {reason}")
        return
    if importlib.util.find_spec("tests") is None or importlib.util.find_spec("tests.fakecuda") is None:
        raise WrongOption("--fake needs a checkout of the repository, whose tests hold the fake GPUs")
    from tests import fakecuda

    reason = fakecuda.missing()
    if reason is not None:
        raise WrongOption(f"--fake: {reason}")


def _devices(name: str, benchmark: Benchmark, options: argparse.Namespace, machine: Any) -> int:
    asked: int | None = getattr(options, "devices", None)
    if asked is None:
        return max(benchmark.least, benchmark.devices if machine is None else machine.total)
    if asked < benchmark.least:
        raise WrongOption(f"{name} needs at least {benchmark.least} devices, --devices is {asked}")
    return asked


def _rounds(benchmark: Benchmark, options: argparse.Namespace, platform: str) -> int:
    if options.rounds is not None:
        return int(options.rounds)
    if platform == "sim":
        return 1
    return min(QUICK_ROUNDS, benchmark.rounds) if options.quick else benchmark.rounds


def _peers(
    name: str, benchmark: Benchmark, options: argparse.Namespace, platform: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The peers, and what to say of those that are missing."""
    asked: str | None = getattr(options, "peer", None)
    if asked == "none":
        return (), ()
    if asked is None:
        lacks = {peer: _lack(peer, platform, getattr(options, "fake", False)) for peer in benchmark.peers}
        absent = [f"{peer} is left out: {why}" for peer, why in lacks.items() if why and _could(peer, platform)]
        return tuple(peer for peer, why in lacks.items() if why is None), tuple(absent)
    peers = tuple(dict.fromkeys(part.strip() for part in asked.split(",")))
    for peer in peers:
        if peer not in benchmark.peers:
            raise WrongOption(f"--peer {peer}: {name} has {_listed(benchmark.peers)}")
        why = _lack(peer, platform, getattr(options, "fake", False))
        if why is not None:
            raise WrongOption(f"--peer {peer}: {why}")
    return peers, ()


def _could(peer: str, platform: str) -> bool:
    """Whether the platform is one of the peer's, too."""
    return platform == "cuda" if peer == "cupy" else platform != "sim"


def _lack(peer: str, platform: str, fake: bool) -> str | None:
    """Why a peer cannot be measured."""
    if platform == "sim":
        return "only cuplace runs in virtual time"
    if fake:
        return "only cuplace runs on fake GPUs"
    if peer == "cupy" and platform != "cuda":
        return "it needs --platform cuda"
    if importlib.util.find_spec(peer) is None:
        return f"it is not installed (pip install {INSTALL[peer]})"
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    if peer == "jax" and platform == "cuda" and not any(map(importlib.util.find_spec, plugins)):
        return "it is installed without CUDA (pip install 'jax[cuda12]')"
    return None


def _listed(names: Iterable[str]) -> str:
    found = tuple(names)
    return f"the peers {', '.join(found)}" if len(found) > 1 else f"the peer {found[0]}"


def _check_file(option: str, path: str | None) -> None:
    if path is None or path == "-":
        return
    if Path(path).is_dir():
        raise WrongOption(f"{option} {path} is a folder")
    if not Path(path).parent.is_dir():
        raise WrongOption(f"{option} {path}: there is no folder {Path(path).parent}")
