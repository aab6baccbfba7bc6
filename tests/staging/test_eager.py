from __future__ import annotations

import inspect

import numpy as np
import pytest

import cuplace
from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.put import device_put
from cuplace.ops.convert import CONVERT
from cuplace.ops.elementwise import ADD, MUL, SIN
from cuplace.ops.reductions import REDUCE_SUM
from cuplace.placement.sharding import SingleDeviceSharding
from cuplace.staging.eager import eager, operator_of, unary_operator_of
from cuplace.staging.trace import bind
from cuplace.staging.tracer import Tracer
from tests.array.places import numbers, on, places

traced = []


@eager("add")
def add(x, y, /):
    """Add."""
    assert type(x) is Tracer
    assert type(y) is Tracer
    traced.append("add")
    dtype, weak = dtypes.promote([(x.dtype, x.weak_type), (y.dtype, y.weak_type)])
    return bind(ADD, *(bind(CONVERT, v, dtype=dtype, weak_type=weak) for v in (x, y)))


@eager("total", static=("axis",))
def total(a, axis=None, initial=None):
    out = bind(REDUCE_SUM, a, axes=(0,) if axis is None else (axis,), keepdims=False)
    return out if initial is None else bind(ADD, out, initial)


@eager("scaled", static=("n",))
def scaled(x, by=2.0, *, n=1, plus=None):
    out = bind(MUL, *(bind(CONVERT, v, dtype=np.dtype("float32"), weak_type=False) for v in (x, by)))
    for _ in range(n - 1):
        out = bind(ADD, out, out)
    return out if plus is None else bind(ADD, out, plus)


@eager("both", static=("n",), sequences=("arrays",), labels={"arrays": "args"})
def both(arrays, n=1):
    return [bind(SIN, a) for a in arrays], n


@eager("fresh", static=("value",), device="device")
def fresh(value, *, device=None):
    assert device is None
    return bind(SIN, value)


@eager("same")
def same(x):
    return x


def test_the_function_stays_itself():
    assert (add.__name__, add.__doc__) == ("add", "Add.")


def test_each_kind_of_call_is_traced_once(platform):
    traced.clear()
    x = device_put(numbers(3))
    for _ in range(3):
        for args in ((x, x), (x, 1), (x, 2.0), (1, x), (x, np.float32(1)), (x, numbers(3))):
            np.testing.assert_array_equal(np.asarray(add(*args)), sum(np.asarray(a) for a in args))
    assert len(traced) <= 6


def test_numbers_are_never_part_of_a_program(platform):
    x = device_put(numbers(3))
    add(x, 1)
    traced.clear()
    for k in range(20):
        np.testing.assert_array_equal(np.asarray(add(x, k)), numbers(3) + k)
    assert traced == []


def test_static_values_tell_calls_apart(platform):
    x = device_put(numbers(2, 3))
    np.testing.assert_array_equal(np.asarray(total(x, 1)), [3, 12])
    np.testing.assert_array_equal(np.asarray(total(x, axis=0)), [3, 5, 7])
    np.testing.assert_array_equal(np.asarray(total(x)), [3, 5, 7])
    np.testing.assert_array_equal(np.asarray(total(x, initial=np.float32(1))), [4, 6, 8])


def test_every_spelling_of_a_call_gives_its_own_result(platform):
    x, y = device_put(numbers(3)), device_put(numbers(3) + 1)
    for _ in range(3):
        for found, expected in (
            (scaled(x), numbers(3) * 2), (scaled(x, 3), numbers(3) * 3), (scaled(x, y), numbers(3) * (numbers(3) + 1)),
            (scaled(x=y, by=x), numbers(3) * (numbers(3) + 1)), (scaled(by=5, x=y), (numbers(3) + 1) * 5),
            (scaled(x, n=2), numbers(3) * 4), (scaled(x, 1, n=3, plus=y), numbers(3) * 4 + numbers(3) + 1),
            (scaled(x, plus=y), numbers(3) * 2 + numbers(3) + 1), (scaled(x, 1, plus=None, n=True), numbers(3)),
            (scaled(numbers(3), 2), numbers(3) * 2),
        ):  # fmt: skip
            np.testing.assert_array_equal(np.asarray(found), expected)


