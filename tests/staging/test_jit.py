from __future__ import annotations

import functools
import threading
from collections import namedtuple

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import errors
from tests.array.places import numbers, on, places

Pair = namedtuple("Pair", "first second")


def values(x):
    return np.asarray(x)


def test_one_trace_serves_all_places(platform):
    at = places(platform)
    f = cuplace.jit(lambda x: jnp.sin(x) + 1.0)
    for sharding in (on(at.a, "x"), on(at.b, "x"), on(at.a, "x")):
        out = f(cuplace.device_put(numbers(8), sharding))
        np.testing.assert_allclose(values(out), np.sin(numbers(8)) + 1, rtol=1e-6)
    assert f.cache_info() == (1, 2, 1, 2)
    for x in (numbers(8), jnp.arange(8.0), cuplace.device_put(numbers(8), platform.devices[2])):
        f(x)
    assert f.cache_info().traces == 2  # without a mesh the type is another one
    f(cuplace.device_put(numbers(8), on(at.reverse, "x")))
    f(cuplace.device_put(numbers(8), on(at.full, "x")))
    assert f.cache_info().traces == 3
    f.clear_cache()
    assert f.cache_info()[:2] == (0, 0)


def test_types_that_differ_are_traced_apart(platform):
    f = cuplace.jit(lambda x: x + 1)
    kinds = [numbers(8), numbers(4), np.arange(4, dtype=np.int32), 1, 1.0, np.float32(1), True]
    for x in kinds * 2:
        f(x)
    assert f.cache_info() == (7, 7, 7, 7)
    with cuplace.default_device(platform.devices[1]):
        f(1.0)
    assert (f.cache_info().traces, f.cache_info().executables) == (7, 8)


def test_pytrees_in_and_out(platform):
    def f(tree, *, scale):
        return {"z": tree["a"] * scale, "b": (tree["p"].first, None, [tree["p"].second + 1]), "n": tree["p"]}

    out = cuplace.jit(f)({"p": Pair(1.0, jnp.arange(3)), "a": numbers(2)}, scale=np.float32(3))
    assert list(out) == ["b", "n", "z"]
    assert type(out["n"]) is Pair
    assert out["b"][1] is None
    np.testing.assert_array_equal(values(out["z"]), numbers(2) * 3)
    np.testing.assert_array_equal(values(out["b"][2][0]), [1, 2, 3])
    assert cuplace.jit(lambda x: None)(1.0) is None
    assert cuplace.jit(lambda a, b: a if b is None else b)(2.0, None) == 2


def test_numbers_are_passed_at_the_call(platform):
    f = cuplace.jit(lambda x, k: x * k + k)
    for k in (1, 5, -3):
        np.testing.assert_array_equal(values(f(numbers(3), k)), numbers(3) * k + k)
    assert f.cache_info().traces == 1
    assert f(2, 3).weak_type
    with pytest.raises(OverflowError, match="too large to convert to int32"):
        f(numbers(3), 2**40)


def test_results_are_new_arrays(platform):
    x = jnp.arange(3)
    y = cuplace.jit(lambda x: x)(x)
    assert y is not x
    x.delete()
    np.testing.assert_array_equal(values(y), [0, 1, 2])


def test_python_values_and_numpy_values_may_be_returned(platform):
    out = cuplace.jit(lambda x: (3, 2.5, True, 1j, np.float32(7), numbers(2), x))(1)
    assert [str(o.dtype) for o in out] == ["int32", "float32", "bool", "complex64", "float32", "float32", "int32"]
    assert [o.weak_type for o in out] == [True, True, False, True, False, False, True]


def test_static_arguments(platform):
    calls = []

    @functools.partial(cuplace.jit, static_argnums=1, static_argnames="mode")
    def f(x, n, mode="add"):
        calls.append((n, mode))
        return x + n if mode == "add" else x * n

    assert float(f(2.0, 3)) == float(f(2.0, n=3)) == 5
    assert float(f(2.0, 3, mode="mul")) == 6
    assert float(f(2.0, 3, "mul")) == 6
    f(1.0, 3)
    assert calls == [(3, "add"), (3, "add"), (3, "mul"), (3, "mul")]
    with pytest.raises(ValueError, match=r"Non-hashable static arguments are not supported.*<class 'list'>, \[1\]"):
        f(1.0, [1])


