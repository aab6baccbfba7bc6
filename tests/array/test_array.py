from __future__ import annotations

import copy
import gc
import weakref

import numpy as np
import pytest

from cuplace import errors
from cuplace.array.array import Array
from cuplace.array.put import device_put
from cuplace.placement.sharding import SingleDeviceSharding
from tests.array.places import numbers, on, places


def test_attributes(platform):
    at = places(platform)
    x = device_put(numbers(8, 2), on(at.full, "x"))
    assert (x.shape, x.ndim, x.size, x.itemsize, x.nbytes, x.dtype) == ((8, 2), 2, 16, 4, 64, np.float32)
    assert (x.sharding, x.committed, x.weak_type) == (on(at.full, "x"), True, False)
    assert (x.device, x.devices()) == (x.sharding, set(platform.devices))
    assert (x.is_fully_replicated, x.is_fully_addressable) == (False, True)
    assert str(x.aval) == "float32[8@x,2]"
    assert device_put(numbers(3)).device is platform.devices[0]
    assert device_put(numbers(3), on(at.m0)).device is platform.devices[0]
    assert device_put(x, on(at.full)).on_device_size_in_bytes() == 8 * 64
    assert x.on_device_size_in_bytes() == 64


def test_shards_in_mesh_order(platform):
    at = places(platform)
    x = device_put(numbers(8), on(at.reverse, "x"))
    shards = x.addressable_shards
    assert [s.device.id for s in shards] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert repr(shards[0]) == (
        f"Shard(device={platform.devices[7]!r}, index=(slice(0, 1, None),), replica_id=0, data=[0.])"
    )
    data = shards[2].data
    assert data.sharding == SingleDeviceSharding(platform.devices[5])
    assert data.committed
    assert x.addressable_shards[2].data is data
    assert x.addressable_data(2) is data
    assert x.addressable_data(-1).item() == 7.0
    assert [s.replica_id for s in device_put(x, on(at.grid, "x")).global_shards] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [s.replica_id for s in device_put(x, on(at.grid, "y")).global_shards] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert device_put(1.0).addressable_shards[0].index == ()
    with pytest.raises(IndexError):
        x.addressable_data(8)


def test_reading_a_shard_of_an_alias_and_deleting(platform):
    u = device_put(numbers(4))
    committed = device_put(u, platform.devices[0])
    view = committed.addressable_shards[0].data
    inner = view.addressable_shards[0].data
    u.delete()
    assert committed.is_deleted()
    assert view.is_deleted()
    assert inner.is_deleted()


def test_deleting_a_shard_leaves_the_array_alone(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    first, second = (s.data for s in x.addressable_shards[:2])
    first.delete()
    np.testing.assert_array_equal(x, numbers(8))
    assert x.addressable_shards[0].data.item() == 0.0
    assert x.addressable_shards[1].data is second


USES = {
    "repr": repr,
    "str": str,
    "asarray": np.asarray,
    "format": lambda x: f"{x}",
    "float": float,
    "item": lambda x: x.item(),
    "iter": iter,
    "shards": lambda x: x.addressable_shards,
    "data": lambda x: x.addressable_data(0),
    "devices": lambda x: x.devices(),
    "device": lambda x: x.device,
    "size": lambda x: x.on_device_size_in_bytes(),
    "async": lambda x: x.copy_to_host_async(),
    "ready": lambda x: x.is_ready(),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "dlpack": lambda x: x.__dlpack__(),
    "tolist": lambda x: x.tolist(),
    "bytes": bytes,
}


@pytest.mark.parametrize("use", USES)
def test_a_deleted_array_says_where_it_was_deleted(platform, use):
    x = device_put(numbers(1), platform.devices[0])
    if use == "float":
        x = device_put(1.0, platform.devices[0])
    np.asarray(x)
    x.delete()
    x.delete()
    with pytest.raises(errors.DeletedArrayError) as caught:
        USES[use](x)
    first, second = str(caught.value).splitlines()[:2]
    assert first == f"Array has been deleted with shape={x.aval}."
    assert second.startswith("It was deleted at ")
    assert "test_array.py" in second


def test_what_a_deleted_array_still_tells(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    x.delete()
    assert (x.shape, x.dtype, x.committed, x.is_deleted()) == ((8,), np.float32, True, True)
    assert x.sharding == on(places(platform).full, "x")
    with pytest.raises(RuntimeError, match=r"^INVALID_ARGUMENT: BlockHostUntilReady\(\) called on deleted or donated"):
        x.block_until_ready()


def test_memory_goes_by_reference_counts_alone(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    alias = x._alias(x._key, None)
    data = x.addressable_shards[0].data
    np.asarray(x)
    dead = [weakref.ref(buffer) for buffer in x._buffers]
    gc.disable()
    try:
        del x, alias
        assert dead[0]() is data._buffers[0]
        assert not any(ref() for ref in dead[1:])
        del data
        assert dead[0]() is None
    finally:
        gc.enable()


def test_ready_and_waiting(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    assert x.block_until_ready() is x
    assert x.is_ready()
    assert x.copy_to_host_async() is None
    latch = platform.scheduler.hold(platform.devices[0].upload)
    y = device_put(numbers(8), platform.devices[0])
    assert not y.is_ready()
    latch.release()
    assert y.block_until_ready().is_ready()


def test_copies_live_on(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    for copied in (copy.copy(x), copy.deepcopy(x), copy.deepcopy([x])[0]):
        assert copied is not x
        assert (copied.sharding, copied.committed) == (x.sharding, True)
    x.delete()
    np.testing.assert_array_equal(copied, numbers(8))


def test_arrays_never_change_and_are_not_called_or_hashed(platform):
    x = device_put(numbers(8))
    with pytest.raises(TypeError, match="JAX arrays are immutable and do not support in-place item assignment"):
        x[0] = 1.0
    with pytest.raises(TypeError, match="unhashable type"):
        hash(x)
    with pytest.raises(TypeError, match=r"device_put\(values, sharding\)"):
        Array([1.0])
    with pytest.raises(AttributeError):
        x.sharding = None


def test_to_device_is_device_put(platform):
    at = places(platform)
    x = device_put(numbers(8))
    assert x.to_device(platform.devices[1]).device is platform.devices[1]
    assert x.to_device(on(at.full, "x")).sharding == on(at.full, "x")
    with pytest.raises(NotImplementedError):
        x.to_device(platform.devices[1], stream=1)
