"""Library calls (cuBLAS, cuFFT, cuSOLVER, Thrust), which cannot run here: NumPy in their place, in stream order."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.fakecuda import native
from tests.fakecuda.regions import plain_regions

_ids = itertools.count(1)
_waiting: dict[int, Callable[[], None]] = {}

FUNCTIONS = (
    "matmul", "dot", "vdot", "inner", "outer", "tensordot", "einsum", "kron",
    "sort", "argsort", "lexsort", "partition", "argpartition", "unique", "median", "percentile", "quantile",
    "linalg.norm", "linalg.inv", "linalg.solve", "linalg.det", "linalg.slogdet", "linalg.cholesky", "linalg.qr",
    "linalg.svd", "linalg.eigh", "linalg.eigvalsh", "linalg.pinv", "linalg.lstsq", "linalg.matrix_power",
    "fft.fft", "fft.ifft", "fft.fft2", "fft.ifft2", "fft.fftn", "fft.ifftn",
    "fft.rfft", "fft.irfft", "fft.rfft2", "fft.irfft2", "fft.rfftn", "fft.irfftn",
)  # fmt: skip
"""CuPy's functions that ``numpy_library`` replaces."""


def host_call(
    name: str, function: Callable[[], None], reads: Sequence[Any], writes: Sequence[Any], stream: Any = None
) -> None:
    """Run ``function()`` in stream order, as a kernel that touches these arrays.

    Args:
        name: for reports.
        function: it may use ``numpy_view`` of the arrays, and must not call CUDA.
        reads, writes: CuPy arrays, or regions.
        stream: a CuPy stream; None: the current one.

    Raises:
        RuntimeError: the stream's device is lost.
    """
    import cupy

    number = next(_ids)
    _waiting[number] = function
    handle = (cupy.cuda.get_current_stream() if stream is None else stream).ptr
    regions = plain_regions(reads, writes)
    status = native.library().fake_host_call(handle, name.encode(), _run, number, regions, len(regions))
    if status:
        del _waiting[number]
        raise cupy.cuda.runtime.CUDARuntimeError(status)


def numpy_view(array: Any) -> np.ndarray:
    """A CuPy array's memory as a NumPy array: device memory is host memory here."""

    class Memory:
        __array_interface__ = {  # noqa: RUF012
            "version": 3, "data": (array.data.ptr, False), "shape": array.shape, "strides": array.strides,
            "typestr": array.dtype.str,
        }  # fmt: skip

    if array.size == 0:
        return np.empty(array.shape, array.dtype)
    if array.dtype.kind == "V":  # bfloat16 and the like, which the interface does not know by name
        Memory.__array_interface__["typestr"] = f"|u{array.dtype.itemsize}"
        return np.asarray(Memory()).view(array.dtype)
    return np.asarray(Memory())


def library_call(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What ``function(*args, **kwargs)``, a library call of CuPy's, would return: computed by NumPy in stream order.

    Args:
        name: of NumPy's function: ``matmul``, ``linalg.solve``, ``fft.rfft``.
        function: CuPy's, which is not called.
        args, kwargs: its arguments; ``out=`` works, too.
    """
    import cupy

    kwargs = dict(kwargs)
    out = kwargs.pop("out", None)
    compute = _numpy_function(name)
    arrays = [x for x in _leaves((list(args), kwargs)) if isinstance(x, cupy.ndarray)]
    like = compute(*_map(_stand_in, list(args)), **_map(_stand_in, kwargs))
    results = [out] if out is not None else [cupy.empty(r.shape, r.dtype) for r in map(np.asarray, _leaves(like))]

    def run() -> None:
        values = compute(*_map(_host, list(args)), **_map(_host, kwargs))
        for result, value in zip(results, _leaves(values), strict=True):
            numpy_view(result)[...] = value

    host_call(name, run, arrays, results)
    return _rebuild(like, iter(results))


@contextmanager
def numpy_library() -> Iterator[tuple[str, ...]]:
    """Inside, CuPy's functions that need a library are computed by NumPy in stream order.

    Yields:
        The names of the functions that were replaced, for a test to print.
    """
    import cupy

    replaced = []
    for name in FUNCTIONS:
        module, attribute = _attribute(cupy, name)
        if hasattr(module, attribute):
            replaced.append((module, attribute, getattr(module, attribute)))
            setattr(module, attribute, _replacement(name, getattr(module, attribute)))
    replaced += [(cupy.ndarray, name, getattr(cupy.ndarray, name)) for name in ("__matmul__", "__rmatmul__")]
    cupy.ndarray.__matmul__ = lambda a, b: library_call("matmul", cupy.matmul, (a, b), {})
    cupy.ndarray.__rmatmul__ = lambda a, b: library_call("matmul", cupy.matmul, (b, a), {})
    try:
        yield FUNCTIONS
    finally:
        for owner, attribute, original in replaced:
            setattr(owner, attribute, original)


def _replacement(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return library_call(name, original, args, kwargs)

    return call


def _run_waiting(number: int) -> None:
    function = _waiting.pop(number)
    try:
        function()
    except Exception:
        native.library().fake_report(b"host call failed", traceback.format_exc().encode())


_run = native.HostCall(_run_waiting)


def _numpy_function(name: str) -> Callable[..., Any]:
    module, attribute = _attribute(np, name)
    function: Callable[..., Any] = getattr(module, attribute)
    return function


def _attribute(module: Any, name: str) -> tuple[Any, str]:
    *parents, attribute = name.split(".")
    for parent in parents:
        module = getattr(module, parent)
    return module, attribute


def _stand_in(x: Any) -> Any:
    """A value with a CuPy array's shape and dtype that no function of linear algebra rejects."""
    import cupy

    if not isinstance(x, cupy.ndarray):
        return x
    if x.ndim >= 2:
        return np.broadcast_to(np.eye(*x.shape[-2:]).astype(x.dtype), x.shape)
    return np.ones(x.shape, x.dtype)


def _host(x: Any) -> Any:
    import cupy

    return numpy_view(x) if isinstance(x, cupy.ndarray) else x


def _map(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _map(function, value) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not hasattr(tree, "_fields"):
        return type(tree)(_map(function, value) for value in tree)
    return function(tree)


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    if isinstance(tree, list | tuple):
        return [leaf for value in tree for leaf in _leaves(value)]
    return [tree]


def _rebuild(like: Any, results: Iterator[Any]) -> Any:
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*[_rebuild(value, results) for value in like])
    if isinstance(like, list | tuple):
        return type(like)(_rebuild(value, results) for value in like)
    return next(results)
