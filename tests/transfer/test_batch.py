"""A pytree of many arrays is one batch: one turn of the scheduler, all checks and all memory before anything moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuplace
from cuplace import errors
from cuplace.placement.sharding import SingleDeviceSharding
from cuplace.runtime.config import config
from cuplace.runtime.platform import open_platform
from cuplace.transfer.batch import Batch
from cuplace.transfer.plan import plan_move
from cuplace.transfer.upload import upload
from tests.array.places import numbers, on, places
from tests.transfer.shardings import transfers

MANY = 1000
F32 = np.dtype("float32")


class CountingLock:
    """A lock that counts how often a thread that did not have it took it."""

    def __init__(self, lock):
        self._lock = lock
        self._depth = 0
        self.turns = 0

    def acquire(self, *args, **kwargs):
        taken = self._lock.acquire(*args, **kwargs)
        if taken:
            self.turns += self._depth == 0
            self._depth += 1
        return taken

    def release(self):
        self._depth -= 1
        self._lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *exception):
        self.release()


def leaves(count, start=0):
    return [np.float32([i, -i]) for i in range(start, start + count)]


def kinds_in_order(submissions):
    """The kinds of submissions, equal neighbours once."""
    kinds = [submission.kind for submission in submissions]
    return [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]


def turns_of(platform, monkeypatch, call):
    """How many turns of the scheduler a call takes, what it enqueues, and its result."""
    lock = CountingLock(platform.scheduler.lock)
    with monkeypatch.context() as patch, platform.scheduler.log.record() as submissions:
        patch.setattr(platform.scheduler, "lock", lock)
        result = call()
    return lock.turns, submissions, result


def test_a_thousand_host_leaves_are_one_turn(platform, monkeypatch):
    at = places(platform)
    tree = {"a": leaves(MANY - 1), "b": numbers(8)}
    target = {"a": platform.devices[3], "b": on(at.full, "x")}
    cuplace.device_put(numbers(8), target["b"])
    turns, submissions, moved = turns_of(platform, monkeypatch, lambda: cuplace.device_put(tree, target))
    assert turns == 1
    assert kinds_in_order(submissions) == ["upload"]
    assert sum(s.nbytes for s in submissions) == 8 * (MANY - 1) + 32
    for values, x in zip(tree["a"], moved["a"], strict=True):
        assert x.sharding == SingleDeviceSharding(platform.devices[3])
        np.testing.assert_array_equal(x, values)
    np.testing.assert_array_equal(moved["b"], numbers(8))


def test_a_thousand_arrays_move_to_another_mesh_in_one_turn(platform, monkeypatch):
    at = places(platform)
    arrays = cuplace.device_put([numbers(2, 2) + i for i in range(MANY)], on(at.m0))
    other = on(cuplace.make_mesh((1,), ("x",), devices=platform.devices[5:6]))
    cuplace.device_put(arrays[0], other)
    turns, submissions, moved = turns_of(platform, monkeypatch, lambda: cuplace.device_put(arrays, other))
    assert (turns, {s.kind for s in submissions}, len(submissions)) == (1, {"move"}, MANY)
    assert not any(set(s.waits) & {s.id for s in submissions} for s in submissions)
    for i in range(0, MANY, 97):
        np.testing.assert_array_equal(moved[i], numbers(2, 2) + i)


def test_a_mixed_tree_uploads_first_and_then_moves(platform, monkeypatch):
    at = places(platform)
    x, y = cuplace.device_put((numbers(8), numbers(4)), on(at.a, "x"))
    tree = (x, numbers(8), [y, 2.0, None], x)
    target = (on(at.b, "x"), on(at.full), [on(at.reverse), platform.devices[2], None], x.sharding)
    cuplace.device_put(tree, target)
    turns, submissions, moved = turns_of(platform, monkeypatch, lambda: cuplace.device_put(tree, target))
    assert (turns, kinds_in_order(submissions)) == (1, ["upload", "move"])
    assert moved[3] is x
    for got, values in [(moved[0], numbers(8)), (moved[1], numbers(8)), (moved[2][0], numbers(4)), (moved[2][1], 2.0)]:
        np.testing.assert_array_equal(got, values)


def test_reshard_and_arrays_of_parts_are_batches_too(platform, monkeypatch):
    at = places(platform)
    tree = [cuplace.device_put(numbers(8, 8) + i, on(at.full, "x")) for i in range(3)]
    cuplace.reshard(tree, on(at.full, None, "x"))
    turns, _, moved = turns_of(platform, monkeypatch, lambda: cuplace.reshard([*tree, numbers(8)], on(at.full)))
    assert turns == 1
    np.testing.assert_array_equal(moved[2], numbers(8, 8) + 2)
    call = lambda: cuplace.make_array_from_callback((8,), on(at.full, "x"), lambda i: numbers(8)[i])  # noqa: E731
    turns, _, made = turns_of(platform, monkeypatch, call)
    assert turns == 1
    np.testing.assert_array_equal(made, numbers(8))


@given(data=st.data())
@settings(max_examples=15)
def test_any_arrays_to_any_places_at_once(platform, data):
    batch, expected = Batch(), []
    for _ in range(data.draw(st.integers(0, 6))):
        shape, source, target = data.draw(transfers(platform.devices))
        values = np.asarray(numbers(*shape) + len(expected), F32)
        if data.draw(st.booleans()):
            number = batch.upload(values, target)
        else:
            number = batch.move(upload(values, source, None), plan_move(shape, F32, source, target))
        assert number == len(expected)
        expected.append((values, target))
    results = batch.run(None)
    assert len(results) == len(expected)
    for buffers, (values, target) in zip(results, expected, strict=True):
        boxes = target.layout(values.shape).boxes
        for buffer, device, box in zip(buffers, target.flat_devices, boxes, strict=True):
            assert buffer.device is device
            np.testing.assert_array_equal(platform.scheduler.download(buffer), values[box.slices()])


@pytest.mark.parametrize("bad", ["text", np.ma.array([1.0]), np.array([2**40]), numbers(7), None])
def test_an_error_in_the_last_leaf_leaves_everything_as_it_was(platform, bad):
    at = places(platform)
    x = cuplace.device_put(numbers(8), on(at.a, "x")).block_until_ready()
    dead = cuplace.device_put(numbers(8), on(at.a, "x"))
    dead.delete()
    tree = [x, *[numbers(4) for _ in range(MANY - 2)], dead if bad is None else bad]
    mistakes = (TypeError, ValueError, OverflowError, RuntimeError)
    with platform.scheduler.log.record() as submissions, pytest.raises(mistakes):
        cuplace.device_put(tree, on(at.b, "x"), donate=True)
    assert not submissions
    assert not x.is_deleted()
    np.testing.assert_array_equal(x, numbers(8))


def test_memory_that_is_short_for_the_last_leaf_is_found_before_anything_is_enqueued(platform):
    device, other = platform.devices[:2]
    x = cuplace.device_put(numbers(8), other).block_until_ready()
    before = device.memory_stats()["bytes_in_use"]
    config.update("max_device_bytes", before + 100 * 8)
    with platform.scheduler.log.record() as submissions, pytest.raises(errors.OutOfMemoryError):
        cuplace.device_put([x, *leaves(120)], device, donate=True)
    assert not submissions
    assert not x.is_deleted()
    platform.scheduler.park()
    assert device.memory_stats()["bytes_in_use"] == before
    assert len(cuplace.device_put(leaves(100), device)) == 100


def test_a_batch_returns_while_devices_are_held(platform):
    at = places(platform)
    device = platform.devices[0]
    x = cuplace.device_put(numbers(4), device)
    y = cuplace.device_put(numbers(4), platform.devices[5])
    cuplace.device_put(x, on(at.b))
    latch = platform.scheduler.hold(device.upload)
    held = cuplace.device_put(numbers(4), device)
    moved = cuplace.device_put([held, y, numbers(8), numbers(8)], [on(at.b), on(at.b), on(at.b), device])
    assert [moved[0].is_ready(), moved[3].is_ready()] == [False, False]
    np.testing.assert_array_equal(moved[1], numbers(4))
    np.testing.assert_array_equal(moved[2], numbers(8))
    latch.release()
    np.testing.assert_array_equal(moved[0], numbers(4))
    np.testing.assert_array_equal(moved[3], numbers(8))


def test_leaves_for_devices_of_several_platforms(platform):
    other = open_platform("sim" if platform.name == "cpu" else "cpu", 2)
    there, here = cuplace.device_put([numbers(4), numbers(3)], [other.devices[1], platform.devices[1]])
    np.testing.assert_array_equal(here, numbers(3))
    np.testing.assert_array_equal(there, numbers(4))
    other.close()


def test_an_empty_batch_does_nothing(platform, monkeypatch):
    assert turns_of(platform, monkeypatch, lambda: Batch().run(None)) == (0, [], [])
    assert cuplace.device_put([], platform.devices[0]) == []
