"""What a benchmark ran on: versions, processor, GPUs. Nothing in it tells whose machine it is, or where."""

from __future__ import annotations

import importlib.metadata
import os
import platform as python_platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .limits import cores

if TYPE_CHECKING:
    from .settings import Settings


def describe(settings: Settings, others: float | None) -> dict[str, Any]:
    """Plain values for the JSON."""
    import cuplace

    found: dict[str, Any] = {
        "cuplace": cuplace.__version__, "python": python_platform.python_version(), "numpy": np.__version__,
        "blas": blas(), "system": f"{python_platform.system()} {python_platform.machine()}",
        "processor": processor(), "cores": cores(), "busy": others,
        **{peer: version(peer) for peer in settings.peers if peer == "jax"},
    }  # fmt: skip
    if settings.platform == "cuda":
        from .gpu_figures import machine

        gpus = machine()
        kept = ("driver", "cuda_driver", "cuda_runtime", "cupy")
        found.update({name: gpus[name] for name in kept})
        found["gpus"] = [{key: value for key, value in gpu.items() if key != "uuid"} for gpu in gpus["gpus"]]
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people: the machine, and the software."""
    names = ("cuplace", "python", "numpy", "blas", "jax", "cupy", "driver", "cuda_runtime")
    software = [f"{name.replace('_', ' ')} {found[name]}" for name in names if found.get(name)]
    cpus = f"{found['processor']}, {found['cores']} core{'' if found['cores'] == 1 else 's'}"
    gpus = [f"{gpu['name']}, sm_{gpu['compute_capability'].replace('.', '')}" for gpu in found.get("gpus", ())]
    return ["; ".join([cpus, *gpus]), ", ".join(software)]


def processor() -> str:
    """The processor's name, as it tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return python_platform.processor() or python_platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else python_platform.machine()


def blas() -> str | None:
    """The library that NumPy multiplies with."""
    found: Any = np.show_config(mode="dicts")
    library = found.get("Build Dependencies", {}).get("blas", {})
    return " ".join(filter(None, [library.get("name"), library.get("version")])) or None


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


class Others:
    """How busy the processors are with work that is not of this process or of its children, from now on."""

    def __init__(self) -> None:
        self._began = _ticks()

    def share(self) -> float | None:
        """Of the time of all processors; None where the system does not tell it, or no time has passed."""
        now = _ticks()
        if now is None or self._began is None:
            return None
        working, own, whole = (new - old for new, old in zip(now, self._began, strict=True))
        return round(max(0.0, working - own) / whole, 3) if whole else None


def _ticks() -> tuple[float, float, float] | None:
    """What all processors have worked since the system began, what of that for this process, and how long that is for
    all of them."""
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    ticks = [int(word) for word in first.split()[1:9]]  # what follows is counted in these
    idle, own = ticks[3] + ticks[4], sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK")
    return sum(ticks) - idle, own, sum(ticks)
