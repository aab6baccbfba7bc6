"""Moves of one plan that pack into memory which they share."""

from __future__ import annotations

import numpy as np
import pytest

from cuplace.runtime.buffer import Buffer
from cuplace.runtime.device import Device
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.platform import Platform
from cuplace.runtime.staging import UNIT, Staging
from cuplace.runtime.task import CopyTask
from tests.runtime.streams import compute, failing, new, put, read

pytestmark = pytest.mark.order(once=True)

VALUES = np.arange(64, dtype=np.int64).reshape(8, 8)
COLUMNS = (slice(0, 8), slice(2, 5))
NBYTES = VALUES[COLUMNS].nbytes


def room(device: Device) -> Buffer:
    """Staging memory for one move."""
    return device.scheduler.allocate(device, (UNIT,), np.dtype(np.uint8))


def send(source: Buffer, targets: list[Buffer], memory: Buffer) -> None:
    """Columns of the source to all targets, packed into ``memory``."""
    one = source.device
    task = CopyTask(COLUMNS, COLUMNS, "peer", NBYTES, Staging(True, True))
    moves = [(task, one.transfer_to(target.device), source, target) for target in targets]
    one.scheduler.submit_moves(moves, staging=[(memory, room(target.device)) for target in targets])


@pytest.mark.order
def test_each_waits_for_the_one_before_and_the_first_for_who_used_the_memory_last(platform: Platform) -> None:
    scheduler = platform.scheduler
    one, *others = platform.devices[:4]
    source, memory = put(one, VALUES), room(one)
    targets = [new(other, source, TRANSFER) for other in others]
    read(source)
    latch = scheduler.hold(one.download)
    with scheduler.lend(memory, one.download):
        pass
    with scheduler.log.record() as records:
        send(source, targets, memory)
    last_was_ready = scheduler.is_ready(targets[2:])
    latch.release()
    for target in targets:
        np.testing.assert_array_equal(read(target)[COLUMNS], VALUES[COLUMNS])
    first, second, third = records
    assert len(first.waits) == 1
    assert (second.waits, third.waits) == ((first.id,), (second.id,))
    assert not last_was_ready


def test_a_packed_move_of_what_failed_fails_with_the_same_error(platform: Platform) -> None:
    one, other = platform.devices[:2]
    source = compute(failing("no source"), put(one, VALUES))
    target = new(other, source, TRANSFER)
    send(source, [target], room(one))
    with pytest.raises(ValueError, match="no source"):
        read(target)
