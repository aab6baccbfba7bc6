"""The pinned ring: exact blocks, events, bounds, back-pressure; without any CUDA."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.runtime.backends.cuda.ring import ALIGNMENT, PinnedBlock, PinnedRing
from cuplace.runtime.pieces import copy_host, pieces

pytestmark = pytest.mark.order(once=True)

MIB = 1 << 20


class Copy:
    """An event that a test completes."""

    def __init__(self, done: bool = False) -> None:
        self.done = done


class Driver:
    """Pinned memory and events without a GPU."""

    def __init__(self, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.slabs: dict[int, np.ndarray[Any, Any]] = {}
        self.waited: list[Copy] = []

    def allocate(self, nbytes: int) -> int:
        if sum(slab.nbytes for slab in self.slabs.values()) + nbytes > self.capacity:
            raise MemoryError
        slab = np.zeros(nbytes, np.uint8)
        self.slabs[slab.ctypes.data] = slab
        return slab.ctypes.data

    def free(self, address: int) -> None:
        del self.slabs[address]

    def query(self, event: Copy) -> bool:
        return event.done

    def synchronize(self, event: Copy) -> None:
        self.waited.append(event)
        event.done = True

    def ring(self, limit: int) -> PinnedRing:
        return PinnedRing(limit, self.allocate, self.free, self.query, self.synchronize)


def overlap(a: PinnedBlock, b: PinnedBlock) -> bool:
    return a.address < b.address + b.nbytes and b.address < a.address + a.nbytes


def test_a_block_is_no_larger_than_asked_for() -> None:
    ring = Driver().ring(64 * MIB)
    for nbytes in (1, 255, 256, 257, 3 * MIB + 1):
        block = ring.acquire(nbytes)
        assert nbytes <= block.nbytes < nbytes + ALIGNMENT


def test_a_block_in_use_is_not_handed_out() -> None:
    ring = Driver().ring(64 * MIB)
    running = Copy()
    first = ring.acquire(1000)
    ring.release(first, (running,))
    assert ring.acquire(1000) is not first
    running.done = True
    assert ring.acquire(1000) is first


def test_views_are_the_memory_itself() -> None:
    driver = Driver()
    block = driver.ring(64 * MIB).acquire(12)
    block.view((3,), np.dtype(np.float32))[...] = [1, 2, 3]
    slab = driver.slabs[block.slab.address]
    assert slab[block.start : block.start + 12].view(np.float32).tolist() == [1, 2, 3]


def test_a_full_ring_waits_for_the_oldest_copy_and_counts_it() -> None:
    driver = Driver()
    ring = driver.ring(4 * MIB)
    copies = [Copy() for _ in range(4)]
    for copy in copies:
        ring.release(ring.acquire(MIB), (copy,))
    assert ring.pressure_waits == 0
    ring.acquire(MIB)
    assert driver.waited == copies[:1]
    assert ring.pressure_waits == 1
    assert ring.pinned_bytes <= ring.limit


def test_work_on_a_stream_takes_a_used_block_without_a_wait_of_the_host() -> None:
    driver = Driver()
    ring = driver.ring(2 * MIB)
    copies = [Copy(), Copy()]
    blocks = [ring.acquire(MIB) for _ in copies]
    for block, copy in zip(blocks, copies, strict=True):
        ring.release(block, (copy,))
    ordered: list[Copy] = []
    assert ring.take_in_order(MIB, ordered.append) is blocks[0]
    assert ordered == copies[:1]
    assert driver.waited == []


def test_blocks_of_other_sizes_make_room() -> None:
    driver = Driver()
    ring = driver.ring(4 * MIB)
    for _ in range(16):
        ring.release(ring.acquire(MIB // 4), (Copy(done=True),))
    assert ring.acquire(2 * MIB).nbytes == 2 * MIB
    assert driver.waited == []


def test_a_failing_driver_is_no_error_while_there_is_a_ring() -> None:
    driver = Driver(capacity=8 * MIB)
    ring = driver.ring(256 * MIB)
    for _ in range(20):
        ring.release(ring.acquire(MIB), (Copy(),))
    assert ring.pressure_waits == 12
    with pytest.raises(MemoryError):
        Driver(capacity=0).ring(MIB).acquire(1)


def test_unused_slabs_go_back_to_the_system() -> None:
    driver = Driver()
    ring = driver.ring(64 * MIB)
    running, block = Copy(), ring.acquire(MIB)
    ring.release(block, (running,))
    assert ring.free_unused() == 0
    running.done = True
    assert ring.free_unused() > 0
    assert driver.slabs == {}
    assert ring.pinned_bytes == 0
    ring.acquire(MIB)


def test_a_thread_waits_for_blocks_that_another_one_holds() -> None:
    ring = Driver().ring(MIB)
    held = ring.acquire(MIB // 2), ring.acquire(MIB // 2)
    got: list[PinnedBlock] = []
    thread = threading.Thread(target=lambda: got.append(ring.acquire(MIB // 2)))
    thread.start()
    time.sleep(0.01)
    assert got == []
    ring.release(held[0], ())
    thread.join(timeout=10)
    assert got == [held[0]]


def has_room(held: list[PinnedBlock], size: int) -> bool:
    """Whether a MiB has a gap for one more block, however the blocks lie that nobody gives back."""
    return (MIB - sum(block.nbytes for block in held)) // (len(held) + 1) > size + 2 * ALIGNMENT


@given(
    sizes=st.lists(st.integers(1, 200_000), min_size=1, max_size=60),
    choices=st.randoms(use_true_random=False),
)
def test_blocks_never_overlap_and_the_bound_holds(sizes: list[int], choices: Any) -> None:
    driver = Driver()
    ring = driver.ring(MIB)
    in_use: list[tuple[PinnedBlock, Copy | None]] = []
    for size in sizes:
        in_use = [(block, copy) for block, copy in in_use if copy is None or not copy.done]
        while not has_room([block for block, copy in in_use if copy is None], 200_000):
            copy = Copy()
            i = next(i for i, (_, c) in enumerate(in_use) if c is None)
            ring.release(in_use[i][0], (copy,))
            in_use[i] = (in_use[i][0], copy)
        block = ring.acquire(size)
        in_use = [(other, copy) for other, copy in in_use if copy is None or not copy.done]
        assert not any(overlap(block, other) for other, _ in in_use)
        in_use.append((block, None))
        for _, copy in in_use:
            if copy is not None and choices.random() < 0.2:
                copy.done = True
        assert ring.pinned_bytes <= MIB


@given(
    shape=st.lists(st.integers(0, 6), max_size=4).map(tuple),
    itemsize=st.sampled_from((1, 2, 4, 8, 16)),
    limit=st.integers(1, 400),
)
def test_pieces_are_the_bytes_of_the_array_in_order(shape: tuple[int, ...], itemsize: int, limit: int) -> None:
    values = np.arange(int(np.prod(shape, dtype=int)))
    array = values.reshape(shape)
    cut = [array[piece] for piece in pieces(shape, itemsize, limit)]
    assert all(part.size * itemsize <= max(limit, itemsize) for part in cut)
    assert all(part.flags.c_contiguous for part in cut)
    joined = np.concatenate([part.reshape(-1) for part in cut]) if cut else np.empty(0, values.dtype)
    np.testing.assert_array_equal(joined, values)


@pytest.mark.parametrize("shape", [(3, 1 << 20), (1 << 22,), (1, 3, 1 << 20), (7,), ()])
def test_parallel_copies_equal_numpy(shape: tuple[int, ...]) -> None:
    source = np.random.default_rng(0).standard_normal(shape)
    target = np.empty(shape, np.float32)
    copy_host(target, source)
    np.testing.assert_array_equal(target, source.astype(np.float32))


def test_a_block_that_a_destructor_took_meanwhile_is_not_handed_out_twice() -> None:
    """Any call may run one, and it may copy: here while the ring asks whether a block's copy is complete."""

    class Busy(Driver):
        destructor: Callable[[], None] | None = None

        def query(self, event: Copy) -> bool:
            destructor, self.destructor = self.destructor, None
            if destructor is not None:
                destructor()
            return event.done

    driver, taken = Busy(), list[PinnedBlock]()
    ring = driver.ring(64 * MIB)
    first = ring.acquire(1000)
    ring.release(first, (Copy(done=True),))
    driver.destructor = lambda: taken.append(ring.acquire(1000))
    other = ring.acquire(1000)
    assert taken == [first]
    assert not overlap(first, other)