def test_sequences_and_results_of_several_arrays(platform):
    arrays, n = both([device_put(numbers(2)), device_put(numbers(3))], n=7)
    assert int(n) == 7
    assert [a.shape for a in arrays] == [(2,), (3,)]
    x, y = device_put(numbers(2), platform.devices[0]), device_put(numbers(2), platform.devices[1])
    with pytest.raises(ValueError, match=r"Got argument args\[0\] of both with .* and argument args\[1\] of both"):
        both((x, y))


def test_the_device_parameter_places_results(platform):
    at = places(platform)
    assert not fresh(1.0).committed
    for device in (platform.devices[3], on(at.full)):
        out = fresh(1.0, device=device)
        wanted = SingleDeviceSharding(device) if device is platform.devices[3] else device
        assert (out.committed, out.sharding) == (True, wanted)
    inside = cuplace.jit(lambda x: x + fresh(1.0, device=on(at.full)))(device_put(numbers(8), on(at.full, "x")))
    assert inside.sharding == on(at.full, "x")
    with pytest.raises(ValueError, match="only accepts"):
        fresh(1.0, device="cpu")


def test_inside_a_trace_the_body_is_run(platform):
    traced.clear()
    f = cuplace.jit(lambda x: add(add(x, x), 1))
    np.testing.assert_array_equal(np.asarray(f(numbers(3))), 2 * numbers(3) + 1)
    assert traced == ["add", "add"]


def test_what_comes_back_unchanged_is_the_same_object(platform):
    x = device_put(numbers(3), platform.devices[1])
    assert same(x) is x
    y = device_put(numbers(3))
    assert same(y) is y
    with cuplace.default_device(platform.devices[2]):
        assert same(y) is not y


@pytest.mark.parametrize("wrong", [[1, 2], (1,), {"a": 1}, None])
def test_lists_and_none_are_no_arrays(platform, wrong):
    for call in (lambda: add(1, wrong), lambda: cuplace.jit(lambda x: add(x, wrong))(1.0)):
        with pytest.raises(errors.ArgumentTypeError, match=r"add requires ndarray or scalar arguments, got <class '.*"):
            call()


def test_wrong_calls_raise_pythons_errors(platform):
    with pytest.raises(TypeError, match="missing a required"):
        add(1)
    with pytest.raises(TypeError):
        total(1.0, nonsense=3)
    x = device_put(numbers(3))
    for call in (add, same):
        right = (x, x)[: len(inspect.signature(call).parameters)]
        call(*right)  # from now on calls that are spelled so take a quicker road
        for extra in (x, None, 1):
            with pytest.raises(TypeError, match="too many positional arguments"):
                call(*right, extra)


def test_deleted_arrays_are_refused_on_the_quick_road_too(platform):
    at = places(platform)
    for sharding in (None, on(at.full, "x")):
        x, y = device_put(numbers(8), sharding), device_put(numbers(8), sharding)
        for _ in range(2):
            add(x, y), add(x, 1), add(1, x)
        y.delete()
        for args in ((x, y), (y, x), (y, 1), (1, y)):
            with pytest.raises(errors.DeletedArrayError):
                add(*args)


def test_operators_of_python(platform):
    x = device_put(numbers(3))
    plus = operator_of(add, lambda self, other: not isinstance(other, str), swapped=False)
    swapped = operator_of(add, lambda self, other: not isinstance(other, str), swapped=True)
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(plus(x, 1)), [1, 2, 3])
        np.testing.assert_array_equal(np.asarray(swapped(x, x)), [0, 2, 4])
        assert plus(x, "text") is NotImplemented
        assert swapped(x, "text") is NotImplemented
        assert unary_operator_of(same)(x) is x


def test_caches_are_bounded(platform, monkeypatch):
    from cuplace.staging import staged

    monkeypatch.setattr(staged, "MAX_KEPT", 4)
    for n in range(1, 20):
        x = device_put(numbers(n))
        np.testing.assert_array_equal(np.asarray(add(x, x)), 2 * numbers(n))
        for cache in (add.eager.quick, add.eager._bound, add.eager._known, add.eager._staged.programs):
            assert len(cache) <= 4
