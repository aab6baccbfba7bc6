"""prefetch: order, how far ahead, errors at their place, the end, and that nothing waits."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import cuplace
from cuplace import errors
from tests.array.places import numbers, on, places


class Loader:
    """Gives items and notes how many were asked for."""

    def __init__(self, count, fail_at=None):
        self.asked = 0
        self.closed = False
        self._count = count
        self._fail_at = fail_at

    def __iter__(self):
        return self

    def __next__(self):
        if self.asked == self._count:
            raise StopIteration
        i = self.asked
        self.asked += 1
        if i == self._fail_at:
            raise OSError(f"item {i} is not readable")
        return {"x": numbers(8) + i, "label": i}

    def close(self):
        self.closed = True


@pytest.mark.parametrize("depth", [1, 2, 5, 50])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_items_come_in_order_and_depth_ahead(platform, depth, count):
    sharding = on(places(platform).full)
    loader = Loader(count)
    items = cuplace.prefetch(loader, sharding, depth=depth)
    assert loader.asked == min(depth, count)
    for i in range(count):
        item = next(items)
        assert loader.asked == min(i + 1 + depth, count)
        assert item["x"].sharding == item["label"].sharding == sharding
        np.testing.assert_array_equal(item["x"], numbers(8) + i)
        assert int(item["label"]) == i
    assert list(items) == []


def test_the_target_may_be_a_prefix_or_nothing(platform):
    at = places(platform)
    target = {"x": on(at.full, "x"), "label": None}
    for item in cuplace.prefetch(Loader(3), target):
        assert (item["x"].sharding, item["label"].committed) == (target["x"], False)
    assert not any(x.committed for x in cuplace.prefetch([1.0, numbers(2)]))
    moved = list(cuplace.prefetch(cuplace.device_put([numbers(4)] * 3, on(at.a)), on(at.b)))
    assert [x.sharding for x in moved] == [on(at.b)] * 3


def test_it_never_waits_for_devices(platform):
    device = platform.devices[0]
    cuplace.device_put(numbers(8), device)
    latch = platform.scheduler.hold(device.upload)
    items = cuplace.prefetch(Loader(6), device, depth=2)
    got = [next(items) for _ in range(4)]
    assert not any(item["x"].is_ready() for item in got)
    assert latch.held
    latch.release()
    for i, item in enumerate([*got, *items]):
        np.testing.assert_array_equal(item["x"], numbers(8) + i)


def test_there_are_no_threads(platform):
    device = platform.devices[0]
    for _ in cuplace.prefetch(Loader(2), device):
        pass
    before = threading.active_count()
    items = cuplace.prefetch(Loader(9), device, depth=4)
    next(items)
    assert threading.active_count() <= before


def test_the_error_of_the_iterable_comes_at_its_place(platform):
    items = cuplace.prefetch(Loader(9, fail_at=3), platform.devices[1], depth=2)
    assert [int(next(items)["label"]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="item 3 is not readable"):
        next(items)
    assert list(items) == []


def test_the_error_of_an_item_that_cannot_be_placed_comes_at_its_place(platform):
    sharding = on(places(platform).full, "x")
    items = cuplace.prefetch([numbers(8), numbers(16), numbers(7), numbers(8)], sharding, depth=3)
    assert [next(items).shape, next(items).shape] == [(8,), (16,)]
    with pytest.raises(errors.IndivisibleError):
        next(items)
    assert list(items) == []


def test_closing_drops_what_is_ahead_and_closes_the_iterable(platform):
    loader = Loader(9)
    with cuplace.prefetch(loader, platform.devices[1], depth=3) as items:
        next(items)
        ahead = [weakref.ref(item["x"]) for item in items._ahead]
    gc.collect()
    assert loader.closed
    assert len(ahead) == 3
    assert not any(ref() for ref in ahead)
    asked = loader.asked
    assert list(items) == []
    assert loader.asked == asked
    items.close()
    done = cuplace.prefetch(Loader(1))
    assert len(list(done)) == 1
    done.close()


def test_a_generator_is_closed_too(platform):
    ended = []

    def generate():
        try:
            while True:
                yield numbers(2)
        finally:
            ended.append(True)

    items = cuplace.prefetch(generate())
    next(items)
    items.close()
    assert ended == [True]


def test_memory_is_that_of_depth_items(platform):
    device = platform.devices[1]

    def in_use():
        platform.scheduler.park()
        device.memory.wait_for_all_parked()
        return device.memory_stats()["bytes_in_use"]

    before, most = in_use(), 0
    items = cuplace.prefetch((np.zeros(1000, "float32") for _ in range(20)), device, depth=2)
    for item in items:
        item.block_until_ready()
        most = max(most, in_use() - before)
    del item
    assert most == 3 * 4000
    assert in_use() == before


def test_items_of_a_file_in_memory(platform, tmp_path):
    rows = numbers(64, 32)
    file = tmp_path / "rows"
    rows.tofile(file)
    mapped = np.memmap(file, "float32", "r", shape=(64, 32))
    sharding = on(places(platform).full, "x")
    batches = (mapped[i : i + 16] for i in range(0, 64, 16))
    for i, batch in enumerate(cuplace.prefetch(batches, sharding)):
        assert batch.sharding == sharding
        np.testing.assert_array_equal(batch, rows[16 * i : 16 * i + 16])
    assert i == 3


@pytest.mark.parametrize(("depth", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (None, TypeError)])
def test_depths_that_make_no_sense(platform, depth, error):
    with pytest.raises(error):
        cuplace.prefetch([], depth=depth)
    with pytest.raises(errors.PrefetchDepthError, match="depth=0; it puts at least 1 item ahead"):
        cuplace.prefetch([], None, 0)
    with pytest.raises(TypeError, match="not iterable"):
        cuplace.prefetch(3)


def test_placing_items_is_explicit_for_guards(platform):
    with cuplace.transfer_guard("disallow"):
        assert len(list(cuplace.prefetch(Loader(3), platform.devices[1]))) == 3
    with cuplace.transfer_guard("disallow_explicit"), pytest.raises(errors.TransferGuardError):
        next(cuplace.prefetch(Loader(3), platform.devices[1]))
