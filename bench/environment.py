"""What a benchmark ran on: versions, processor, GPUs. Nothing in it tells whose machine it is, or where."""

from __future__ import annotations

import importlib.metadata
import platform as python_platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .limits import cores

if TYPE_CHECKING:
    from .settings import Settings

LOOK = 0.25  # seconds in which it is seen what others do


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


def busy() -> float | None:
    """The share of the processors that work while this process sleeps; None where the system does not tell it."""
    before = _ticks()
    if before is None:
        return None
    time.sleep(LOOK)
    after = _ticks()
    assert after is not None
    working, all_of_it = (new - old for new, old in zip(after, before, strict=True))
    return round(working / all_of_it, 3) if all_of_it else None


def _ticks() -> tuple[int, int] | None:
    """What all processors have worked since the system began, and how long that is for all of them."""
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    ticks = [int(word) for word in first.split()[1:9]]  # what follows is counted in these
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)
