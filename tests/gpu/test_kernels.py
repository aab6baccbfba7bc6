"""Kernels on the architecture at hand: CuPy's own for every dtype, ours, and what libraries compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import NamedSharding, P
from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform
from tests import hardware

pytestmark = pytest.mark.gpu("one")

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", ml_dtypes.bfloat16, "float32", "float64")
COMPLEX = ("complex64", "complex128")
NUMBERS = [np.dtype(name) for name in (*INTEGERS, *FLOATS, *COMPLEX)]
DTYPES = [np.dtype(bool), *NUMBERS]

Case = tuple[str, Callable[[Any, Any], Any], list[np.dtype[Any]]]

EVERYWHERE: list[Case] = [
    ("add", lambda np, x: x + x, NUMBERS),
    ("sum", lambda np, x: x.sum(), [np.dtype(name) for name in ("int32", "float32")]),
]
CASES: list[Case] = [
    ("multiply", lambda np, x: x * x, NUMBERS),
    ("equal", lambda np, x: x == x.T, DTYPES),
    ("where", lambda np, x: np.where(x == x.T, x, x.T), DTYPES),
    ("less", lambda np, x: x < x.T, [dtype for dtype in NUMBERS if dtype.kind != "c"]),
    ("max", lambda np, x: x.max(axis=0), [dtype for dtype in NUMBERS if dtype.kind != "c"]),
    ("sum of all", lambda np, x: x.sum(axis=1), NUMBERS),
    ("exp", lambda np, x: np.exp(x / 64), [np.dtype(name) for name in (*FLOATS, *COMPLEX)]),
    ("sin", lambda np, x: np.sin(x), [np.dtype(name) for name in (*FLOATS, *COMPLEX)]),
    ("take", lambda np, x: x[2:9:3, ::-1], DTYPES),
    ("float32", lambda np, x: x.real.astype(np.float32), DTYPES),
]
"""Each compiles kernels of its own: on fake GPUs other tests have compiled them."""

CHOSEN = [
    pytest.param(function, dtype, id=f"{name}-{dtype}")
    for name, function, dtypes in (EVERYWHERE + CASES if hardware.chosen() else EVERYWHERE)
    for dtype in dtypes
]


@pytest.mark.parametrize(("function", "dtype"), CHOSEN)
def test_an_operation_gives_numpys_values(platform: Platform, function: Any, dtype: np.dtype[Any]) -> None:
    config.update("enable_x64", True)
    values = np.random.default_rng(1).integers(0, 11, (16, 16)).astype(dtype)
    found = np.asarray(function(jnp, cuplace.device_put(values, platform.devices[1])))
    expected = np.asarray(function(np, values))
    exact = dtype.kind in "bui" or (dtype.kind == "f" and dtype.itemsize == 8)
    tolerance = 1e-12 if exact else 2e-2 if dtype.itemsize == 2 else 1e-4
    np.testing.assert_allclose(found.astype(expected.dtype).astype(complex), expected.astype(complex), rtol=tolerance)


def test_a_jitted_chain_gives_numpys_values_on_every_device(platform: Platform) -> None:
    mesh = cuplace.make_mesh((8,), ("x",))
    values = np.random.default_rng(2).standard_normal((64, 32)).astype(np.float32)
    stage = cuplace.jit(lambda x: jnp.where(x > 0, jnp.sin(x) * 2, x * x) + 1)
    result = stage(cuplace.device_put(values, NamedSharding(mesh, P("x"))))
    expected = np.where(values > 0, np.sin(values) * 2, values * values) + 1
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-6)


def test_the_pattern_of_the_probe_is_that_of_its_twin(platform: Platform) -> None:
    from cuplace.runtime.backends.cuda import kernels, probe

    device, count = platform.devices[0], 100_003
    words = platform.scheduler.allocate(device, (count,), np.dtype(np.uint64))
    total = platform.scheduler.allocate(device, (1,), np.dtype(np.uint64))
    platform.scheduler.upload(total, np.zeros(1, np.uint64))

    def fill(reads: list[Any], writes: list[Any], scalars: Any) -> None:
        lane: Any = device.compute.lane
        kernels.fill(lane, writes[0].data.ptr, count, 17)
        kernels.checksum(lane, writes[0].data.ptr, count, writes[1].data.ptr)

    from cuplace.runtime.task import ComputeTask

    platform.scheduler.submit(ComputeTask("fill", fill, 1.0), device.compute, (), (words, total))
    expected = probe.pattern(count, 17)
    np.testing.assert_array_equal(platform.scheduler.download(words), expected)
    assert int(platform.scheduler.download(total)[0]) == probe.pattern_sum(expected)


# ---------------------------------------------------------------------- libraries


N = 512 if hardware.chosen() else 64
PRIME = N * N - (21 if hardware.chosen() else 3)
"""A length whose transform takes scratch memory."""

LIBRARIES: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "matmul": ("cublas", lambda np, x: x @ x),
    "einsum": ("cublas", lambda np, x: np.einsum("ij,kj->ik", x, x)),
    "sort": ("", lambda np, x: np.sort(x, axis=1)),
    "argsort": ("", lambda np, x: np.argsort(x, axis=0, stable=True)),
}

IN_KERNELS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "fft": ("cufft", lambda xp, x: xp.fft.ifft(xp.fft.fft(x, axis=1) * 2, axis=1).real.astype(x.dtype)),
    "long fft": ("cufft", lambda xp, x: xp.fft.fft(x.reshape(-1)[:PRIME])[: x.size // N].real.astype(x.dtype)),
    "fft in two dimensions": ("cufft", lambda xp, x: xp.fft.rfft2(x).imag.astype(x.dtype)),
    "solve": ("cusolver", lambda xp, x: xp.linalg.solve(positive(xp, x), x)),
    "cholesky": ("cusolver", lambda xp, x: xp.linalg.cholesky(positive(xp, x))),
    "eigenvalues": ("cusolver", lambda xp, x: xp.linalg.eigvalsh(positive(xp, x))),
    "inverse": ("cusolver", lambda xp, x: xp.linalg.inv(positive(xp, x))),
}
"""In functions of the user's, by the array module."""


