"""The cache folder: what is built once and shared by processes that run at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

_thread_locks: dict[Path, threading.RLock] = {}


class BuildError(RuntimeError):
    """Something could not be built; the text says what is missing, or what the compiler said."""


def folder() -> Path:
    """``$XDG_CACHE_HOME/cuplace-fakecuda``, or the same under ``~/.cache``; made if it is missing."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(base) / "cuplace-fakecuda"
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Only one process and one thread at a time is inside for a ``name``."""
    path = folder() / "locks" / name
    path.parent.mkdir(exist_ok=True)
    with _thread_locks.setdefault(path, threading.RLock()), open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder ``name`` in the cache. If it is missing, ``make`` fills it: nobody sees it half full."""
    done = folder() / name
    if done.exists():
        return done
    with locked(name):
        if done.exists():
            return done
        work = done.with_name(f"{name}.work")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        make(work)
        work.rename(done)
    return done


def run(command: Sequence[object], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command and return what it printed.

    Raises:
        BuildError: it failed; the text holds what it printed.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=env, cwd=cwd)
    except FileNotFoundError as error:
        raise BuildError(f"{words[0]} is not installed, and the fake CUDA is built with it") from error
    if done.returncode:
        raise BuildError(f"{' '.join(words[:4])} ... failed:\n{done.stdout}{done.stderr}")
    return done.stdout
