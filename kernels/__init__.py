"""Paths of the CUDA C++ sources that the `cuda` backend compiles with NVRTC.

The sources (`.cu`, and `.cuh` for what they include) stand beside this file. In a wheel they ship as the
package `cuplace.kernels`; only their paths are given here, compiling and loading is the backends' work.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SUFFIXES = (".cu", ".cuh")


def sources() -> dict[str, Path]:
    """All kernel sources by file name.

    Returns:
        A dict from file name, suffix included, to the absolute path, in alphabetical order.

    Example:
        >>> all(path.is_file() for path in sources().values())
        True
    """
    return {path.name: path for path in sorted(FOLDER.iterdir()) if path.suffix in SUFFIXES}


def source_path(name: str) -> Path:
    """The path of one source.

    Args:
        name: a file name with its suffix, `"pack.cu"`.

    Raises:
        FileNotFoundError: there is no such source; the text lists those that there are.
    """
    known = sources()
    if name not in known:
        there = ", ".join(known) or "no sources"
        raise FileNotFoundError(f"No kernel source {name!r} in {FOLDER}: it holds {there}.")
    return known[name]
