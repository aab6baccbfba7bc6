"""Builds the fake CUDA library, and CuPy's runtime module linked to it, in the cache folder.

CuPy's source comes from the package index and stays in the cache. ``install`` builds when it must; to build now, and
to see how long each step takes::

    python -m tests.fakecuda
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tests.fakecuda import cache
from tests.fakecuda.cache import BuildError

CUPY_VERSION = "14.2.0"
"""Of the wheel and of the source: the rebuilt module is exact to the version."""
CYTHON_VERSION = "3.2.4"
"""What the wheel was built with: CuPy's modules call each other through Cython's C API, which is checked at import."""
CUDA_VERSION = 12090
"""That the cupy-cuda12x wheel was built with."""

HERE = Path(__file__).resolve().parent
CXX = os.environ.get("CXX", "g++")
_FLAGS = ["-std=c++17", "-O1", "-fPIC"]
_DIRECTIVES = {
    "binding": False,
    "c_api_binop_methods": True,
    "embedsignature": True,
    "freethreading_compatible": True,
}
_CONSTANTS = {
    "CUPY_CUDA_VERSION": CUDA_VERSION,
    "CUPY_CUFFT_STATIC": False,
    "CUPY_CYTHON_VERSION": CYTHON_VERSION,
    "CUPY_HIP_VERSION": 0,
    "CUPY_USE_CUDA_PYTHON": False,
}

Log = Callable[[str], None]
T = TypeVar("T")


def build(log: Log = lambda text: None) -> Path:
    """The folder with ``libcuda.so.1`` and ``runtime.so``, built if it is not in the cache.

    Raises:
        BuildError: a package of the wrong version, no compiler, no source, or what the compiler said.
    """
    return cache.once(f"build-{content_key()}", functools.partial(_make, log))


def cupy_source() -> Path:
    """CuPy's source tree, with its tests; downloaded once."""
    return cache.once(f"source-{CUPY_VERSION}", _download) / f"cupy-{CUPY_VERSION}"


@functools.cache
def content_key() -> str:
    """Changes with everything that the library and CuPy's module are made of."""
    return _digest([*HERE.glob("src/*"), HERE / "shim" / "launch.h", *HERE.glob("include/**/*.h"), HERE / "build.py"])


@functools.cache
def shim_key() -> str:
    """Changes with everything that kernels are compiled with."""
    return _digest([*HERE.glob("shim/*"), *HERE.glob("include/**/*.h")])


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256(f"{sys.version} {CUPY_VERSION} {CXX} {_FLAGS}".encode())
    for path in sorted(paths):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def missing() -> str | None:
    """Why the fake cannot be built here; None where nothing is known to be missing."""
    try:
        _check_packages()
    except BuildError as error:
        return str(error)
    return None if shutil.which(CXX) else f"the compiler {CXX} is not installed"


def cuda_include() -> list[Path]:
    """Folders of headers: our stand-ins for the compiler's, then the CUDA runtime's own."""
    return [HERE / "include", package_folder("nvidia.cuda_runtime") / "include"]


def package_folder(name: str) -> Path:
    """Where a package is installed, without importing it (but its parents).

    Raises:
        BuildError: it is not installed.
    """
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(f"the package {name} is not installed: see tests/fakecuda/README.md")
    return Path(spec.submodule_search_locations[0])


def _check_packages() -> None:
    for package, wanted in (("cupy-cuda12x", CUPY_VERSION), ("cython", CYTHON_VERSION)):
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise BuildError(f"the fake CUDA needs {package}=={wanted}, which is not installed") from None
        if found != wanted:
            raise BuildError(f"the fake CUDA needs {package}=={wanted}, and {found} is installed")
    package_folder("nvidia.cuda_runtime")
    package_folder("nvidia.cuda_nvrtc")


def _make(log: Log, work: Path) -> None:
    _check_packages()
    source = _timed(log, "CuPy's source", cupy_source)
    with ThreadPoolExecutor(2) as pool:
        steps = [
            pool.submit(_timed, log, "fake CUDA library", _make_library, work),
            pool.submit(_timed, log, "Cython", _cythonize, source, work / "runtime.cpp"),
        ]
        for step in steps:
            step.result()
    _timed(log, "CuPy's runtime module", _make_runtime, source, work)


def _timed(log: Log, text: str, function: Callable[..., T], *args: object) -> T:
    start = time.monotonic()
    result = function(*args)
    log(f"{text}: {time.monotonic() - start:.1f} s")
    return result


def _download(work: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check"]
    command += ["--no-binary", "cupy", f"cupy=={CUPY_VERSION}", "-d", str(work)]
    try:  # a stub build asks for no CUDA toolkit while pip reads the source's metadata
        cache.run(command, env={**os.environ, "CUPY_INSTALL_USE_STUB": "1"})
    except BuildError as error:
        raise BuildError(f"CuPy's source could not be downloaded. {error}") from error
    archive = work / f"cupy-{CUPY_VERSION}.tar.gz"
    shutil.unpack_archive(archive, work, filter="data")
    archive.unlink()


def _include_flags() -> list[str]:
    return [f"-I{folder}" for folder in [*cuda_include(), sysconfig.get_paths()["include"]]]


def _make_library(work: Path) -> None:
    """All of C++ as one unit: the headers cost more than the code."""
    unit = work / "all.cpp"
    unit.write_text("".join(f'#include "{source}"\n' for source in sorted((HERE / "src").glob("*.cpp"))))
    objects = [work / "all.o", work / "unsupported.o"]
    cache.run([CXX, *_FLAGS, "-Wall", "-Wextra", "-c", unit, "-o", objects[0], *_include_flags()])
    cache.run([CXX, "-x", "c", "-fPIC", "-c", HERE / "src" / "unsupported.c", "-o", objects[1]])
    cache.run([CXX, "-shared", "-pthread", "-Wl,-soname,libcuda.so.1", *objects, "-o", work / "libcuda.so.1"])
    for path in (unit, *objects):
        path.unlink()


def _cythonize(source: Path, output: Path) -> None:
    """``runtime.pyx`` to C++, with the settings that the wheel was built with."""
    command = [sys.executable, "-m", "cython", "-3", "--cplus", "-I", source, "-o", output]
    for option, settings in (("-X", _DIRECTIVES), ("-E", _CONSTANTS)):
        for name, value in settings.items():
            command += [option, f"{name}={value}"]
    # Relative to the source tree, since module names follow from the path.
    cache.run([*command, "cupy_backends/cuda/api/runtime.pyx"], cwd=source)


def _make_runtime(source: Path, work: Path) -> None:
    api = source / "cupy_backends" / "cuda" / "api"
    command = [CXX, *_FLAGS, "-shared", "-w", *_include_flags(), f"-I{api}", f"-I{source}", work / "runtime.cpp"]
    command += [f"-L{work}", "-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN", "-Wl,-z,now", "-o", work / "runtime.so"]
    cache.run(command)
