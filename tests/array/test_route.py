from __future__ import annotations

import numpy as np
import pytest

from cuplace import errors
from cuplace.array.key import key_of
from cuplace.array.route import check_fit, host_key, route
from cuplace.placement.sharding import SingleDeviceSharding
from cuplace.runtime.context import default_device
from cuplace.runtime.platform import open_platform
from tests.array.places import on, places

F32 = np.dtype("float32")


def test_a_route_is_decided_once(platform):
    at = places(platform)
    key = key_of((8,), F32, False, on(at.full, "x"), True)
    found = route(key, on(at.a, "x"))
    assert found is route(key, on(at.a, "x"))
    assert found.key is key_of((8,), F32, False, on(at.a, "x"), True)
    assert (found.plan.num_moves, found.plan.nbytes, found.is_same) == (8, 32, False)


def test_only_an_array_that_is_there_under_that_very_sharding_is_the_result_itself(platform):
    at, device = places(platform), platform.devices[0]
    here = key_of((8,), F32, False, on(at.full, "x"), True)
    assert route(here, on(at.full, "x"))[1:] == (None, True)
    # Another spelling of the same place, and a single device, give a new array over the same memory.
    assert route(here, on(at.auto, "x"))[1:] == (None, False)
    single = key_of((8,), F32, False, SingleDeviceSharding(device), True)
    assert route(single, device)[1:] == (None, False)
    uncommitted = key_of((8,), F32, False, SingleDeviceSharding(device), False)
    assert route(uncommitted, device)[1:] == (None, False)
    assert route(uncommitted, device).key.committed
    assert route(single, on(at.m0))[1:] == (None, False)


def test_new_memory_where_none_may_be_shared(platform):
    at = places(platform)
    key = key_of((8,), F32, False, on(at.full), True)
    assert route(key, on(at.full), False).plan.num_moves == 8
    assert route(key, on(at.full), True).plan is None
    assert route(key, on(at.a), None).plan.aliases == tuple((i, i) for i in range(4))


def test_the_weak_type_travels(platform):
    key = key_of((), F32, True, SingleDeviceSharding(platform.devices[0]), False)
    assert route(key, platform.devices[1]).key.type.weak_type


def test_values_from_the_host(platform):
    at = places(platform)
    free = host_key((8,), F32, False, None)
    assert (free.committed, free.sharding) == (False, SingleDeviceSharding(platform.devices[0]))
    with default_device(platform.devices[2]):
        assert host_key((8,), F32, False, None).sharding == SingleDeviceSharding(platform.devices[2])
    assert host_key((8,), F32, False, None) is free
    put = host_key((8,), F32, False, on(at.full, "x"))
    assert (put.committed, put.sharding) == (True, on(at.full, "x"))


def test_targets_that_do_not_fit(platform):
    at = places(platform)
    key = key_of((6,), F32, False, SingleDeviceSharding(platform.devices[0]), False)
    for use in (lambda s: check_fit(s, (6,)), lambda s: route(key, s), lambda s: host_key((6,), F32, False, s)):
        with pytest.raises(errors.IndivisibleError, match=r"Pad the array so that 8 divides axis 0"):
            use(on(at.full, "x"))
        with pytest.raises(errors.RankError):
            use(on(at.full, "x", None))
    other = open_platform("cpu", 1)
    try:
        with pytest.raises(errors.ForeignPlatformError):
            route(key, other.devices[0])
    finally:
        other.close()