def test_decorators_with_and_without_arguments(platform):
    @cuplace.jit
    def plain(x):
        """What it does."""
        return x + 1

    @cuplace.jit(static_argnames=("k",))
    def with_arguments(x, k=2):
        return x * k

    assert (float(plain(1.0)), float(with_arguments(3.0)), float(with_arguments(3.0, k=5))) == (2, 6, 15)
    assert (plain.__name__, plain.__doc__) == ("plain", "What it does.")
    assert repr(plain).startswith("<PjitFunction of <function test_decorators")
    assert plain.__wrapped__(1) == 2


def test_methods(platform):
    class Scaled:
        def __init__(self, k):
            self.k = k

        @functools.partial(cuplace.jit, static_argnums=0)
        def apply(self, x):
            return x * self.k

        @cuplace.jit
        def careless(self, x):
            return x

    assert float(Scaled(3).apply(2.0)) == 6
    assert isinstance(Scaled.apply, type(cuplace.jit(abs)))
    with pytest.raises(TypeError, match=r"Error interpreting argument to .*careless.*at path self"):
        Scaled(3).careless(2.0)


def test_inner_jitted_functions_are_inlined(platform):
    at = places(platform)
    inner = cuplace.jit(lambda x, n: x * n, static_argnums=1, out_shardings=on(at.full))
    outer = cuplace.jit(lambda y: inner(y + 1, 3) + 1)
    out = outer(cuplace.device_put(numbers(8), on(at.full, "x")))
    np.testing.assert_array_equal(values(out), (numbers(8) + 1) * 3 + 1)
    assert out.sharding == on(at.full, None)
    assert inner.cache_info().traces == 0
    with pytest.raises(TypeError, match="not marked as static"):
        cuplace.jit(lambda y: inner("text", 3))(1.0)


def test_errors_of_inner_functions_name_the_outer_argument(platform):
    at = places(platform)

    def inner(x):
        return cuplace.device_put(x, on(at.b, "x"))

    def outer(y):
        return cuplace.jit(inner)(y * 2)

    with pytest.raises(ValueError, match=r"argument y of .*<locals>.outer with .*\(.*<locals>.inner\)"):
        cuplace.jit(outer)(cuplace.device_put(numbers(8), on(at.a, "x")))


def test_names_of_arguments_in_errors(platform):
    at = places(platform)

    def moved(x):
        return cuplace.device_put(x, on(at.b, "x"))

    x = cuplace.device_put(numbers(8), on(at.a, "x"))
    for call, name in (
        (lambda: cuplace.jit(lambda t: moved(t["p"][0]))({"p": (x,)}), r"t\['p'\]\[0\]"),
        (lambda: cuplace.jit(lambda *a: moved(a[1]))(1.0, x), r"a\[1\]"),
        (lambda: cuplace.jit(lambda **k: moved(k["q"]))(q=x), r"k\['q'\]"),
        (lambda: cuplace.jit(lambda *, q: moved(q))(q=x), "q"),
        (lambda: cuplace.jit(functools.partial(lambda a, b: moved(b), 1))(x), "b"),
    ):
        with pytest.raises(ValueError, match=f"Got argument {name} of .*<lambda> with shape"):
            call()


@pytest.mark.parametrize("wrong", [3, "text", [1]])
def test_only_functions_are_jitted(platform, wrong):
    with pytest.raises(TypeError, match="Expected a callable value, got None"):
        cuplace.jit(None)
    with pytest.raises(TypeError, match="Expected a callable value, got"):
        cuplace.jit(wrong)


@pytest.mark.parametrize("argument", ["text", object(), np.array([object()]), np.array(["a"]), range(3)])
def test_arguments_must_be_arrays(platform, argument):
    with pytest.raises(errors.TracedValueError, match=r"Error interpreting argument to .* passed to the function at"):
        cuplace.jit(lambda x, y: x)(1.0, {"a": argument})


@pytest.mark.parametrize(("result", "path"), [("text", ""), ({"a": object()}, r" at output component \['a'\]")])
def test_results_must_be_arrays(platform, result, path):
    with pytest.raises(errors.TracedValueError, match=rf"function <lambda> at .* returned a value of .*{path}, which"):
        cuplace.jit(lambda x: result)(1.0)


