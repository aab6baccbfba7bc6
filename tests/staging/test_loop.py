from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuplace
import cuplace.numpy as jnp
from cuplace.lax import scan
from tests.array.places import numbers


@given(st.data())
def test_carries_that_change_places_in_any_way(platform, data):
    """Each new carry is an old one, an element, or a sum: whatever memory they share, values must be right."""
    count = data.draw(st.integers(1, 4))
    choice = st.tuples(st.sampled_from("cxs"), st.integers(0, count - 1))
    choices = data.draw(st.lists(choice, min_size=count, max_size=count))
    stacked = data.draw(st.integers(0, count - 1))
    length = data.draw(st.integers(0, 6))

    def body(c, x):
        new = tuple([{"c": c[k], "x": x, "s": c[k] + x}[kind] for kind, k in choices])
        return new, new[stacked] * 2

    xs = numbers(length, 3)
    carry = tuple([np.full(3, i, np.float32) for i in range(count)])
    found, ys = scan(body, carry, xs)
    stack = []
    for x in xs:
        carry, y = body(carry, x)
        stack.append(y)
    for one, expected in zip(found, carry, strict=True):
        np.testing.assert_array_equal(np.asarray(one), expected)
    np.testing.assert_array_equal(np.asarray(ys), np.array(stack, np.float32).reshape(length, 3))


@pytest.mark.parametrize("reverse", [False, True])
def test_constants_of_the_loop(platform, reverse):
    w = jnp.arange(3.0)
    carry, ys = scan(lambda c, x: (c, w * x), w + 1, jnp.arange(4.0), reverse=reverse)
    np.testing.assert_array_equal(np.asarray(carry), [1, 2, 3])
    np.testing.assert_array_equal(np.asarray(ys), np.outer(np.arange(4), np.arange(3)))


def test_results_go_straight_into_the_stack(platform):
    device = platform.devices[0]
    xs = cuplace.device_put(np.ones((64, 64, 64), np.float32), device)
    f = cuplace.jit(lambda xs: scan(lambda c, x: (c, jnp.sin(x)), 0.0, xs)[1])
    f(xs).block_until_ready()
    peak = device.memory_stats()["peak_bytes"]
    assert peak <= 3 * xs.nbytes + (1 << 20)
