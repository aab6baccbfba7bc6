"""The pinned memory of arrays: blocks that do not overlap, growth, and what goes back; without any CUDA."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.runtime.backends.cuda.pinned import FIRST_BYTES, PinnedPool, PinnedStorage, address_of
from tests.runtime.backends.test_cuda_ring import Driver

pytestmark = pytest.mark.order(once=True)


def pool_on(driver: Driver) -> PinnedPool:
    return PinnedPool(driver.allocate, driver.free)


def bytes_of(storage: PinnedStorage) -> np.ndarray:
    return storage.as_array((storage.nbytes,), np.dtype(np.uint8))


@given(st.lists(st.tuples(st.integers(0, 300_000), st.booleans()), max_size=40))
def test_blocks_do_not_overlap_and_all_of_it_goes_back(steps: list[tuple[int, bool]]) -> None:
    driver = Driver()
    pool = pool_on(driver)
    held: list[tuple[PinnedStorage, int]] = []
    for value, (nbytes, frees) in enumerate(steps):
        storage = pool.allocate(nbytes)
        bytes_of(storage)[:] = value
        held.append((storage, value))
        assert pool.owns(address_of(bytes_of(storage)))
        if frees:
            pool.free(held.pop(0)[0])
    for one, value in held:
        assert (bytes_of(one) == value).all()
    sizes = sum(one.nbytes for one, _ in held)
    assert pool.unused == sum(slab.nbytes for slab in driver.slabs.values()) - sizes
    for one, _ in held:
        pool.free(one)
    total = sum(slab.nbytes for slab in driver.slabs.values())
    assert pool.unused == pool.trim() == total
    assert not driver.slabs


def test_it_grows_by_slabs_and_holds_what_is_larger_than_one() -> None:
    driver = Driver()
    pool = pool_on(driver)
    small, large = pool.allocate(100), pool.allocate(3 * FIRST_BYTES)
    assert len(driver.slabs) == 2
    assert bytes_of(large).nbytes >= 3 * FIRST_BYTES
    pool.free(large)
    assert pool.trim() >= 3 * FIRST_BYTES
    assert len(driver.slabs) == 1
    assert not pool.owns(1)
    assert small.as_array((2, 3), np.dtype(np.float32)).shape == (2, 3)
