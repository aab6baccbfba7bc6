from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuplace
import cuplace.numpy as jnp
from cuplace.array.put import device_put
from cuplace.ops import loops, sine
from cuplace.ops.loops import LIMIT, WORTHWHILE, host_function
from tests.array.places import on, places

F32 = np.dtype(np.float32)
NAMES = st.sampled_from(["sin", "cos"])


BLOCK = 2500
"""Numbers that are copied before they are overwritten, in these tests."""


@pytest.fixture(autouse=True, scope="module")
def _as_in_a_segment():
    given_block, loops.BLOCK = loops.BLOCK, BLOCK
    with np.errstate(all="ignore"):
        yield
    loops.BLOCK = given_block


def loop(name):
    return host_function(name, F32, WORTHWHILE)


def assert_close_enough(name, x, found):
    """As close as promised where a loop computes, and as NumPy's elsewhere; float64 has 29 bits more."""
    exact = getattr(np, name)(x.astype(np.float64))
    finite = np.isfinite(x)
    assert np.isnan(found[~finite]).all()
    error = np.abs(found[finite] - exact[finite])
    unit = np.ldexp(1.0, np.maximum(np.frexp(exact[finite])[1] - 24, -149))
    assert (error <= np.where(np.abs(x[finite]) < LIMIT, 1.25, 1.5) * unit).all()


def numbers(seed, size, exponents):
    """As many float32 of both signs, whose magnitudes are spread evenly over binary exponents."""
    rng = np.random.default_rng(seed)
    return (np.exp2(rng.uniform(*exponents, size)) * rng.choice([-1, 1], size)).astype(np.float32)


EXPONENTS = st.sampled_from([(-3, 5), (-149, 128), (0, 20), (18, 22)])
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, LIMIT, np.nextafter(LIMIT, 0, dtype=np.float32)]


@given(NAMES, st.integers(0, 1 << 30), EXPONENTS, st.integers(0, 3 * BLOCK))
def test_values_are_within_a_unit_and_a_quarter(name, seed, exponents, size):
    x = numbers(seed, size, exponents)
    assert_close_enough(name, x, loop(name)(x))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_next_to_multiples_of_a_quarter_turn(name):
    """There the result is as small as it gets, and all digits of pi count."""
    x = (np.arange(-680_000, 680_000) * (np.pi / 2)).astype(np.float32)
    for beside in (x, np.nextafter(x, -np.inf), np.nextafter(x, np.inf)):
        assert_close_enough(name, beside, loop(name)(beside))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_numbers_that_are_special(name):
    x = np.tile(np.array(SPECIAL, np.float32), BLOCK)
    found = loop(name)(x)
    assert_close_enough(name, x, found)
    if name == "sin":
        np.testing.assert_array_equal(np.signbit(found[:2]), [False, True])


@given(NAMES, st.integers(0, 1 << 30), EXPONENTS, st.integers(2, 3 * BLOCK), st.data())
def test_a_value_does_not_depend_on_what_is_beside_it(name, seed, exponents, size, data):
    x = numbers(seed, size, exponents)
    expected = loop(name)(x)
    start = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(start + 1, size))
    np.testing.assert_array_equal(loop(name)(x[start:stop].copy()), expected[start:stop])
    other = data.draw(st.sampled_from(SPECIAL))
    beside, x[start] = x.copy(), other
    found = loop(name)(x)
    same = x == beside
    np.testing.assert_array_equal(found[same], expected[same])


@given(NAMES, st.integers(0, 1 << 30), EXPONENTS, st.integers(1, 3 * BLOCK))
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
    np.testing.assert_array_equal(wide[:, ::2], expected)
    misaligned = np.zeros(4 * x.size + 1, np.uint8)[1:].view(np.float32)
    misaligned[:] = x.ravel()
    np.testing.assert_array_equal(loop("sin")(misaligned), expected.ravel())
    loop("sin")(x.ravel(), out=misaligned)
    np.testing.assert_array_equal(misaligned, expected.ravel())
    np.testing.assert_array_equal(loop("sin")(x[:1], out=np.empty_like(x)), np.broadcast_to(expected[0], x.shape))
    assert loop("sin")(np.float32(1) + np.zeros((), np.float32)).shape == ()


def test_a_dtype_may_be_an_object_of_its_own():
    """As that of an array that was unpickled."""
    own = pickle.loads(pickle.dumps(np.zeros(1, np.float32))).dtype
    assert own is not F32
    assert loops._is_plain(np.zeros(9, own))


def test_other_functions_dtypes_and_few_numbers_are_numpys():
    assert host_function("sin", np.dtype(np.float64), 1 << 20) is np.sin
    assert host_function("exp", F32, 1 << 20) is np.exp
    assert host_function("cos", F32, WORTHWHILE - 1) is np.cos
    assert host_function("cos", F32, WORTHWHILE) is not np.cos


def test_arrays_have_the_same_bits_wherever_they_are_computed(platform):
    x = numbers(1, 64 * 1024, (-3, 25)).reshape(64, 1024)
    x[::7, ::9] = np.nan
    at, f = places(platform), lambda y: jnp.cos(jnp.sin(y) * 2)
    placed = [device_put(x, on(mesh, "x")) for mesh in (at.full, at.a, at.m0)]
    found = [np.asarray(g(y)) for y in placed for g in (f, cuplace.jit(f))]
    np.testing.assert_allclose(found[0], np.cos(np.sin(x.astype(np.float64)) * 2), rtol=0, atol=1e-6)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_without_a_folder_for_the_cache():
    """There is none for what no file defines."""
    lines = ["def double(x, out):", "    for i in range(x.size):", "        out[i] = 2 * x[i]"]
    names = {}
    exec("\n".join([*lines, "    return True"]), names)
    x = np.arange(5, dtype=np.float32)
    out = np.empty_like(x)
    assert sine._compiled(names["double"])(x, out)
    np.testing.assert_array_equal(out, 2 * x)


OLD = "import os; os.environ['NUMBA_CPU_FEATURES'] = '-fma';"
SINES = "import sys, numpy, cuplace; x = numpy.ones(1 << 16, 'f'); y = cuplace.numpy.sin(x)[0]; "


@pytest.mark.parametrize(
    "program",
    [
        "import sys, numpy, cuplace; cuplace.numpy.sin(numpy.ones(9, 'f')); sys.exit('numba' in sys.modules)",
        f"{SINES} sys.exit('numba' not in sys.modules)",
        f"import sys; sys.modules['numba'] = None; {SINES} sys.exit(int(float(y) != numpy.sin(x)[0]))",
        f"import os; os.environ['NUMBA_DISABLE_JIT'] = '1'; {SINES} sys.exit(int(float(y) != numpy.sin(x)[0]))",
        f"{OLD} {SINES} sys.exit(cuplace.ops.loops._loop('sin') is not numpy.sin)",
    ],
    ids=["few numbers", "many", "no compiler", "turned off", "old processor"],
)
def test_the_compiler_is_loaded_where_it_is_needed_and_may_be_missing(program):
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


@pytest.mark.parametrize("seconds", [0.1, 0.3])
def test_an_interrupt_does_not_leave_it_half_loaded(seconds):
    program = f"""
import signal, numpy as np
from cuplace.ops.loops import WORTHWHILE, host_function
def interrupted(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupted)
signal.setitimer(signal.ITIMER_REAL, {seconds})
try:
    host_function("sin", np.dtype("f"), WORTHWHILE)
    signal.pause()
except KeyboardInterrupt:
    pass
assert host_function("sin", np.dtype("f"), WORTHWHILE)(np.zeros(5, "f")).sum() == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True)
