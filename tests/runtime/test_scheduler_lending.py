"""Loans that end when their owner dies: what the borrower has enqueued by then is a use like ours."""

from __future__ import annotations

import numpy as np
import pytest

from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.platform import Platform
from tests.memory import host_values
from tests.runtime.streams import ADD_ONE, compute, copy_behind_its_back, failing, new, put, read

pytestmark = pytest.mark.order(once=True)

VALUES = np.arange(12, dtype=np.int64)


@pytest.mark.order
def test_the_end_of_a_loan_is_what_its_stream_has_enqueued_by_then(platform: Platform) -> None:
    scheduler, device = platform.scheduler, platform.devices[0]
    theirs = device.download
    buffer = put(device, VALUES)
    seen = new(device, buffer, TRANSFER)
    read(buffer)
    latch = scheduler.hold(theirs)
    loan = scheduler.lend_out(buffer, theirs, theirs)
    copy_behind_its_back(theirs, buffer.array, seen.array)
    del loan
    with scheduler.log.record() as records:
        scheduler.upload(buffer, VALUES * 7)
    was_ready = scheduler.is_ready([buffer])
    latch.release()
    np.testing.assert_array_equal(read(buffer), VALUES * 7)
    scheduler.drain([theirs])
    np.testing.assert_array_equal(host_values(seen.array), VALUES)
    assert len(records[0].waits) == 1
    assert not was_ready


def test_a_borrowers_stream_waits_for_what_it_borrows(platform: Platform) -> None:
    scheduler, device = platform.scheduler, platform.devices[0]
    theirs, source = device.download, put(device, VALUES)
    seen = new(device, source, TRANSFER)
    latch = scheduler.hold(device.compute)
    buffer = compute(ADD_ONE, source)
    loan = scheduler.lend_out(buffer, theirs, theirs)
    copy_behind_its_back(theirs, buffer.array, seen.array)
    latch.release()
    scheduler.drain([theirs])
    np.testing.assert_array_equal(host_values(seen.array), VALUES + 1)
    assert loan.buffer is buffer


def test_the_memory_of_a_dropped_buffer_stays_until_its_loan_ends(platform: Platform) -> None:
    scheduler, device = platform.scheduler, platform.devices[0]
    theirs = device.download
    buffer = put(device, VALUES)
    seen = new(device, buffer, TRANSFER)
    read(buffer)
    before = device.memory.in_use
    loan = scheduler.lend_out(buffer, theirs, theirs)
    array = buffer.array
    del buffer
    later = [put(device, VALUES * i) for i in range(3)]
    latch = scheduler.hold(theirs)
    copy_behind_its_back(theirs, array, seen.array)
    del loan
    scheduler.park()
    later += [put(device, VALUES * i) for i in range(3)]
    scheduler.host_wait(later)
    assert device.memory_stats()["bytes_parked"] == VALUES.nbytes
    latch.release()
    scheduler.drain([theirs])
    np.testing.assert_array_equal(host_values(seen.array), VALUES)
    del later
    scheduler.tidy()
    assert device.memory.in_use == before - VALUES.nbytes


def test_what_is_known_to_have_failed_is_not_lent_out(platform: Platform) -> None:
    device = platform.devices[0]
    result = compute(failing("boom"), put(device, VALUES))
    with pytest.raises(ValueError, match="boom"):
        read(result)
    with pytest.raises(ValueError, match="boom"):
        platform.scheduler.lend_out(result, device.download, device.download)
    assert not result.exports
