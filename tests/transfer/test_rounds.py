"""Rounds: the memory that moves take is what was planned, under a bound or without; later rounds wait on devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuplace
from cuplace import NamedSharding, P
from cuplace.errors import MaxBytesError
from cuplace.placement.memory_space import KINDS
from cuplace.placement.sharding import Sharding
from cuplace.runtime import staging
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.platform import Platform
from cuplace.runtime.staging import UNIT, most_staging
from cuplace.transfer import rounds as module
from cuplace.transfer.execute import forget_paths, move
from cuplace.transfer.plan import TransferPlan, plan_move
from cuplace.transfer.rounds import End, Rounds
from cuplace.transfer.upload import upload
from tests import fakecuda
from tests.transfer.shardings import mesh, transfers

F32 = np.dtype("float32")
WHOLE, PART = 3 * UNIT, UNIT
"""So small are chunks here, and the least memory that serves, that small arrays are cut, too."""


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(staging, "CHUNK_BYTES", WHOLE)
    monkeypatch.setattr(module, "LEAST_BYTES", PART)
    monkeypatch.setattr(module, "STAGING_BYTES", 4 * WHOLE)
    forget_paths()
    yield
    forget_paths()


# ---------------------------------------------------------------------- how memory is divided

DEVICES = "abc"
ENDS = st.lists(st.tuples(st.integers(1, 9000), st.permutations(DEVICES), st.integers(1, 2)), max_size=80).map(
    lambda moves: [
        End(number, device, nbytes) for number, (nbytes, devices, ends) in enumerate(moves) for device in devices[:ends]
    ]
)
NEW = st.dictionaries(st.sampled_from(DEVICES), st.integers(0, 5000))


def least_of(ends: Sequence[End], new: Mapping[str, int]) -> int:
    try:
        Rounds(ends, new, 0)
    except MaxBytesError as error:
        return error.least or 0
    return 0


@given(ENDS, NEW, st.integers(0, 20_000))
def test_a_bound_is_kept_and_every_move_gets_memory_of_its_devices(
    ends: list[End], new: dict[str, int], more: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST_BYTES", PART)
        bound = least_of(ends, new) + more
        found = Rounds(ends, new, bound)
    total = Counter(new) + Counter(found.staging_bytes)
    assert all(nbytes <= bound for nbytes in total.values())
    for number in {end.move for end in ends}:
        mine = [end for end in ends if end.move == number]
        slots = [found.slots[slot] for slot in found.of_moves[number]]
        assert [slot.device for slot in slots] == [end.device for end in mine]
        assert all(PART <= slot.nbytes <= most_staging(max(end.nbytes for end in ends)) for slot in slots)


@given(ENDS, NEW)
def test_less_than_the_least_bound_is_refused(ends: list[End], new: dict[str, int]) -> None:
    least = least_of(ends, new)
    Rounds(ends, new, least)
    if least:
        with pytest.raises(MaxBytesError, match=f"max_bytes={least} would do"):
            Rounds(ends, new, least - 1)


@given(ENDS, st.integers(0, 4000))
def test_a_move_waits_for_the_moves_that_had_its_memory_before(ends: list[End], more: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST_BYTES", PART)
        found = Rounds(ends, {}, least_of(ends, {}) + more)
    for number, slots in found.of_moves.items():
        before = set()
        for slot in slots:
            users = [other for other in found.of_moves if other < number and slot in found.of_moves[other]]
            before |= {max(users)} if users else set()
        assert set(found.earlier.get(number, ())) == before


def test_without_a_bound_small_moves_do_not_wait() -> None:
    ends = [End(number, "a", 1000) for number in range(module.MOST_SLOTS)]
    assert Rounds(ends, {}).earlier == {}
    large = [End(number, "a", 1 << 30) for number in range(8)]
    assert Rounds(large, {}).staging_bytes == {"a": module.STAGING_BYTES}
    assert len(Rounds(large, {}).slots) == module.SHARING


# ---------------------------------------------------------------------- what is measured


class Peaks:
    """The memory that devices take, and that the fake's driver gives, beyond what there is when this is made."""

    def __init__(self, platform: Platform) -> None:
        self.devices = platform.devices
        platform.scheduler.drain([stream for device in self.devices for stream in device.streams()])
        cuplace.free_unused()
        for device in self.devices:
            device.memory.peak = device.memory.in_use
        self._before = {device: device.memory.in_use for device in self.devices}
        self._has_driver = platform.name == "cuda"
        if self._has_driver:
            fakecuda.reset_counters()
            self._used = [one.used for one in fakecuda.counters().devices]

    def of_devices(self) -> dict[Any, int]:
        return {device: device.memory.peak - self._before[device] for device in self.devices}

    def check_driver(self, taken: Mapping[Any, Sequence[int]]) -> None:
        """The driver gave as many bytes as blocks of these sizes are on each device, in multiples of its unit."""
        if self._has_driver:
            expected: Counter[int] = Counter()
            for device, blocks in taken.items():
                expected[device.gpu] += sum(max(-(-nbytes // UNIT), 1) * UNIT for nbytes in blocks)
            gave = [one.peak - used for one, used in zip(fakecuda.counters().devices, self._used, strict=True)]
            assert gave == [expected[gpu] for gpu in range(len(gave))]


def ready(platform: Platform) -> None:
    """All pairs are tried out, which takes memory once."""
    for one in platform.devices:
        for other in platform.devices:
            one.transfer_to(other)


def numbers(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=F32).reshape(shape)


def check_values(platform: Platform, buffers: Sequence[Buffer], target: Sharding, shape: tuple[int, ...]) -> None:
    for buffer, box in zip(buffers, target.layout(shape).boxes, strict=True):
        np.testing.assert_array_equal(platform.scheduler.download(buffer), numbers(shape)[box.slices()])


def blocks_of(*plans: TransferPlan) -> dict[Any, list[int]]:
    """The device memory of the new shards."""
    taken: dict[Any, list[int]] = {}
    for plan in plans:
        aliased = {target for _, target in plan.aliases}
        for shard, device in enumerate(plan.target.flat_devices):
            if shard not in aliased and plan.target.memory_kind == "device":
                taken.setdefault(device, []).append(plan.new_bytes[device])
    return taken


def least_bound(*args: Any) -> int:
    try:
        plan_move(*args, True, None, 0)
    except MaxBytesError as error:
        return error.least or 0
    return 0


@given(data=st.data())
def test_the_memory_that_a_move_takes_is_what_was_planned(
    platform: Platform, small_chunks: None, data: st.DataObject
) -> None:
    ready(platform)
    shape, source, target = data.draw(transfers(platform.devices))
    source, target = (one.with_memory_kind(data.draw(st.sampled_from(KINDS))) for one in (source, target))
    shape = (*shape[:-1], shape[-1] * data.draw(st.sampled_from([1, 1, 7, 50]))) if shape else shape
    bound = data.draw(st.sampled_from([None, 0, 1, UNIT, 3 * UNIT]))
    if bound is not None:
        bound += least_bound(shape, F32, source, target)
    plan = plan_move(shape, F32, source, target, max_bytes=bound)
    assert bound is None or max(plan.peak_bytes.values()) <= bound
    old = upload(numbers(shape), source, None)
    platform.scheduler.host_wait(old)
    peaks = Peaks(platform)
    new = move(old, plan, None)
    measured = peaks.of_devices()
    assert {device: nbytes for device, nbytes in measured.items() if nbytes} == {
        device: nbytes for device, nbytes in plan.peak_bytes.items() if nbytes
    }
    taken = blocks_of(plan)
    for device, nbytes in plan.staging.slots:
        taken.setdefault(device, []).append(nbytes)
    platform.scheduler.host_wait(new)
    peaks.check_driver(taken)
    check_values(platform, new, target, shape)


def columns(platform: Platform) -> tuple[NamedSharding, NamedSharding]:
    grid = mesh(platform.devices, (8,), ("x",))
    return NamedSharding(grid, P("x", None)), NamedSharding(grid, P(None, "x"))


@pytest.mark.order
def test_rounds_keep_their_order(platform: Platform, small_chunks: None) -> None:
    """Through as little memory as there may be, which is used again and again, chunk by chunk."""
    rows, cols = columns(platform)
    shape = (64, 128)
    bound = 4096 + PART
    buffers = upload(numbers(shape), rows, None)
    buffers = move(buffers, plan_move(shape, F32, rows, cols, max_bytes=bound), None)
    buffers = move(buffers, plan_move(shape, F32, cols, rows, max_bytes=bound), None)
    check_values(platform, buffers, rows, shape)


def test_a_call_returns_while_its_rounds_wait_for_one_another(platform: Platform) -> None:
    rows, cols = columns(platform)
    ready(platform)
    x = cuplace.block_until_ready(cuplace.device_put(numbers((64, 64)), rows))
    plan = cuplace.plan(x, cols, max_bytes=2048 + UNIT)
    assert plan.rounds > 1 or platform.name == "cpu" or platform.devices[0].gpu == platform.devices[7].gpu
    latch = platform.scheduler.hold(platform.devices[0].transfer_to(platform.devices[1]))
    y = cuplace.device_put(x, cols, max_bytes=2048 + UNIT)
    assert not y.is_ready()
    latch.release()
    np.testing.assert_array_equal(np.asarray(y), numbers((64, 64)))


def test_what_is_put_and_laid_out_anew_together_shares_staging_memory(platform: Platform) -> None:
    rows, cols = columns(platform)
    ready(platform)
    leaves = [cuplace.device_put(numbers((64, 64)) + i, rows) for i in range(5)]
    cuplace.block_until_ready(leaves)
    bound = 6 * 2048 + 2 * UNIT
    for call in (cuplace.device_put, cuplace.reshard):
        tree = {"a": leaves, "b": numbers((64, 64))}
        peaks = Peaks(platform)
        moved = call(tree, cols, max_bytes=bound)
        measured = peaks.of_devices()
        plan = cuplace.plan(leaves[0], cols)
        for device in platform.devices:
            assert measured[device] == 6 * 2048 + (2 * UNIT if device in plan.staging.staging_bytes else 0)
        for i, leaf in enumerate(moved["a"]):
            np.testing.assert_array_equal(np.asarray(leaf), numbers((64, 64)) + i)
        np.testing.assert_array_equal(np.asarray(moved["b"]), numbers((64, 64)))
        del moved, leaf


def test_a_donated_array_is_moved_in_rounds_and_its_memory_comes_back(platform: Platform) -> None:
    rows, cols = columns(platform)
    x = cuplace.device_put(numbers((64, 64)), rows)
    y = cuplace.device_put(x, cols, donate=True, max_bytes=2048 + UNIT)
    assert x.is_deleted()
    np.testing.assert_array_equal(np.asarray(y), numbers((64, 64)))
    platform.scheduler.drain([stream for device in platform.devices for stream in device.streams()])
    assert [device.memory_stats()["bytes_in_use"] for device in platform.devices] == [2048] * 8


def test_inside_jit_a_bound_is_refused(platform: Platform) -> None:
    rows, cols = columns(platform)
    x = cuplace.device_put(numbers((64, 64)), rows)
    for call in (cuplace.device_put, cuplace.reshard):
        with pytest.raises(cuplace.errors.MaxBytesInsideJitError, match="inside jit takes no max_bytes"):
            cuplace.jit(lambda x, call=call: call(x, cols, max_bytes=1 << 20))(x)
