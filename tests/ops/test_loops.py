from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuplace
import cuplace.numpy as jnp
from cuplace.ops import sine
from cuplace.ops.loops import WORTHWHILE, host_function
from tests.array.places import on, places

F32 = np.dtype(np.float32)
NAMES = st.sampled_from(["sin", "cos"])
ERROR = 0.51
"""Units in the last place: half of one is rounding."""


def loop(name):
    return host_function(name, F32, WORTHWHILE)


def assert_nearly_rounded(name, x, found):
    """The values are those of float64, which has 29 bits more."""
    with np.errstate(invalid="ignore"):
        exact = getattr(np, name)(x.astype(np.float64))
    finite = np.isfinite(x)
    assert np.isnan(found[~finite]).all()
    unit = np.spacing(np.abs(exact[finite]).astype(np.float32)).astype(np.float64)
    assert (np.abs(found[finite] - exact[finite]) <= ERROR * unit).all()


def numbers(seed, size, exponents):
    """As many float32 of both signs, whose magnitudes are spread evenly over binary exponents."""
    rng = np.random.default_rng(seed)
    return (np.exp2(rng.uniform(*exponents, size)) * rng.choice([-1, 1], size)).astype(np.float32)


@given(NAMES, st.integers(0, 1 << 30), st.sampled_from([(-3, 5), (-149, 128), (0, 24), (20, 26)]),
       st.integers(0, 3 * sine.BLOCK))  # fmt: skip
def test_values_are_rounded_nearly_exactly(name, seed, exponents, size):
    x = numbers(seed, size, exponents)
    assert_nearly_rounded(name, x, loop(name)(x))


@given(NAMES)
def test_next_to_multiples_of_a_quarter_turn(name):
    """There the result is as small as it gets, and all digits of pi count."""
    x = (np.arange(-300_000, 300_000) * (np.pi / 2)).astype(np.float32)
    assert_nearly_rounded(name, x, loop(name)(x))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_numbers_that_are_special(name):
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, 2.0**24, 2.0**24 - 1], np.float32)
    x = np.tile(special, sine.BLOCK)
    found = loop(name)(x)
    assert_nearly_rounded(name, x, found)
    if name == "sin":
        np.testing.assert_array_equal(np.signbit(found[:2]), [False, True])


@given(NAMES, st.integers(0, 1 << 30), st.sampled_from([(-3, 5), (20, 26)]), st.integers(1, 3 * sine.BLOCK))
def test_in_place_and_where_memory_overlaps(name, seed, exponents, size):
    x = numbers(seed, size, exponents)
    expected = loop(name)(x)
    memory = np.zeros(size + 1, np.float32)
    memory[:size] = x
    loop(name)(memory[:size], out=memory[:size])
    np.testing.assert_array_equal(memory[:size], expected)
    memory[:size] = x
    loop(name)(memory[:size], memory[1:])
    np.testing.assert_array_equal(memory[1:], expected)


def test_arrays_of_any_layout_and_that_may_not_be_written():
    x = numbers(0, 12 * 500, (-3, 5)).reshape(60, 100)
    expected = loop("sin")(x)
    assert expected.shape == x.shape
    x.flags.writeable = False
    turned, wide = np.empty((100, 60), np.float32), np.zeros((60, 200), np.float32)
    np.testing.assert_array_equal(loop("sin")(x.T), expected.T)
    np.testing.assert_array_equal(loop("sin")(np.broadcast_to(x[0], (60, 100)))[7], expected[0])
    np.testing.assert_array_equal(loop("sin")(x.T, out=turned), expected.T)
    loop("sin")(x, out=wide[:, ::2])
    np.testing.assert_allclose(wide[:, ::2], expected, rtol=3e-7, atol=1e-7)
    misaligned = np.zeros(4 * x.size + 1, np.uint8)[1:].view(np.float32)
    misaligned[:] = x.ravel()
    np.testing.assert_array_equal(loop("sin")(misaligned), expected.ravel())
    np.testing.assert_array_equal(loop("sin")(x[:1], out=np.empty_like(x)), np.broadcast_to(expected[0], x.shape))


def test_other_functions_dtypes_and_few_numbers_are_numpys():
    assert host_function("sin", np.dtype(np.float64), 1 << 20) is np.sin
    assert host_function("exp", F32, 1 << 20) is np.exp
    assert host_function("cos", F32, WORTHWHILE - 1) is np.cos
    assert host_function("cos", F32, WORTHWHILE) is not np.cos


def test_large_shards_on_every_platform(platform):
    x = numbers(1, 64 * 1024, (-3, 5)).reshape(64, 1024)
    at = places(platform)
    y = cuplace.device_put(x, on(at.full, "x"))
    expected = np.cos(np.sin(x.astype(np.float64)) * 2)
    for f in (lambda y: jnp.cos(jnp.sin(y) * 2), cuplace.jit(lambda y: jnp.cos(jnp.sin(y) * 2))):
        np.testing.assert_allclose(np.asarray(f(y)), expected, rtol=0, atol=1e-6)


def test_without_a_folder_for_the_cache():
    """There is none for what no file defines."""
    lines = ["def double(x, out, half):", "    for i in range(x.size):", "        out[i] = 2 * x[i] + half"]
    names = {}
    exec("\n".join([*lines, "    return True"]), names)
    x = np.arange(5, dtype=np.float32)
    out = np.empty_like(x)
    assert sine._compiled()(names["double"])(x, out, 0.5)
    np.testing.assert_array_equal(out, 2 * x + np.float32(0.5))


def test_nothing_loads_the_compiler_before_it_is_needed():
    program = "import sys, numpy, cuplace; cuplace.numpy.sin(numpy.ones(9, 'f')); sys.exit('numba' in sys.modules)"
    assert importlib.util.find_spec("numba") is not None
    subprocess.run([sys.executable, "-c", program], check=True)
