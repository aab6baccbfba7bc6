"""Library calls: NumPy computes them in stream order, on declared ranges."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests import fakecuda
from tests.fakecuda import hostcalls

CASES: dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda xp, x: xp.matmul(x, x),
    "operator @": lambda xp, x: x @ x,
    "dot": lambda xp, x: xp.dot(x, x[0]),
    "tensordot": lambda xp, x: xp.tensordot(x, x, axes=[(0, 1), (1, 0)]),
    "einsum": lambda xp, x: xp.einsum("ij,jk->ki", x, x),
    "sort": lambda xp, x: xp.sort(x, axis=0),
    "argsort": lambda xp, x: xp.argsort(x, axis=1, kind="stable"),
    "inv": lambda xp, x: xp.linalg.inv(x),
    "solve": lambda xp, x: xp.linalg.solve(x, x[0]),
    "qr": lambda xp, x: xp.linalg.qr(x)[1],
    "svd": lambda xp, x: xp.linalg.svd(x)[1],
    "slogdet": lambda xp, x: xp.linalg.slogdet(x).logabsdet if xp is np else xp.linalg.slogdet(x)[1],
    "fft": lambda xp, x: xp.fft.fft(x, axis=0),
    "irfft": lambda xp, x: xp.fft.irfft(xp.fft.rfft(x)),
}


@pytest.mark.parametrize("name", CASES)
def test_library_functions_are_numpys(cp: ModuleType, clean: None, mode: str, name: str) -> None:
    values = np.random.default_rng(0).random((6, 6)) + 3 * np.eye(6)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream, hostcalls.numpy_library():
        x = cp.asarray(values) + 1
        got = cp.asnumpy(CASES[name](cp, x))
    np.testing.assert_allclose(got, CASES[name](np, values + 1), 1e-9, 1e-9)


def test_without_numpy_they_fail_and_are_restored(cp: ModuleType) -> None:
    x = cp.ones((4, 4))
    with hostcalls.numpy_library() as replaced:
        assert "matmul" in replaced
        x @ x
    for call in (lambda: x @ x, lambda: cp.fft.fft(x), lambda: cp.linalg.inv(x)):
        with pytest.raises((ImportError, RuntimeError)):
            call()  # type: ignore[no-untyped-call]


def test_a_library_call_has_the_form_of_a_hook(cp: ModuleType, clean: None) -> None:
    x, out = cp.arange(6.0).reshape(2, 3), cp.empty((2, 2))
    result = fakecuda.library_call("matmul", cp.matmul, (x, x.T), {"out": out})
    assert result is out
    assert out.get().tolist() == [[5.0, 14.0], [14.0, 50.0]]


def test_its_ranges_are_checked(cp: ModuleType) -> None:
    first, second = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    with first:
        x = cp.ones((4, 4))
    with second:
        fakecuda.library_call("matmul", cp.matmul, (x, x), {})
    (report,) = fakecuda.take_reports()
    assert report.kind == "race"
    assert report.sides[0].what == "matmul"


def test_a_failing_host_function_is_reported(cp: ModuleType, mode: str) -> None:
    def fail() -> None:
        raise ArithmeticError("no result")

    fakecuda.host_call("failing", fail, [], [])
    cp.cuda.Stream.null.synchronize()
    (report,) = fakecuda.take_reports()
    assert report.kind == "host call failed"
    assert "ArithmeticError: no result" in report.text
