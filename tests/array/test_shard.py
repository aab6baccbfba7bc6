from __future__ import annotations

import numpy as np

from cuplace.array.put import device_put
from cuplace.placement.sharding import SingleDeviceSharding
from tests.array.places import numbers, on, places


def test_a_shard_says_where_it_is_and_which_part(platform):
    at = places(platform)
    values = numbers(4, 8)
    x = device_put(values, on(at.grid, None, "y"))
    for place, shard in enumerate(x.addressable_shards):
        assert shard.device is platform.devices[place]
        assert shard.index[0] == slice(None)
        assert shard.replica_id == place // 4
        np.testing.assert_array_equal(shard.data, values[shard.index])
        assert shard.data.committed
        assert shard.data.sharding == SingleDeviceSharding(shard.device)


def test_the_data_shares_the_memory_and_the_end_of_the_array(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    shard = x.addressable_shards[3]
    assert shard.data._buffers[0] is x._buffers[3]
    x.delete()
    assert shard.data.is_deleted()


def test_it_prints_as_jax_prints_it(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    device = platform.devices[2]
    assert repr(x.addressable_shards[2]) == (
        f"Shard(device={device!r}, index=(slice(2, 3, None),), replica_id=0, data=[2.])"
    )
