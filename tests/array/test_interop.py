from __future__ import annotations

import operator
import pickle

import ml_dtypes
import numpy as np
import pytest

import cuplace
from cuplace import errors
from cuplace.array.put import device_put
from cuplace.placement.sharding import SingleDeviceSharding
from cuplace.runtime.platform import activated, open_platform
from tests.array.places import numbers, on, places


def test_asarray_is_read_only_and_always_the_same_object(platform):
    at = places(platform)
    for x in (device_put(numbers(8)), device_put(numbers(8), on(at.full, "x")), device_put(numbers(8), on(at.full))):
        host = np.asarray(x)
        assert host is np.asarray(x)
        assert not host.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            host[0] = 1
        copy = np.array(x)
        copy[0] = 5
        np.testing.assert_array_equal(x, numbers(8))
        assert np.asarray(x, dtype="float64").dtype == np.float64
        assert np.asarray(x, dtype="float32") is host
        with pytest.raises(ValueError, match="Unable to avoid copy"):
            np.asarray(x, dtype="int32", copy=False)


def test_a_view_outlives_its_array(platform):
    x = device_put(numbers(8), platform.devices[0])
    view = np.asarray(x)[2:4]
    x.delete()
    del x
    filler = [device_put(np.full(8, -1, "float32"), platform.devices[0]) for _ in range(4)]
    filler[-1].block_until_ready()
    np.testing.assert_array_equal(view, [2, 3])


def test_numpy_functions_give_numpy_arrays(platform):
    x = device_put(numbers(3))
    assert type(np.add(x, 1)) is np.ndarray
    np.testing.assert_array_equal(np.add(x, 1), [1, 2, 3])
    assert x.__array_priority__ == 100


def scalars():
    return device_put(np.float32(1.5)), device_put(np.int8(3)), device_put(np.complex64(1 + 2j)), device_put(True)


def test_python_numbers(platform):
    f, i, c, b = scalars()
    assert (float(f), int(f), complex(c), float(b), int(i)) == (1.5, 1, 1 + 2j, 1.0, 3)
    assert operator.index(i) == 3
    assert [10, 11, 12, 13][i] == 13
    assert float(device_put(np.array(2, ml_dtypes.bfloat16))) == 2.0
    for bad in (f, b, device_put(np.int32([1]))):
        with pytest.raises(TypeError, match=r"Only integer scalar arrays can be converted to a scalar index."):
            operator.index(bad)
    for convert in (float, int, complex):
        with pytest.raises(TypeError, match=r"Only scalar arrays can be converted to Python scalars; got arr.ndim=1"):
            convert(device_put(numbers(1)))
    with pytest.raises(TypeError, match="not 'complex'"):
        float(c)


def test_truth(platform):
    assert bool(device_put(np.float32([2])))
    assert not bool(device_put(0))
    with pytest.raises(ValueError, match=r"more than one element is ambiguous. Use a.any\(\) or a.all\(\)"):
        bool(device_put(numbers(2)))
    with pytest.raises(ValueError, match="truth value of an empty array is ambiguous"):
        bool(device_put(numbers(0, 3)))


def test_elements_and_lengths(platform):
    x = device_put(numbers(2, 3), on(places(platform).full))
    assert (len(x), x.item(4), x.item(1, 2), x.tolist()) == (2, 4.0, 5.0, [[0, 1, 2], [3, 4, 5]])
    assert bytes(x) == numbers(2, 3).tobytes()
    assert device_put(numbers(1)).item() == 0.0
    with pytest.raises(ValueError, match="can only convert an array of size 1"):
        x.item()
    scalar = device_put(1.0)
    with pytest.raises(TypeError, match=r"^len\(\) of unsized object"):
        len(scalar)
    with pytest.raises(TypeError, match=r"^iteration over a 0-d array"):
        iter(scalar)


def test_the_elements_of_a_sharded_array_are_new_uncommitted_arrays(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    elements = list(x)
    assert [element.item() for element in elements] == list(range(8))
    assert all(not e.committed and e.device is platform.devices[0] for e in elements)


def test_printing(platform):
    f, *_ = scalars()
    assert f"{f:.2f}" == "1.50"
    x = device_put(numbers(2))
    assert (repr(x), str(x), f"{x}") == ("Array([0., 1.], dtype=float32)", "[0. 1.]", "[0. 1.]")
    assert repr(device_put(1.5)) == "Array(1.5, dtype=float32, weak_type=True)"
    with pytest.raises(TypeError, match="unsupported format string"):
        f"{x:.2f}"


def test_the_elements_of_a_replicated_array_stay_where_it_is(platform):
    assert cuplace.numpy is not None  # loads the operators, indexing among them
    at = places(platform)
    first, second = device_put(numbers(2, 3), on(at.full))
    assert first.sharding.is_fully_replicated
    assert second.devices() == set(platform.devices)
    np.testing.assert_array_equal(second, [3, 4, 5])
    assert [e.committed for e in device_put(numbers(2))] == [False, False]


def test_pickling_keeps_the_place(platform):
    at = places(platform)
    for sharding in (on(at.full, "x"), on(at.reverse, "x"), SingleDeviceSharding(platform.devices[3])):
        y = pickle.loads(pickle.dumps(device_put(numbers(8), sharding)))
        assert (y.sharding, y.committed) == (sharding, True)
        np.testing.assert_array_equal(y, numbers(8))
    u = pickle.loads(pickle.dumps(device_put(1.5)))
    assert (u.committed, u.weak_type, u.item()) == (False, True, 1.5)


def test_unpickling_where_the_devices_are_missing(platform):
    data = pickle.dumps(device_put(numbers(8), on(places(platform).full, "x")))
    smaller = open_platform(platform.name, 2)
    with activated(smaller), pytest.raises(errors.AbsentDeviceError, match="There is no device"):
        pickle.loads(data)
    smaller.close()