def test_a_block_that_a_destructor_used_meanwhile_is_not_handed_out_before_its_copy_is_complete() -> None:
    """It is where it was before, with another copy."""

    class Busy(Driver):
        destructor: Callable[[], None] | None = None

        def query(self, event: Copy) -> bool:
            destructor, self.destructor = self.destructor, None
            done = event.done
            if destructor is not None:
                destructor()
            return done

    driver, pending = Busy(), Copy()
    ring = driver.ring(64 * MIB)
    first = ring.acquire(1000)
    for take in (lambda: ring.acquire(1000), lambda: ring.acquire(3 * MIB)):
        pending.done = False
        ring.release(first, (Copy(done=True),))
        driver.destructor = lambda: ring.release(ring.acquire(1000), (pending,))
        other = take()
        assert not overlap(first, other)
        ring.release(other, (Copy(done=True),))
        pending.done = True
        first = ring.acquire(1000)


def test_a_stream_gets_no_block_while_all_are_held() -> None:
    """Of those that are held nobody knows the events yet."""
    ring = Driver().ring(MIB)
    held = [ring.acquire(MIB // 2) for _ in range(2)]
    ordered: list[Copy] = []
    assert ring.take_in_order(MIB // 2, ordered.append) is None
    ring.release(held[0], (Copy(),))
    assert ring.take_in_order(MIB // 2, ordered.append) is held[0]
    assert len(ordered) == 1
