"""Compiles CUDA C++ kernels with g++, for the fake CUDA and for tests of kernels alone.

``compile_source`` needs neither CuPy nor the fake: only g++ and the headers of the CUDA runtime package.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fakecuda import build, cache
from tests.fakecuda.kernel_source import for_host, kernels_of, needs_fibers
from tests.fakecuda.native import Param

_SHIM = build.HERE / "shim"
_FLAGS = ["-x", "c++", "-std=c++17", "-O1", "-fPIC", "-w", "-ffp-contract=off"]
# As on a GPU, an access that is not aligned to its type fails: here it is an illegal instruction.
_FLAGS += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
_LINK = ["-shared", "-nostdlib", "-Wl,-z,lazy"]  # what they call is there when they are loaded
_SANITIZE = ["-fsanitize=address", "-fsanitize-recover=address", "-fno-omit-frame-pointer", "-g"]
_MOST_PARAMS = 256

_loaded: dict[str, HostLibrary] = {}
_lock = threading.Lock()


class HostLibrary:
    """Kernels compiled for the CPU.

    Attributes:
        names: what they are called, without templates that were not asked for.
        constness: what the source says of each one's parameters (see ``KernelSource``).
    """

    def __init__(self, path: Path, labels: Mapping[str, str], constness: Mapping[str, str]) -> None:
        self._library = ctypes.CDLL(str(path))
        self._labels = dict(labels)
        self.names = tuple(labels)
        self.constness = dict(constness)

    def entry(self, name: str) -> int:
        """The address of the function that runs a kernel."""
        function = getattr(self._library, f"shim_run_{self._labels[name]}")
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def params(self, name: str) -> Sequence[Param]:
        """What a kernel takes."""
        params = (Param * _MOST_PARAMS)()
        count = getattr(self._library, f"shim_describe_{self._labels[name]}")(params)
        return params[:count]

    def run(
        self, name: str, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], shared: int = 0, seed: int = 0
    ) -> int:
        """Run a kernel on host memory and return how many barriers not all threads of a block reached.

        Args:
            name: of the kernel.
            grid: blocks along x, y and z; what is left out is 1.
            block: threads along x, y and z.
            args: ctypes values, in the kernel's order (addresses as ``c_void_p``).
            shared: bytes of dynamic shared memory.
            seed: of the order in which blocks and threads run.
        """
        pointers = (ctypes.c_void_p * len(args))(*[ctypes.addressof(arg) for arg in args])
        shapes = [(ctypes.c_uint32 * 3)(*[*shape, 1, 1][:3]) for shape in (grid, block)]
        launch = _Launch(ctypes.addressof(pointers), *[ctypes.addressof(shape) for shape in shapes], shared, seed)
        outcome = ctypes.c_int32(0)
        getattr(self._library, f"shim_run_{self._labels[name]}")(ctypes.byref(launch), ctypes.byref(outcome))
        return outcome.value


class _Launch(ctypes.Structure):
    """``shim::Launch`` of ``shim/launch.h``."""

    _fields_ = [
        ("args", ctypes.c_void_p), ("grid", ctypes.c_void_p), ("block", ctypes.c_void_p),
        ("shared", ctypes.c_uint32), ("seed", ctypes.c_uint32),
    ]  # fmt: skip


def compile_source(
    source: str,
    options: Sequence[str] = (),
    *,
    cupy: bool = False,
    expressions: Sequence[str] = (),
) -> HostLibrary:
    """Compile a source; libraries are cached on disk by content.

    Args:
        source: CUDA C++.
        options: of which ``-D`` and ``-I`` are passed on.
        cupy: whether it includes CuPy's headers.
        expressions: instances of templates that are wanted too (``"scale<float>"``).

    Raises:
        BuildError: g++ does not take it; the text holds what it said.
    """
    kernels = kernels_of(source)
    labels = {kernel.name: kernel.name for kernel in kernels}
    labels |= {expression: f"instance_{i}" for i, expression in enumerate(expressions)}
    fibers = "true" if needs_fibers(source) else "false"
    exports = "".join(f"SHIM_EXPORT({label}, (&{name}), {fibers})\n" for name, label in labels.items())
    text = f"{for_host(source)}\n{exports}"
    prefix = ("kernel_shim.h", "cupy_arrays.h") if cupy else ("kernel_shim.h",)
    flags = [*_FLAGS, *(_SANITIZE if sanitized() else []), *include_flags(cupy), *_kept(options)]
    key = hashlib.sha256("\0".join([text, *prefix, build.shim_key(), *flags]).encode()).hexdigest()[:24]
    with _lock:
        if key not in _loaded:
            _shared_library()
            path = cache.once(f"kernel-{key}", functools.partial(_compile, text, prefix, flags)) / "kernels.so"
            _loaded[key] = HostLibrary(path, labels, {kernel.name: kernel.constness for kernel in kernels})
        return _loaded[key]


def include_flags(cupy: bool) -> list[str]:
    """Where the headers are: the shim's, CUDA's and, if they are wanted, CuPy's."""
    folders = [_SHIM, *build.cuda_include()]
    if cupy:
        include = build.package_folder("cupy") / "_core" / "include"
        cccl = include / "cupy" / "_cccl"
        folders += [include, cccl / "libcudacxx", cccl / "cub", cccl / "thrust"]
    return [f"-I{folder}" for folder in folders]


