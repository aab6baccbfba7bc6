from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuplace
import cuplace.numpy as jnp
from tests.array.places import numbers, on, places
from tests.memory import address_of, foreign_array, host_values

LARGE = (512, 600)  # more than a block of a chain


def addresses(x):
    return [address_of(buffer.array) for buffer in x._buffers]


def update(w, g):
    return w - 0.5 * g


def shardings(platform):
    at = places(platform)
    return None, platform.devices[1], on(at.auto, "x"), on(at.auto, None)


def put(values, sharding):
    return cuplace.block_until_ready(cuplace.device_put(values, sharding))


@pytest.mark.parametrize("shape", [(8, 4), LARGE])
def test_a_result_takes_over_the_memory(platform, shape):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    step = cuplace.jit(update, donate_argnums=0)
    for sharding in shardings(platform):
        w, g = put(values, sharding), put(values * 3, sharding)
        before, expected = addresses(w), values
        in_use = platform.devices[1].memory_stats()["bytes_in_use"]
        for _ in range(3):
            w, old = step(w, g), w
            expected = expected - np.float32(0.5) * (values * 3)
            assert old.is_deleted()
            assert addresses(w) == before
        np.testing.assert_allclose(np.asarray(w), expected, rtol=1e-5)
        np.testing.assert_array_equal(np.asarray(g), values * 3)
        assert platform.devices[1].memory_stats()["bytes_in_use"] == in_use


def test_a_tree_of_parameters_is_updated_in_place(platform):
    sharding = on(places(platform).full, "x")
    params = {name: put(numbers(16, 4) + k, sharding) for k, name in enumerate("abc")}
    before = {name: addresses(x) for name, x in params.items()}
    step = cuplace.jit(
        lambda params, g: ({k: jnp.tanh(x) * g for k, x in params.items()}, g.sum()), donate_argnums=0
    )
    params, total = step(params, jnp.float32(2))
    assert float(total) == 2.0
    assert {name: addresses(x) for name, x in params.items()} == before
    for k, x in enumerate(params.values()):
        np.testing.assert_allclose(np.asarray(x), np.tanh(numbers(16, 4) + k) * 2, rtol=1e-5)


# What reads the operand, or a view of it, after or while the result is written.
NOT_IN_PLACE = {
    "reads_later": lambda x, y: (x + 1, jnp.sum(x * y)),
    "transposed": lambda x, y: x + x.T,
    "view_later": lambda x, y: (x + 1, x.T * y),
    "matmul": lambda x, y: x @ y,
    "reversed": lambda x, y: x[::-1] + y,
    "row": lambda x, y: x + x[:1],
    "roll": lambda x, y: jnp.concatenate([x[1:], x[:1]]),
    "two": lambda x, y: (x + 1, x * 2),
    "scaled": lambda x, y: x / x.max(),
    "softmax": lambda x, y: jnp.exp(x - x.max(axis=1, keepdims=True)) * y,
    "chain": lambda x, y: jnp.sin(jnp.cos(x) + y) * x + (y * x - y),
    "twice": lambda x, y: (jnp.sin(x) + x, jnp.cos(x) * x),
    "same": lambda x, y: (x, x + y),
}


@pytest.mark.parametrize("name", NOT_IN_PLACE)
@pytest.mark.parametrize("rows", [8, 256])
def test_values_are_right_however_an_operand_is_read(platform, name, rows):
    f = NOT_IN_PLACE[name]
    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=(rows, rows)).astype(np.float32) for _ in range(2))
    plain, donating = cuplace.jit(f), cuplace.jit(f, donate_argnums=0)
    for sharding in shardings(platform):
        expected = plain(put(x, sharding), put(y, sharding))
        found = donating(put(x, sharding), put(y, sharding))
        for one, other in zip(cuplace.tree.leaves(found), cuplace.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-5, atol=1e-5)


UNARY = [jnp.sin, jnp.abs, lambda x: x.T, lambda x: -x, lambda x: x[::-1], lambda x: x + x.sum(axis=0)]
BINARY = [lambda x, y: x + y, lambda x, y: x * y, jnp.maximum, lambda x, y: x @ y]


