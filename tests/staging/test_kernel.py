"""Functions of the user's that are called at once: what GPUs refuse, memory that runs out."""

from __future__ import annotations

import numpy as np
import pytest

from cuplace import errors, map_shards
from cuplace.array.put import device_put
from tests import fakecuda, fakegpus
from tests.array.places import numbers, on, places
from tests.memory import address_of

cuda = pytest.mark.parametrize("platform", [] if fakegpus.missing() else ["cuda"], indirect=True)


def add_one(x):
    x += 1
    return x


@cuda
def test_results_that_the_device_cannot_use(platform):
    import cupy

    x = device_put(numbers(4), platform.devices[1])

    def elsewhere(x):
        with cupy.cuda.Device(0):
            return cupy.zeros(4, "float32")

    with pytest.raises(errors.KernelResultError, match="on GPU 0 for the shard on gpu:1, which is on GPU 1"):
        map_shards(elsewhere, x)
    with pytest.raises(errors.KernelResultError, match=r"returned numpy\.ndarray float32"):
        map_shards(lambda x: numbers(4), x)


@cuda
def test_memory_that_was_not_made_in_the_call_is_copied(platform):
    """What the user may hold, or what goes back to another stream's memory when it dies, is not taken over."""
    import cupy

    x = device_put(numbers(4), platform.devices[1])
    with cupy.cuda.Device(1):
        table = cupy.arange(4, dtype="float32")
        cupy.cuda.get_current_stream().synchronize()

    def on_another_stream(x):
        here, there = cupy.cuda.get_current_stream(), cupy.cuda.Stream(non_blocking=True)
        there.wait_event(here.record())
        with there:
            y = x * 3
        here.wait_event(there.record())
        return y

    kept = []
    for f, value in (
        (lambda x: table, numbers(4)),
        (on_another_stream, numbers(4) * 3),
        (lambda x: kept.append(x + 1) or kept[0][::-1], (numbers(4) + 1)[::-1]),
    ):
        y = map_shards(f, x)
        assert address_of(y._buffers[0].array) not in [address_of(array) for array in (table, *kept)]
        z = map_shards(lambda y: y + 1, y)
        del y
        np.testing.assert_array_equal(z, value + 1)
        np.testing.assert_array_equal(map_shards(lambda x: x * 2, x), numbers(4) * 2)


@cuda
def test_out_of_memory_inside_a_function(platform):
    """Dead memory is waited for and the function called again; what does not fit then is told with a table."""
    import cupy

    x = device_put(numbers(8), on(places(platform).full, "x"))
    map_shards(lambda x: x + cupy.zeros(1, "float32")[0], x).block_until_ready()
    fakecuda.faults.fail_device_allocation(count=3)
    calls = []
    y = map_shards(lambda x: calls.append(1) or x + cupy.zeros(1 << 12, "float32")[0], x)
    np.testing.assert_array_equal(y, numbers(8))
    fakecuda.faults.memory_limit(8 << 20)
    with pytest.raises(errors.OutOfMemoryError, match="temporary memory of"):
        map_shards(lambda x: x + cupy.zeros(1 << 24, "float32")[0], x)
    fakecuda.faults.clear()
    np.testing.assert_array_equal(map_shards(add_one, x, donate_argnums=0), numbers(8) + 1)
    assert len(calls) == 9
