"""Memory on the way: blocks of the ring and packed copies are nobody else's while copies use them, and come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuplace.placement.memory_space import DEVICE, UNPINNED_HOST
from cuplace.runtime.backends.cuda import ring as ring_module
from cuplace.runtime.config import config
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.platform import Platform, activated
from cuplace.runtime.task import CopyTask
from tests import fakegpus
from tests.fakegpus import Case
from tests.memory import foreign_array
from tests.runtime.streams import finish, move, new, put, read, used
from tests.runtime.test_host_memory import moved as moved_to

pytestmark = pytest.mark.order(once=True)

COLUMNS = (slice(0, 64), slice(8, 40))
PEERS = [Case("lazy"), Case("random", 1)]
NO_PEERS = [Case("lazy", peers=False), Case("random", 1, peers=False)]


def matrix(i: int) -> np.ndarray:
    return np.arange(64 * 64, dtype=np.int64).reshape(64, 64) * (i + 1)


def puts(platform: Platform) -> None:
    for buffer, i in [(put(platform.devices[0], matrix(i)), i) for i in range(12)]:
        np.testing.assert_array_equal(read(buffer), matrix(i))


def moves(platform: Platform) -> None:
    here, there = platform.devices[0], platform.devices[-1]
    sources = [put(here, matrix(i)) for i in range(6)]
    for i, moved in enumerate([move(source, there) for source in sources]):
        np.testing.assert_array_equal(read(moved), matrix(i))


def moves_columns(platform: Platform) -> None:
    """Rows too short for copy engines: packed and unpacked."""
    here, there = platform.devices[0], platform.devices[-1]
    sources = [put(here, matrix(i)) for i in range(6)]
    targets = [new(there, source, TRANSFER) for source in sources]
    task = CopyTask(COLUMNS, COLUMNS, "peer", 64 * 32 * 8)
    for source, target in zip(sources, targets, strict=True):
        here.scheduler.submit_moves([(task, here.transfer_to(there), source, target)])
    for i, target in enumerate(targets):
        np.testing.assert_array_equal(read(target)[COLUMNS], matrix(i)[COLUMNS])


def puts_together(platform: Platform) -> None:
    """Small arrays, many in one block of the ring."""
    device = platform.devices[0]
    like = put(device, np.arange(64))
    rounds = [[new(device, like, TRANSFER) for _ in range(16)] for _ in range(6)]
    for i, targets in enumerate(rounds):
        device.scheduler.upload_batch([(target, np.arange(64) + i + k) for k, target in enumerate(targets)])
    for i, targets in enumerate(rounds):
        for k, target in enumerate(targets):
            np.testing.assert_array_equal(read(target), np.arange(64) + i + k)


def goes_to_the_host_and_back(platform: Platform) -> None:
    """Memory that is not pinned, so that each way is through the ring."""
    here, there = platform.devices[0], platform.devices[-1]
    hosts = [moved_to(put(here, matrix(i)), here, UNPINNED_HOST) for i in range(3)]
    results = [moved_to(host, there, DEVICE) for host in hosts]
    for i, (host, result) in enumerate(zip(hosts, results, strict=True)):
        np.testing.assert_array_equal(read(result), matrix(i))
        np.testing.assert_array_equal(read(host), matrix(i))


@pytest.mark.parametrize("cuda", PEERS, indirect=True, ids=lambda case: case.label)
def test_memory_on_the_way_that_is_still_read_is_waited_for(cuda: Platform) -> None:
    """Where memory is short it is a dead block that a move is still to read."""
    here, there = cuda.devices[:2]
    columns = foreign_array(here, np.asfortranarray(matrix(0)))
    target = cuda.scheduler.adopt(columns, here)
    source = put(here, matrix(1))
    read(source)
    latch = cuda.scheduler.hold(here.transfer_to(there))
    moved = move(source, there)
    del source
    cuda.scheduler.park()
    config.update("max_device_bytes", moved.nbytes)
    cuda.scheduler.upload(target, matrix(2))
    latch.release()
    np.testing.assert_array_equal(read(moved), matrix(1))
    np.testing.assert_array_equal(read(target), matrix(2))


@pytest.mark.parametrize("case", PEERS, ids=lambda case: case.label)
def test_copies_to_the_host_and_back_take_turns_in_the_ring_without_a_wait(
    case: Case, fake_gpus: None, restored_config: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_module, "FIRST_SLAB_BYTES", 4 << 10)
    config.update("staging_bytes", 4 << 10)
    platform = fakegpus.open_fake(case)
    backend: Any = platform.backend
    here, *others = platform.devices[:3]
    sources = [put(here, matrix(i)) for i in range(4)]
    platform.scheduler.host_wait(sources)
    backend.ring.free_unused()
    pressed = backend.ring.pressure_waits
    latch = platform.scheduler.hold(here.download)
    hosts = [moved_to(source, here, UNPINNED_HOST) for source in sources]
    results = [moved_to(host, there, DEVICE) for host in hosts for there in others]
    assert backend.ring.pressure_waits == pressed
    latch.release()
    for k, result in enumerate(results):
        np.testing.assert_array_equal(read(result), matrix(k // 2))
    del sources, hosts, results, result
    platform.close()
    fakegpus.assert_no_reports()


@pytest.mark.parametrize("slab", [4 << 10, 256 << 10], ids=["many pieces", "few pieces"])
@pytest.mark.parametrize(
    ("program", "case"),
    [
        *[(program, case) for program in (puts, puts_together, goes_to_the_host_and_back) for case in PEERS],
        *[(moves, case) for case in NO_PEERS],
        *[(moves_columns, case) for case in PEERS + NO_PEERS],
    ],
    ids=lambda value: value.label if isinstance(value, Case) else value.__name__,
)
def test_memory_on_the_way_is_not_shared_and_comes_back(
    program: Callable[[Platform], None], case: Case, slab: int, fake_gpus: None, restored_config: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(ring_module, "FIRST_SLAB_BYTES", slab)
    monkeypatch.setattr(ring_module, "SLAB_BYTES", slab)
    monkeypatch.setattr("cuplace.runtime.staging.CHUNK_BYTES", 4 << 10)
    config.update("staging_bytes", 2 * slab)  # soon full
    platform = fakegpus.open_fake(case)
    backend: Any = platform.backend
    with activated(platform):
        program(platform)
        finish(platform)
        platform.scheduler.drain([stream for device in platform.devices for stream in device.streams()])
    assert used(platform) == {"bytes_in_use": 0, "bytes_parked": 0}
    assert sum(device.memory.in_use for device in platform.devices) == 0
    backend.ring.free_unused()
    assert backend.ring.pinned_bytes == 0
    platform.close()
    fakegpus.assert_no_reports()
