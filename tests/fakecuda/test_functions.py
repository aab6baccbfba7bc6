"""CuPy's functions that need no library run on the fake and agree with NumPy. The rest is in ``test_hostcalls``."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests import fakecuda

SHAPE = (5, 7)
TOLERANCE = {"float16": 5e-3, "bfloat16": 3e-2, "complex64": 1e-4, "float32": 1e-4}
DTYPES = (
    "float64", "float16", "bfloat16", "complex64", "complex128", "int8", "uint8", "int32", "uint32", "int64", "bool",
)  # fmt: skip

UNARY = {
    "f": """negative absolute sign floor ceil rint trunc square sqrt cbrt reciprocal exp exp2 expm1 log log1p log2 log10
        sin cos tan arcsin arccos arctan sinh cosh tanh isnan isinf isfinite signbit""",
    "c": """negative absolute square sqrt reciprocal exp expm1 log log1p log2 log10 sin cos tan arcsin arccos arctan
        sinh cosh tanh conjugate isnan isfinite""",
    "i": "negative absolute sign square invert",
    "u": "square invert",
    "b": "invert logical_not",
}
BINARY = {
    "f": """add subtract multiply divide floor_divide remainder power arctan2 hypot maximum minimum
        equal not_equal less less_equal greater greater_equal""",
    "c": "add subtract multiply divide power equal not_equal",
    "i": """add subtract multiply divide floor_divide remainder power maximum minimum bitwise_and bitwise_or bitwise_xor
        left_shift right_shift equal less greater_equal""",
    "b": "bitwise_and bitwise_or bitwise_xor logical_and equal not_equal maximum",
}
BINARY["u"] = BINARY["i"]
CORE = {"add", "multiply", "divide", "equal", "less", "maximum", "power", "exp", "sqrt", "absolute", "invert"}

Case = Callable[[Any, Any, Any], Any]
"""``case(xp, x, y)`` gives the same with NumPy's and with CuPy's arrays."""


def reduction(name: str, axis: int | None) -> Case:
    return lambda xp, x, y: getattr(xp, name)(x, axis=axis)


def unary(name: str) -> Case:
    return lambda xp, x, y: getattr(xp, name)(x)


def binary(name: str) -> Case:
    return lambda xp, x, y: getattr(xp, name)(x, y)


REDUCTIONS: dict[str, Case] = {
    f"{name} over {axis}": reduction(name, axis)
    for name in ("sum", "prod", "max", "min", "argmax", "argmin", "all", "any", "cumsum", "cumprod")
    for axis in (None, 0, 1)
}
REARRANGEMENT: dict[str, Case] = {
    "where": lambda xp, x, y: xp.where(x == y, x, y),
    "concatenate": lambda xp, x, y: xp.concatenate([x, y], axis=1),
    "stack": lambda xp, x, y: xp.stack([x, y, x], axis=1),
    "flip": lambda xp, x, y: xp.ascontiguousarray(xp.flip(x, 1)),
    "transpose": lambda xp, x, y: xp.ascontiguousarray(x.T),
    "reshape": lambda xp, x, y: x.T.reshape(-1),
    "broadcast_to": lambda xp, x, y: xp.ascontiguousarray(xp.broadcast_to(x, (3, *SHAPE))),
    "take": lambda xp, x, y: xp.take(x, xp.asarray([3, 1, 1, 0]), axis=1),
    "roll": lambda xp, x, y: xp.roll(x, 2, axis=1),
    "tile": lambda xp, x, y: xp.tile(x, (2, 1)),
    "repeat": lambda xp, x, y: xp.repeat(x, 2, axis=0),
    "pad": lambda xp, x, y: xp.pad(x, 1),
    "tril": lambda xp, x, y: xp.tril(x, 1),
    "integer array index": lambda xp, x, y: x[xp.asarray([2, 0, 2])],
    "mask": lambda xp, x, y: x[x == y],
    "nonzero": lambda xp, x, y: xp.stack(xp.nonzero(x == y)),
    "strided copy": lambda xp, x, y: x[::2, ::-3].copy(),
    "slice assignment": lambda xp, x, y: assign(x.copy(), (slice(1, 4), slice(None, None, 2)), y[1:4, ::2]),
    "scatter": lambda xp, x, y: assign(x.copy(), xp.asarray([0, 3]), y[:2]),
    "mask assignment": lambda xp, x, y: assign(x.copy(), x == y, x.dtype.type(1)),
    "fill": lambda xp, x, y: xp.full_like(x, 1) + xp.zeros_like(x),
    "eye": lambda xp, x, y: xp.eye(4, 5, k=1, dtype=x.dtype),
}
OTHERS: dict[str, Case] = {
    "arange": lambda xp, x, y: xp.arange(0, 9, 2, dtype=x.dtype),
    "linspace": lambda xp, x, y: xp.linspace(0, 1, 7),
    "clip": lambda xp, x, y: xp.clip(x, x.dtype.type(2), x.dtype.type(5)),
    "diff": lambda xp, x, y: xp.diff(x),
    "mean": lambda xp, x, y: xp.mean(x, axis=0),
    "var": lambda xp, x, y: xp.var(x, axis=1),
    "isclose": lambda xp, x, y: xp.isclose(x, y),
    "divmod": lambda xp, x, y: xp.stack(xp.divmod(x, y)),
    "logaddexp": lambda xp, x, y: xp.logaddexp(x, y),
    "searchsorted": lambda xp, x, y: xp.searchsorted(xp.arange(9.0), x),
    "bincount": lambda xp, x, y: xp.bincount(xp.asarray([1, 2, 2, 5])),
    "meshgrid": lambda xp, x, y: xp.stack(xp.meshgrid(x[0], x[:, 0])),
    "sum of three axes": lambda xp, x, y: xp.sum(xp.broadcast_to(x, (3, 4, *SHAPE)), axis=(0, 2, 3), keepdims=True),
    "large sum": lambda xp, x, y: xp.sum(xp.ones((300, 500), x.dtype)),
    "large cumsum": lambda xp, x, y: xp.cumsum(xp.arange(5000, dtype=xp.int64)),
}
UNSUPPORTED_BY_CUPY = {
    "bfloat16": {"cumsum", "cumprod", "rint", "isclose", "clip", "cbrt", "hypot"},
    "bool": {"diff", "clip", "arange"},
}
"""What CuPy 14.2 itself refuses, on a GPU too: bfloat16 has no ``+=`` in its scan kernels."""


def assign(x: Any, index: Any, values: Any) -> Any:
    x[index] = values
    return x


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def operand(dtype: np.dtype, seed: int) -> np.ndarray:
    """Values that no function overflows on, some of them equal to the other operand's."""
    random = np.random.default_rng(seed)
    whole = np.where(random.random(SHAPE) < 0.3, 3, random.integers(1, 7, SHAPE))
    if dtype.kind == "b":
        return whole > 3
    if dtype.kind in "iu":
        return whole.astype(dtype)
    parts = whole / 8
    return (parts + 1j * parts[::-1] if dtype.kind == "c" else parts).astype(dtype)