@st.composite
def programs(draw):
    """A function of three square arrays, as a list of operations on the values so far, and the results it returns."""
    lines = []
    for n in range(3, 3 + draw(st.integers(1, 8))):
        if draw(st.booleans()):
            lines.append((draw(st.sampled_from(UNARY)), (draw(st.integers(0, n - 1)),)))
        else:
            lines.append((draw(st.sampled_from(BINARY)), (draw(st.integers(0, n - 1)), draw(st.integers(0, n - 1)))))
    results = draw(st.lists(st.integers(0, 2 + len(lines)), min_size=1, max_size=3))
    return lines, results


@settings(max_examples=10, deadline=None)
@given(program=programs(), size=st.sampled_from([8, 200]), where=st.integers(0, 3))
def test_any_program_gives_the_same_with_donated_operands(platform, program, size, where):
    lines, results = program

    def f(*values):
        values = list(values)
        for function, sources in lines:
            made = function(*[values[i] for i in sources])
            values.append(made / (1 + jnp.abs(made).max()))
        return [values[i] + 0 for i in results]

    rng = np.random.default_rng(2)
    operands = [rng.normal(size=(size, size)).astype(np.float32) for _ in range(3)]
    sharding = shardings(platform)[where]
    expected = cuplace.jit(f)(*[put(x, sharding) for x in operands])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some of them cannot be used
        found = cuplace.jit(f, donate_argnums=(0, 1, 2))(*[put(x, sharding) for x in operands])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5)


def test_a_view_of_the_host_keeps_its_values(platform):
    x = put(numbers(8), None)
    view = np.asarray(x)
    y = cuplace.jit(lambda x: x + 1, donate_argnums=0)(x)
    np.testing.assert_array_equal(np.asarray(y), numbers(8) + 1)
    np.testing.assert_array_equal(view, numbers(8))


def test_memory_that_another_array_shares_is_left_alone(platform):
    at = places(platform)
    x = put(numbers(8), on(at.full, None))
    part = cuplace.device_put(x, on(at.a, None))  # its devices hold these values already
    y = cuplace.jit(lambda x: x * 2, donate_argnums=0)(x)
    np.testing.assert_array_equal(np.asarray(part), numbers(8))
    np.testing.assert_array_equal(np.asarray(y), numbers(8) * 2)


def test_a_pending_reader_is_not_waited_for(platform):
    first, other = platform.devices[:2]
    x = put(numbers(8), first)
    latch = platform.scheduler.hold(first.transfer_to(other))
    moved = cuplace.device_put(x, other)
    y = cuplace.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted()
    np.testing.assert_array_equal(np.asarray(y), numbers(8) + 1)  # though the reader is held
    assert not moved.is_ready()
    latch.release()
    np.testing.assert_array_equal(np.asarray(moved), numbers(8))


def test_memory_of_somebody_else_is_not_written(platform):
    device = platform.devices[0]
    theirs = foreign_array(device, numbers(8))
    x = cuplace.Array._make([device.scheduler.adopt(theirs, device)], put(numbers(8), device)._key, None)
    y = cuplace.jit(lambda x: x + 1, donate_argnums=0)(x)
    np.testing.assert_array_equal(np.asarray(y), numbers(8) + 1)
    np.testing.assert_array_equal(host_values(theirs), numbers(8))


def test_other_threads_find_all_of_a_value_or_none(platform):
    """While one thread updates its parameters in place, others copy them; a copy never mixes two steps."""
    device = platform.devices[1]
    box = [put(np.zeros(64, np.float32), None)]
    step = cuplace.jit(lambda x: x + 1, donate_argnums=0)
    failed, copied, running = [], [], threading.Event()

    def watch():
        while not running.is_set():
            try:
                values = np.asarray(cuplace.device_put(box[0], device))
            except RuntimeError:  # deleted in this moment
                continue
            copied.append(values[0])
            if not (values == values[0]).all():
                failed.append(values)

    threads = [threading.Thread(target=watch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        box[0] = step(box[0])
    running.set()
    for thread in threads:
        thread.join()
    assert not failed
    np.testing.assert_array_equal(np.asarray(box[0]), np.full(64, 60, np.float32))
