"""Puts the real CuPy wheel on the fake CUDA.

Only ``cupy_backends.cuda.api.runtime`` is replaced, by the module that ``build`` made; the driver module of the wheel
opens ``libcuda.so.1`` by name and gets the fake, which is loaded already. The installed wheel is not touched.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.fakecuda import build, cache, hostkernels, native
from tests.fakecuda.cache import BuildError
from tests.fakecuda.hostkernels import HostLibrary
from tests.fakecuda.kernel_source import kernels_of

RUNTIME_MODULE = "cupy_backends.cuda.api.runtime"
COMPILER_MODULE = "cupy.cuda.compiler"

_numbers = itertools.count(1)


class _Finder(importlib.abc.MetaPathFinder):
    """Answers the import of the runtime module, and hooks the compiler module as soon as it is imported."""

    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == RUNTIME_MODULE:
            return importlib.util.spec_from_file_location(fullname, self.runtime)
        if fullname != COMPILER_MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                hook_compiler(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def put_in_place(devices: int) -> None:
    """Load the fake, so that CuPy finds it when it is imported.

    Raises:
        RuntimeError: CuPy was imported before.
        BuildError: the fake cannot be built; the text says why.
    """
    if "cupy_backends" in sys.modules:
        raise RuntimeError("CuPy was imported before the fake CUDA was installed: install it first")
    reason = build.missing()
    if reason is not None:
        raise BuildError(reason)
    folder = build.build()
    os.environ["FAKECUDA_DEVICES"] = str(devices)
    # CUB's and Thrust's modules hold a CUDA runtime of their own, which the fake cannot serve.
    os.environ["CUPY_ACCELERATORS"] = ""
    os.environ.setdefault("CUPY_CACHE_DIR", str(cache.folder() / "cupy-kernels"))
    native.load(folder / "libcuda.so.1")
    if hostkernels.sanitized() and not native.library().fake_find_sanitizer():
        raise RuntimeError(
            "FAKECUDA_SANITIZE is set, but the sanitizer is not preloaded: use tests.fakecuda.run_sanitized"
        )
    sys.meta_path.insert(0, _Finder(folder / "runtime.so"))


def hook_compiler(compiler: Any) -> None:
    """Have each source that CuPy compiles compiled by g++, too.

    NVRTC still compiles it for the GPU, so that a kernel that would not build there fails here too.
    """
    original = compiler._compile_module_with_cache

    def compile_module(source: str, options: Sequence[str] = (), **others: Any) -> Any:
        expressions = tuple(others.get("name_expressions") or ())
        with module_source(source, options, expressions) as names:
            module = original(source, options, **others)
            names.update(getattr(module, "mapping", None) or {})
        return module

    compiler._compile_module_with_cache = compile_module


@contextmanager
def module_source(
    source: str, options: Sequence[str] = (), expressions: Sequence[str] = ()
) -> Iterator[dict[str, str]]:
    """The module that is loaded inside has this source. CuPy's own compilations do this by themselves.

    Args:
        source: CUDA C++.
        options: of which ``-D`` and ``-I`` count.
        expressions: instances of templates that the module has.

    Yields:
        A dict to put the names into that NVRTC gave to ``expressions``.
    """
    number = next(_numbers)
    names: dict[str, str] = {}
    # g++ works while NVRTC does, in the block inside.
    compiling = _pool().submit(
        hostkernels.compile_source,
        source, options, cupy="cupy/" in source, expressions=expressions,
    )  # fmt: skip
    native.library().fake_set_loading_module(number)
    try:
        yield names
    finally:
        _register(number, source, compiling, names)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="fakecuda-g++")


def _register(number: int, source: str, compiling: Future[HostLibrary], names: Mapping[str, str]) -> None:
    fake = native.library()
    try:
        library = compiling.result()
    except BuildError as error:
        for kernel in kernels_of(source):  # such a kernel fails when it is launched, with this reason in the report
            fake.fake_register_failure(number, kernel.name.encode(), _first_errors(str(error)).encode())
        return
    for name in library.names:
        params = library.params(name)
        array = (native.Param * max(len(params), 1))(*params)
        called, constness = names.get(name, name).encode(), library.constness.get(name, "").encode()
        fake.fake_register_kernel(number, called, library.entry(name), len(params), array, constness)


def _first_errors(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line]
    return "g++ does not take it: " + "; ".join(lines[:3])