def sanitized() -> bool:
    """Whether kernels are compiled with the address sanitizer: see ``run_sanitized``."""
    return os.environ.get("FAKECUDA_SANITIZE") == "1"


def _kept(options: Sequence[str]) -> list[str]:
    """The options that matter to g++: definitions, and folders that are not among ours."""
    ours = ("/cupy/_core/include", "/nvidia/cuda_runtime/")
    return [o for o in options if o.startswith("-D") or (o.startswith("-I") and not any(part in o for part in ours))]


def _compile(text: str, prefix: Sequence[str], flags: Sequence[str], work: Path) -> None:
    code = work / "kernels.cpp"
    code.write_text(text)
    defines = any(flag.startswith("-D") for flag in flags)  # they may change what the headers say
    before = [word for header in prefix for word in ("-include", header)]
    if not defines:
        before = ["-include", str(_precompiled(prefix, flags))]
    cache.run([build.CXX, *flags, *_LINK, *before, code, "-o", work / "kernels.so"])


def _precompiled(prefix: Sequence[str], flags: Sequence[str]) -> Path:
    """A header that g++ has read before: it takes two thirds off the time of a compilation."""
    key = hashlib.sha256("\0".join([*prefix, build.shim_key(), *flags]).encode()).hexdigest()[:16]

    def make(work: Path) -> None:
        header = work / "prefix.h"
        header.write_text("".join(f'#include "{name}"\n' for name in prefix))
        flags_of_headers = [flag if flag != "c++" else "c++-header" for flag in flags]
        cache.run([build.CXX, *flags_of_headers, header, "-o", f"{header}.gch"])

    return cache.once(f"prefix-{key}", make) / "prefix.h"


@functools.cache
def _shared_library() -> ctypes.CDLL:
    """What all kernels call (see ``shim/runtime.h``), loaded so that they find it."""
    flags = [*_FLAGS, *(_SANITIZE if sanitized() else []), *include_flags(cupy=False)]
    key = hashlib.sha256("\0".join([build.shim_key(), *flags]).encode()).hexdigest()[:16]

    def make(work: Path) -> None:
        cache.run([build.CXX, *flags, "-shared", _SHIM / "runtime.cpp", "-o", work / "libshim.so"])

    return ctypes.CDLL(str(cache.once(f"shim-{key}", make) / "libshim.so"), mode=ctypes.RTLD_GLOBAL)
