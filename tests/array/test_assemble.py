from __future__ import annotations

import numpy as np
import pytest

from cuplace import errors
from cuplace.array.assemble import (
    make_array_from_callback,
    make_array_from_process_local_data,
    make_array_from_single_device_arrays,
)
from cuplace.array.put import device_put
from cuplace.placement.sharding import SingleDeviceSharding
from cuplace.placement.spec import P
from tests.array.places import numbers, on, places


@pytest.mark.parametrize(("spec", "calls"), [(("y",), 8), ((("x", "y"),), 8), ((), 1)])
def test_a_callback_gives_the_parts(platform, spec, calls):
    at, asked = places(platform), []
    sharding = on(at.grid, *spec)
    x = make_array_from_callback((8,), sharding, lambda index: asked.append(index) or numbers(8)[index])
    assert len(asked) == calls
    assert asked == list(sharding.layout((8,)).indices[:calls])
    assert (x.sharding, x.committed, x.dtype) == (sharding, True, np.float32)
    np.testing.assert_array_equal(x, numbers(8))


def test_parts_from_a_callback_may_be_numbers_and_arrays(platform):
    at = places(platform)
    assert make_array_from_callback((), on(at.full), lambda index: 1.0).item() == 1.0
    x = make_array_from_callback((8,), on(at.full, "x"), lambda index: device_put(numbers(8)[index]), "float32")
    np.testing.assert_array_equal(x, numbers(8))


@pytest.mark.parametrize(
    ("shape", "callback", "error", "text"),
    [
        ((8,), lambda index: numbers(8), ValueError, "(8,). Shape of Array is float32[8@x] with sharding Named"),
        ((8,), lambda index: 1.0, ValueError, "doesn't match the single device array shape ()"),
        ((8,), lambda index: np.zeros(1, "int32"), ValueError, "Got dtype=float32 and shard dtype=int32"),
        ((8,), lambda index: "a", TypeError, "is not a valid JAX type"),
        ((8,), lambda index: numbers(8)[index].astype("int8" if index[0].start == 3 else "float32"), ValueError,
         "Input buffers to `Array` must have matching dtypes. Got int8, expected float32 for buffer: [3]"),
        ((7,), lambda index: numbers(7)[index], ValueError, "7"),
        (8, lambda index: numbers(8)[index], TypeError, "8"),
    ],
)  # fmt: skip
def test_bad_parts_from_a_callback(platform, shape, callback, error, text):
    with pytest.raises(error) as caught:
        make_array_from_callback(shape, on(places(platform).full, "x"), callback, np.float32)
    assert text in str(caught.value)


def test_what_is_no_sharding(platform):
    for target in (platform.devices[0], P("x")):
        with pytest.raises(TypeError, match=r"sharding should be an instance of `jax.sharding`"):
            make_array_from_callback((8,), target, lambda index: numbers(8)[index])
        with pytest.raises(TypeError, match=r"sharding should be an instance of `jax.sharding`"):
            make_array_from_single_device_arrays((8,), target, [])


def singles(devices, size=1, dtype="float32"):
    return [device_put(np.full(size, i, dtype), device) for i, device in enumerate(devices)]


def test_single_device_arrays_are_matched_by_device(platform):
    at = places(platform)
    parts = singles(platform.devices)
    with platform.scheduler.log.record() as submissions:
        x = make_array_from_single_device_arrays((8,), on(at.full, "x"), parts[::-1])
        y = make_array_from_single_device_arrays((8,), on(at.reverse, "x"), tuple(parts), dtype=np.float32)
    assert not submissions
    np.testing.assert_array_equal(x, numbers(8))
    np.testing.assert_array_equal(y, numbers(8)[::-1])
    assert (x.committed, str(x.aval)) == (True, "float32[8@x]")
    assert x.addressable_shards[3].data._buffers is parts[3]._buffers
    x.delete()
    assert all(part.is_deleted() for part in parts)
    np.testing.assert_array_equal(y, numbers(8)[::-1])


def test_bad_single_device_arrays(platform):
    at = places(platform)
    parts = singles(platform.devices)
    half = singles(at.a.flat_devices, 2)
    for shape, sharding, arrays, error, text in [
        ((8,), on(at.a, "x"), half[:3], ValueError, "Expected 4 per-device arrays"),
        ((8,), on(at.b, "x"), half, ValueError, "devices {4, 5, 6, 7} that are not present in per-device arrays"),
        ((8,), on(at.full, "x"), singles(platform.devices, 2), ValueError, "Expected shard shape (1,)"),
        ((8,), on(at.a, "x"), [*half[:3], half[0]], ValueError, "but got device IDs [0, 1, 2, 0]"),
        ((8,), on(at.full, "x"), [*parts[:3], *singles(platform.devices, 1, "int32")[3:]], ValueError,
         "Got int32, expected float32 for buffer: [3]"),
        ((8,), on(at.full, "x"), [device_put(numbers(8), on(at.full, "x"))] * 8, ValueError, "had 8 shard(s)."),
        ((8,), on(at.full, "x"), list(numbers(8)), TypeError, "Unsupported type for elements in `arrays`"),
        ((8,), on(at.full, "x"), iter(parts), TypeError, "must be a list or tuple"),
    ]:  # fmt: skip
        with pytest.raises(error) as caught:
            make_array_from_single_device_arrays(shape, sharding, arrays)
        assert text in str(caught.value)
    parts[2].delete()
    with pytest.raises(errors.DeletedArrayError):
        make_array_from_single_device_arrays((8,), on(at.full, "x"), parts)


def test_the_data_of_one_process_are_all_data(platform):
    at = places(platform)
    x = make_array_from_process_local_data(on(at.full, "x"), numbers(8), (8,))
    assert x.sharding == on(at.full, "x")
    assert make_array_from_process_local_data(SingleDeviceSharding(platform.devices[1]), numbers(8)).committed
    with pytest.raises(ValueError, match=r"Got global_shape=\(16,\) and local_data.shape=\(8,\)\."):
        make_array_from_process_local_data(on(at.full, "x"), numbers(8), (16,))