def test_wrong_calls_raise_pythons_errors(platform):
    f = cuplace.jit(lambda a, b: a)
    for args, kwargs in (((1.0,), {}), ((1.0, 2.0, 3.0), {}), ((1.0,), {"c": 2.0})):
        with pytest.raises(TypeError, match="argument"):
            f(*args, **kwargs)


def test_exceptions_of_the_function_pass_through_and_leave_nothing(platform):
    attempts = []

    @cuplace.jit
    def f(x):
        attempts.append(x)
        if len(attempts) == 1:
            raise ZeroDivisionError("first")
        return x + 1

    with pytest.raises(ZeroDivisionError, match="first"):
        f(1.0)
    assert f.cache_info()[:2] == (0, 0)
    assert float(f(1.0)) == 2
    assert float(jnp.float32(1) + 1) == 2


def test_deleted_arguments_and_captured_arrays(platform):
    at = places(platform)
    for sharding in (platform.devices[0], on(at.full, "x")):
        x, captured = (cuplace.device_put(numbers(8), sharding) for _ in range(2))
        f, g = cuplace.jit(lambda x: x * 2), cuplace.jit(lambda y, captured=captured: y + captured)
        f(x), g(x)
        captured.delete()
        with pytest.raises(RuntimeError, match="Array has been deleted"):
            g(x)
        x.delete()
        with pytest.raises(RuntimeError, match=r"Array has been deleted with shape=float32\[8"):
            f(x)


def test_captured_arrays_of_all_kinds(platform):
    at = places(platform)
    host, free = numbers(8), jnp.arange(8.0)
    committed = cuplace.device_put(numbers(8), on(at.full, "x"))
    f = cuplace.jit(lambda x: x + host + free + committed)
    for _ in range(2):
        out = f(cuplace.device_put(numbers(8), on(at.full, "x")))
        np.testing.assert_array_equal(values(out), 4 * numbers(8))
        host[:] = 100  # captured as it was


def test_the_context_counts(platform):
    at = places(platform)
    f = cuplace.jit(lambda x: x + jnp.arange(8.0))
    assert f(numbers(8)).devices() == {platform.devices[0]}
    with cuplace.default_device(platform.devices[2]):
        assert f(numbers(8)).devices() == {platform.devices[2]}
    with cuplace.set_mesh(at.b):
        assert f(numbers(8)).sharding.mesh is at.b
    cuplace.config.update("enable_x64", True)
    assert cuplace.jit(lambda x: x)(1).dtype == np.int64


def test_shardings_on_a_call(platform):
    at = places(platform)
    f = cuplace.jit(lambda a, b: (a + b, a), in_shardings=(on(at.a, "x"), None), out_shardings=(on(at.a), None))
    total, first = f(numbers(8), jnp.arange(8.0))
    assert (total.sharding, first.sharding) == (on(at.a), on(at.a, "x"))
    with pytest.raises(TypeError, match="out_shardings leaf specifications"):
        cuplace.jit(lambda x: x, out_shardings=platform.devices[0])
    with pytest.raises(ValueError, match=r"One of pjit outputs with pytree key path result"):
        cuplace.jit(lambda x: x[:7], out_shardings=on(at.full, "x"))(numbers(8))


def test_many_threads_may_call_and_trace(platform):
    f = cuplace.jit(lambda x: jnp.sin(x) * 2 + x)
    found, failed = [], []

    def work(n):
        try:
            found.extend([(n, values(f(np.full(k, n, np.float32)))) for k in range(1, 6)])
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(found) == 30
    for n, value in found:
        np.testing.assert_allclose(value, np.sin(n) * 2 + n, rtol=1e-5, atol=1e-6)
    assert f.cache_info().executables == 5


def test_empty_and_zero_dimensional_arrays(platform):
    f = cuplace.jit(lambda x: (jnp.sin(x) + 1, x.sum(), x.T))
    for shape in ((0,), (0, 3), (), (1, 1)):
        a, b, c = f(np.ones(shape, np.float32))
        assert (a.shape, b.shape, c.shape) == (shape, (), shape[::-1])
        assert float(b) == np.ones(shape).sum()


def test_set_mesh_inside_is_refused(platform):
    with pytest.raises(ValueError, match=r"`set_mesh` can only be used outside of `jax.jit`"):
        cuplace.jit(lambda x: cuplace.set_mesh(places(platform).full))(1.0)
