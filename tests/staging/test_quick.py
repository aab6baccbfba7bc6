"""The quick roads do exactly what the general one does."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace.staging.executable import Executable
from cuplace.staging.staged import Bound
from tests.array.places import numbers, on, places


def bound_of(function):
    (found,) = function._bound.values()
    return found


@pytest.mark.parametrize("where", ["default", "device", "mesh"])
@pytest.mark.parametrize(
    "function", [lambda x: x + x, lambda x: (jnp.sin(x), x * 2), lambda x: {"a": x @ x, "b": x.sum()}]
)
def test_quick_runs_agree_with_the_executable(platform, function, where):
    places_of = {"default": None, "device": platform.devices[2], "mesh": on(places(platform).full, "x")}
    x = cuplace.device_put(numbers(8, 8), places_of[where])
    jitted = cuplace.jit(function)
    jitted(x)
    bound = bound_of(jitted)
    executable = bound.executable
    assert isinstance(executable, Executable)
    if executable.plain(1) is not None:
        assert bound.run is not executable
    for quick, general in zip(bound.run((x,)), executable((x,)), strict=True):
        assert quick._key is general._key
        assert quick._origin == general._origin or where == "default"
        np.testing.assert_array_equal(np.asarray(quick), np.asarray(general))
    if bound.is_single:
        (general,), direct = executable((x,)), bound.direct(x)
        assert direct._key is general._key
        assert direct._origin == general._origin or where == "default"
        np.testing.assert_array_equal(np.asarray(direct), np.asarray(general))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_direct_runs_take_operands_in_their_order(platform, order):
    x, y = jnp.arange(3.0), jnp.ones(3)
    operands = [(x, y), (x, 2.0), (3.0, x)]
    for one in operands:
        given = [one[i] for i in order]
        jitted = cuplace.jit(lambda a, b: a - b)
        for _ in range(2):
            out = jitted(*given)
            np.testing.assert_array_equal(np.asarray(out), np.asarray(given[0]) - np.asarray(given[1]))
        bound = bound_of(jitted)
        assert type(bound) is Bound
        np.testing.assert_array_equal(np.asarray(bound.direct(*given)), np.asarray(out))


def test_captured_arrays_take_the_quick_road(platform):
    at = places(platform)
    w = cuplace.device_put(numbers(8), on(at.full, "x"))
    f = cuplace.jit(lambda x: x * w)
    for x in (cuplace.device_put(numbers(8), on(at.full, "x")),) * 2:
        out = f(x)
    assert bound_of(f).run is not bound_of(f).executable
    np.testing.assert_array_equal(np.asarray(out), numbers(8) ** 2)
    assert out._origin is not None


def test_one_submission_each(platform):
    x = jnp.arange(4.0)
    x + x, x + 1.0
    with platform.scheduler.log.record() as submissions:
        x + x
        x + 1.0
        jnp.sin(x)
    assert [(s.kind, s.name) for s in submissions] == [("compute", "add"), ("compute", "add"), ("compute", "sin")]
    assert all(s.line.function == "test_one_submission_each" for s in submissions)


def test_an_array_that_another_thread_deletes_is_there_or_deleted(platform):
    at = on(places(platform).full, "x")
    for _ in range(100):
        x = cuplace.device_put(numbers(8), at)
        deleting = threading.Thread(target=x.delete)
        deleting.start()
        try:
            y = x + x
        except cuplace.errors.DeletedArrayError:
            y = None
        deleting.join()
        if y is not None:
            np.testing.assert_array_equal(np.asarray(y), 2 * numbers(8))
