"""The array module of the cuda platform: CuPy, with one door for libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import NamedSharding, P
from cuplace.runtime.platform import Platform
from tests.fakegpus import CASES


def values(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("cuda", CASES, indirect=True, ids=lambda case: case.label)
def test_libraries_compute_in_the_order_of_their_stream(cuda: Platform) -> None:
    mesh = cuplace.make_mesh((8,), ("x",))
    a, b = values(16, 8), values(8, 8)
    left = cuplace.device_put(a, NamedSharding(mesh, P("x", None)))
    right = cuplace.device_put(b, NamedSharding(mesh, P()))
    product = jnp.matmul(jnp.matmul(left + 1, right), right) * 2
    ordered = jnp.sort(product, axis=1)
    expected = ((a + 1) @ b @ b) * 2
    np.testing.assert_allclose(np.asarray(product), expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(np.asarray(ordered), np.sort(expected, axis=1), rtol=1e-3, atol=1e-3)


def test_only_libraries_go_through_the_hook(cuda: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuplace.runtime.backends.cuda import hooks

    library, asked = hooks.library, []

    def spy(name: str, function: Any, args: Any, kwargs: Any) -> Any:
        asked.append(name)
        assert library is not None
        return library(name, function, args, kwargs)

    monkeypatch.setattr(hooks, "library", spy)
    x = cuplace.device_put(values(4, 4), cuda.devices[0])
    (jnp.sin(x) + x.sum()).block_until_ready()
    assert asked == []
    (x @ x).block_until_ready()
    assert asked == ["matmul"]


def test_without_a_hook_it_is_cupys_function(cuda: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    from cuplace.runtime.backends.cuda import hooks

    monkeypatch.setattr(hooks, "library", None)
    called = []
    monkeypatch.setattr(cupy, "sort", lambda *args, **kwargs: called.append((args, kwargs)))
    from cuplace.runtime.backends.cuda.library import ArrayModule

    ArrayModule().sort("values", axis=1)
    assert called == [(("values",), {"axis": 1})]


def test_modules_of_libraries_are_behind_the_door_too(cuda: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuplace.runtime.backends.cuda import hooks
    from cuplace.runtime.backends.cuda.library import ArrayModule

    monkeypatch.setattr(hooks, "library", lambda name, function, args, kwargs: (name, args))
    xp = ArrayModule()
    assert xp.linalg.norm(1) == ("linalg.norm", (1,))
    assert xp.fft.fft(2) == ("fft.fft", (2,))
    assert xp.linalg is xp.linalg
    assert repr(xp.fft) == "ArrayModule(cupy.fft)"
    with pytest.raises(AttributeError):
        xp.no_such_function