def positive(xp: Any, x: Any) -> Any:
    return xp.matmul(x, x.T) / N + xp.eye(N, dtype=x.dtype)


def need(library: str) -> None:
    """The libraries of CUDA are separate wheels, or parts of a CUDA toolkit; on fake GPUs NumPy computes."""
    if not library or not hardware.chosen():
        return
    import cupy

    try:
        getattr(cupy.cuda, library)
    except ImportError as error:
        pytest.skip(f"{library} is not installed: {error}")


def spread_values(platform: Platform) -> list[np.ndarray[Any, Any]]:
    values = np.random.default_rng(3).standard_normal((N, N)).astype(np.float32)
    return [values * (i + 1) for i in range(len(platform.devices))]


def close(found: Any, expected: Any) -> None:
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(np.asarray(found) / scale, expected / scale, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_compute_in_the_order_of_their_stream(platform: Platform, name: str) -> None:
    """On every device at once, with work before and behind."""
    library, function = LIBRARIES[name]
    need(library)
    values = spread_values(platform)
    results = []
    for host, device in zip(values, platform.devices, strict=True):
        results.append(function(jnp, cuplace.device_put(host, device) + 1) * 2)
    for host, result in zip(values, results, strict=True):
        close(result, function(np, host + 1) * 2)


@pytest.mark.parametrize("name", IN_KERNELS)
def test_libraries_compute_in_functions_of_the_users(platform: Platform, name: str) -> None:
    """On every device at once, several times: what a library keeps from call to call is apart by device."""
    library, function = IN_KERNELS[name]
    need(library)
    xp: Any = platform.backend.xp
    values = spread_values(platform)
    out = function(np, values[0])
    like = cuplace.ShapeDtypeStruct(out.shape, np.float32)
    results = []
    for _ in range(3):
        for host, device in zip(values, platform.devices, strict=True):
            x = cuplace.device_put(host, device)
            results.append(cuplace.map_shards(lambda x: function(xp, x), x, out_shape=like) * 2)
    for i, result in enumerate(results):
        close(result, function(np, values[i % len(values)]) * 2)