def agree(cp: ModuleType, name: str, dtype_name: str, case: Case) -> None:
    dtype = dtype_of(dtype_name)
    x, y = operand(dtype, 0), operand(dtype, 1)
    expected = np.asarray(case(np, x, y))
    got = cp.asnumpy(case(cp, cp.asarray(x), cp.asarray(y)))
    assert got.shape == expected.shape, name
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    tolerance = TOLERANCE.get(dtype_name, 1e-6)
    np.testing.assert_allclose(got.astype(wide), expected.astype(wide), tolerance, tolerance, err_msg=name)


def cases_of(dtype_name: str, *, all_of_them: bool) -> dict[str, Case]:
    kind = "f" if dtype_name == "bfloat16" else dtype_of(dtype_name).kind
    chosen = {name: unary(name) for name in UNARY[kind].split()}
    chosen |= {name: binary(name) for name in BINARY[kind].split()}
    if not all_of_them:
        chosen = {name: case for name, case in chosen.items() if name in CORE}
        chosen |= {name: case for name, case in REDUCTIONS.items() if name in ("sum over 0", "max over None")}
        return chosen | {name: REARRANGEMENT[name] for name in ("where", "strided copy")}
    refused = UNSUPPORTED_BY_CUPY.get(dtype_name, set())
    chosen |= REDUCTIONS | REARRANGEMENT
    return {name: case for name, case in chosen.items() if name.split()[0] not in refused}


@pytest.mark.parametrize("name", [*cases_of("float32", all_of_them=True), *OTHERS])
def test_a_function_agrees_with_numpy(cp: ModuleType, clean: None, name: str) -> None:
    fakecuda.set_mode("lazy")
    agree(cp, name, "float32", (cases_of("float32", all_of_them=True) | OTHERS)[name])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_agrees_with_numpy(cp: ModuleType, clean: None, dtype: str, request: pytest.FixtureRequest) -> None:
    fakecuda.set_mode("lazy")
    for name, case in cases_of(dtype, all_of_them=request.config.getoption("--deep")).items():
        agree(cp, name, dtype, case)


@pytest.mark.parametrize("target", ["float64", "float16", "bfloat16", "complex64", "int32", "uint8", "bool"])
def test_conversions(cp: ModuleType, clean: None, target: str) -> None:
    agree(cp, target, "float32", lambda xp, x, y: (x * 4).astype(dtype_of(target)))


def test_user_kernels(cp: ModuleType, clean: None, mode: str) -> None:
    x = cp.arange(1000, dtype=cp.float32)
    multiply_add = cp.ElementwiseKernel("T x, T y", "T z", "z = x * y + 2", "multiply_add")
    norm = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "l2norm")
    assert cp.asnumpy(multiply_add(x, x)).tolist() == (np.arange(1000.0) ** 2 + 2).tolist()
    np.testing.assert_allclose(norm(x).get(), np.linalg.norm(np.arange(1000)), 1e-5)


def test_random_numbers_need_a_library(cp: ModuleType) -> None:
    with pytest.raises((ImportError, RuntimeError)):
        cp.random.random(4)
