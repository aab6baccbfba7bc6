from __future__ import annotations

import copy

import numpy as np
import pytest

from cuplace import errors
from cuplace.array.donation import check_sole_owner
from cuplace.array.put import device_put
from tests.array.places import numbers, on, places


def test_strict_donation_says_what_holds_the_memory(platform):
    at, device = places(platform), platform.devices[0]
    u = device_put(numbers(8))
    alias = device_put(u, device)
    with pytest.raises(errors.StrictDonationError, match=r"another array float32\[8\] shares it, made at .*test_d"):
        device_put(u, platform.devices[1], donate="strict")
    del alias
    view = np.asarray(u)
    assert bool(u._buffers[0].exports) == (platform.name == "cpu")  # elsewhere the view is one of a copy
    if platform.name == "cpu":
        with pytest.raises(errors.StrictDonationError, match="NumPy arrays or DLPack capsules view its memory"):
            device_put(u, platform.devices[1], donate="strict")
        assert not u.is_deleted()
        assert np.asarray(u) is view
    del view
    device_put(u, platform.devices[1], donate="strict")
    assert u.is_deleted()

    whole = device_put(numbers(8), on(at.full))
    part = device_put(whole, platform.devices[3])
    with pytest.raises(errors.StrictDonationError):
        device_put(whole, on(at.full, "x"), donate="strict")
    with pytest.raises(errors.StrictDonationError):
        device_put(part, device, donate="strict")
    whole.addressable_shards[0].data
    del part
    device_put(whole, on(at.full, "x"), donate="strict")


def reasons(array):
    """What stands in the way of donating an array."""
    try:
        check_sole_owner(array)
    except errors.StrictDonationError as error:
        return str(error).splitlines()[1:-1]
    return []


def test_the_arrays_own_views_and_cached_values_do_not_count(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    for shard in x.addressable_shards:
        np.asarray(shard.data)
    np.asarray(x)
    assert reasons(x) == []
    held = x.addressable_shards[2].data  # deleted with the array, so that it holds nothing
    assert reasons(x) == []
    del held


def test_every_other_holder_is_named_once(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    copies = [copy.copy(x), copy.deepcopy(x)]
    found = reasons(x)
    assert len(found) == 2
    assert all("another array float32[8@x] shares it, made at " in reason for reason in found)
    copies.pop()
    assert len(reasons(x)) == 1
    copies.pop()
    assert reasons(x) == []
