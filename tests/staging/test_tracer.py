from __future__ import annotations

import copy

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import errors


def traced(body, *args):
    """Run ``body`` while it is traced."""

    def f(x, *rest):
        return body(x, *rest)

    return cuplace.jit(f)(*args)


def u():
    return jnp.arange(8.0)


def test_what_a_traced_value_knows(platform):
    def body(x):
        assert (x.shape, x.dtype, x.ndim, x.size, x.itemsize, x.nbytes, len(x)) == ((8,), np.float32, 1, 8, 4, 32, 8)
        assert repr(x) == f"{x}" == "JitTracer(float32[8])"
        assert isinstance(x, cuplace.Array)
        assert cuplace.typeof(x) is x.aval
        return x

    traced(body, u())


def test_weak_values_are_shown(platform):
    shown = []
    traced(lambda x: shown.append(repr(x)), 1.0)
    assert shown == ["JitTracer(~float32[])"]


@pytest.mark.parametrize(("use", "name"), [(float, "float"), (int, "int"), (complex, "complex")])
def test_python_numbers_need_data(platform, use, name):
    with pytest.raises(errors.ConcretizationTypeError) as caught:
        traced(use, 1.0)
    text = str(caught.value)
    assert text.startswith(
        "Abstract tracer value encountered where concrete value is expected: traced array with shape float32[]\n"
        f"The problem arose with the `{name}` function."
    )
    assert "because it depends on the value of the argument x." in text
    with pytest.raises(TypeError, match=r"Only scalar arrays can be converted to Python scalars; got arr.ndim=1"):
        traced(use, u())


def test_conditions_need_data(platform):
    with pytest.raises(errors.TracerBoolConversionError, match=r"Attempted boolean conversion of traced array with"):
        traced(lambda x: 1 if (x > 0).all() else 2, u())
    with pytest.raises(ValueError, match="truth value of an array with more than one element is ambiguous"):
        traced(bool, u())


@pytest.mark.parametrize(
    ("use", "error", "text"),
    [
        (range, errors.TracerIntegerConversionError, r"The __index__\(\) method was called on traced array"),
        (np.asarray, errors.TracerArrayConversionError, r"numpy.ndarray conversion method __array__\(\) was called"),
        (lambda x: x.item(), errors.ConcretizationTypeError, r"This occurred in the item\(\) method"),
        (lambda x: x.tolist(), errors.ConcretizationTypeError, r"This occurred in the tolist\(\) method"),
        (lambda x: x.devices(), errors.ConcretizationTypeError, r"The devices\(\) method was called"),
        (lambda x: x.delete(), errors.ConcretizationTypeError, r"The delete\(\) method was called"),
        (lambda x: x.committed, errors.ConcretizationTypeError, "The 'committed' attribute is not available"),
        (lambda x: x.addressable_shards, errors.ConcretizationTypeError, "The 'addressable_shards' attribute"),
        (lambda x: x.is_fully_replicated, errors.ConcretizationTypeError, "The is_fully_replicated property"),
        (lambda x: x.sharding, AttributeError, r"To query sharding information on tracers, use `jax.typeof\(x\)`"),
        (lambda x: x.block_until_ready(), AttributeError, "The 'block_until_ready' method is not available"),
        (lambda x: x.nonsense, AttributeError, "nonsense"),
        (hash, TypeError, "unhashable"),
        (lambda x: x.__setitem__(0, 1), TypeError, "JAX arrays are immutable"),
    ],
)
def test_what_needs_data_or_a_place_raises(platform, use, error, text):
    with pytest.raises(error, match=text):
        traced(use, jnp.int32(3) if use is range else u())


def test_the_arguments_that_a_value_depends_on_are_named(platform):
    def f(a, b, c):
        return float(a + b) if c is not None else a

    with pytest.raises(TypeError, match=r"depends on the values of the arguments a and b\."):
        cuplace.jit(f)(1.0, 2.0, 3.0)


def test_length_and_iteration_are_known(platform):
    assert [int(v) for v in traced(list, jnp.arange(3))] == [0, 1, 2]
    with pytest.raises(TypeError, match="len"):
        traced(len, 1.0)


def test_values_that_escaped_are_recognized(platform):
    kept = []
    traced(lambda x: kept.append(x) or x, u())
    leaked = kept[0]
    assert repr(leaked) == "JitTracer(float32[8])"
    for use in (
        lambda: leaked + 1, lambda: jnp.sin(leaked), lambda: jnp.add(u(), leaked), lambda: -leaked,
        lambda: cuplace.jit(lambda y: y + leaked)(u()), lambda: cuplace.jit(lambda y: y)(leaked),
    ):  # fmt: skip
        with pytest.raises(errors.UnexpectedTracerError, match=r"Encountered an unexpected tracer[\s\S]*test_tracer"):
            use()


def test_numpy_operators_leave_the_work_to_us(platform):
    out = traced(lambda x: np.float32([1, 2]) + x, jnp.ones(2))
    np.testing.assert_array_equal(np.asarray(out), [2, 3])


def test_copies_of_traced_values_stay_in_the_trace(platform):
    out = traced(lambda x: copy.copy(x) + 1, u())
    np.testing.assert_array_equal(np.asarray(out), np.arange(8) + 1)
