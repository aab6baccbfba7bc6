"""Another library at the same work, in a process of its own: neither's threads or allocator disturb the other."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def top() -> Path:
    """Where the package that this one is part of can be imported from."""
    file = sys.modules[__package__.partition(".")[0]].__file__
    assert file is not None
    return Path(file).resolve().parents[1]


def environment(platform: str, more: Mapping[str, str]) -> dict[str, str]:
    """Of a process on the same kind of devices; nothing in it warns of what is not measured."""
    paths = [str(top()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore", "CUPLACE_PLATFORM": platform,
        "JAX_PLATFORMS": platform, **more,
    }  # fmt: skip


def call(
    platform: str, function: Callable[..., Any], arguments: Mapping[str, Any], more: Mapping[str, str] | None = None
) -> Any:
    """What ``function(**arguments)`` returns in another process; both are passed as JSON. ``more`` are variables of its
    environment.

    Raises:
        RuntimeError: it failed there; its own words are on standard error.
    """
    command = [sys.executable, "-m", f"{__package__}.child", function.__module__, function.__qualname__]
    done = subprocess.run(
        [*command, json.dumps(arguments)], env=environment(platform, more or {}), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{function.__qualname__} failed in its process, with the errors above")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    module, name, given = sys.argv[1:]
    print(json.dumps(getattr(importlib.import_module(module), name)(**json.loads(given))))
