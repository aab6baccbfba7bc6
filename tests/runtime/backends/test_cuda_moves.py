"""How boxes travel on the cuda platform: by which path, in how many steps, and with how much memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.placement.memory_space import PINNED_HOST
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.config import config
from cuplace.runtime.device import Device
from cuplace.runtime.memory import TRANSFER
from cuplace.runtime.platform import Platform, open_platform
from cuplace.runtime.task import CopyTask
from tests import fakecuda, fakegpus
from tests.fakegpus import Case
from tests.memory import foreign_array
from tests.runtime.streams import ADD_ONE, compute, finish, move, put, read

pytestmark = pytest.mark.order(once=True)

FULL = slice(None)
CHUNK_BYTES = "cuplace.runtime.staging.CHUNK_BYTES"
ALL_PATHS = [Case("eager"), Case("eager", gpus=1), Case("eager", peers=False)]
ORDERS = [
    Case(mode, seed, gpus, peers)
    for mode, seed in (("lazy", 0), ("random", 11), ("random", 12), ("threads", 0))
    for gpus, peers in ((8, True), (8, False), (1, True))
]


def labels(case: Case) -> str:
    return case.label


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def send(source: Buffer, from_box: tuple[slice, ...] | None, target: Buffer, to_box: tuple[slice, ...] | None) -> None:
    stream = source.device.transfer_to(target.device)
    task = CopyTask(from_box, to_box, stream.path or "", 0)
    source.device.scheduler.submit_moves([(task, stream, source, target)])


def made(device: Device, values: np.ndarray[Any, Any]) -> Buffer:
    return put(device, values, values.dtype)


# ---------------------------------------------------------------------- values


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[slice, ...], tuple[int, ...], tuple[slice, ...]]:
    """A source shape, a box of it, a target shape, and an equal box of that."""
    found: list[list[Any]] = [[], [], [], []]
    for _ in range(draw(st.integers(0, 4))):
        size = draw(st.integers(1, 5))
        for side in (0, 2):
            before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
            found[side].append(before + size + after)
            found[side + 1].append(slice(before, before + size))
    return tuple(tuple(part) for part in found)  # type: ignore[return-value]


@pytest.mark.parametrize("cuda", [*ALL_PATHS, *ORDERS], indirect=True, ids=labels)
@given(case=boxes(), dtype=st.sampled_from(("int8", "int16", "float32", "float64", "complex128")))
def test_any_box_arrives(cuda: Platform, case: Any, dtype: str) -> None:
    source_shape, from_box, target_shape, to_box = case
    values, expected = numbers(*source_shape, dtype=dtype), np.array(-numbers(*target_shape, dtype=dtype))
    source, target = made(cuda.devices[0], values), made(cuda.devices[-1], expected)
    send(source, from_box, target, to_box)
    expected[..., *to_box] = values[..., *from_box]
    np.testing.assert_array_equal(read(target), expected)


@pytest.mark.parametrize("cuda", [*ALL_PATHS, *ORDERS], indirect=True, ids=labels)
def test_large_boxes_arrive_chunk_by_chunk(cuda: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHUNK_BYTES, 1 << 12)
    values, expected = numbers(50, 40, 30), numbers(60, 50, 40) * -1
    source, target = made(cuda.devices[0], values), made(cuda.devices[-1], expected)
    send(source, (slice(5, 45), slice(0, 40), slice(3, 28)), target, (slice(0, 40), slice(10, 50), slice(7, 32)))
    expected[:40, 10:50, 7:32] = values[5:45, :, 3:28]
    np.testing.assert_array_equal(read(target), expected)
    send(source, (FULL, slice(0, 1), FULL), target, (slice(0, 50), slice(49, 50), slice(0, 30)))
    expected[:50, 49:50, :30] = values[:, :1]
    np.testing.assert_array_equal(read(target), expected)


@pytest.mark.parametrize("cuda", [*ALL_PATHS, *ORDERS[:3]], indirect=True, ids=labels)
@pytest.mark.parametrize("order", ["C", "F", "strided", "reversed"])
def test_memory_of_others_may_have_any_strides(cuda: Platform, order: str) -> None:
    values = numbers(6, 8)
    laid_out = {"C": values, "F": np.asfortranarray(values), "strided": numbers(12, 16)[::2, ::2],
                "reversed": numbers(6, 8)[::-1, ::-1]}[order]  # fmt: skip
    device, other = cuda.devices[0], cuda.devices[-1]
    buffer = cuda.scheduler.adopt(foreign_array(device, laid_out), device)
    np.testing.assert_array_equal(read(buffer), laid_out)
    np.testing.assert_array_equal(read(move(buffer, other)), laid_out)
    target = cuda.scheduler.adopt(foreign_array(other, np.array(laid_out, order="K")), other)
    send(made(device, values * 2), None, target, None)
    np.testing.assert_array_equal(read(target), values * 2)
    cuda.scheduler.upload(buffer, values * 3)
    np.testing.assert_array_equal(read(buffer), values * 3)


# ---------------------------------------------------------------------- steps


class Steps:
    """What the fake saw since it was made: copies by direction, and launches of our kernels."""

    def __init__(self) -> None:
        fakecuda.reset_counters()

    @property
    def copies(self) -> list[str]:
        return [copy.direction for copy in fakecuda.copies()]

    @property
    def kernels(self) -> int:
        return sum(count for name, count in fakecuda.counters().launches.items() if name.startswith("copy_"))


ROWS, COLUMNS, WIDE = (slice(2, 6), FULL), (FULL, slice(1, 5)), (FULL, slice(0, 512))


@pytest.mark.parametrize(
    ("cuda", "shape", "box", "copies", "kernels"),
    [
        (Case("eager"), (8, 6), ROWS, ["p2p"], 0),
        (Case("eager"), (8, 6), COLUMNS, ["p2p"], 2),
        (Case("eager"), (8, 700), WIDE, ["p2p"], 0),
        (Case("eager", gpus=1), (8, 6), ROWS, ["d2d"], 0),
        (Case("eager", gpus=1), (8, 6), COLUMNS, [], 1),
        (Case("eager", gpus=1), (8, 700), WIDE, [], 1),
        (Case("eager", peers=False), (8, 6), ROWS, ["d2h", "h2d"], 0),
        (Case("eager", peers=False), (8, 6), COLUMNS, ["d2h", "h2d"], 2),
        (Case("eager", peers=False), (8, 700), WIDE, ["d2h", "h2d"], 0),
    ],
    indirect=["cuda"],
)
def test_a_move_takes_as_few_steps_as_it_can(
    cuda: Platform, shape: tuple[int, ...], box: tuple[slice, ...], copies: list[str], kernels: int
) -> None:
    device, other = cuda.devices[0], cuda.devices[-1]
    source, target = made(device, numbers(*shape)), made(other, numbers(*shape))
    device.transfer_to(other)
    steps = Steps()
    send(source, box, target, box)
    assert (steps.copies, steps.kernels) == (copies, kernels)


@pytest.mark.parametrize(("from_box", "to_box"), [(COLUMNS, (slice(0, 8), slice(0, 4))), (COLUMNS, None)])
def test_a_side_that_is_contiguous_is_not_packed(cuda: Platform, from_box: Any, to_box: Any) -> None:
    device, other = cuda.devices[:2]
    source, target = made(device, numbers(8, 6)), made(other, numbers(8, 4))
    device.transfer_to(other)
    steps = Steps()
    send(source, from_box, target, to_box)
    assert (steps.copies, steps.kernels) == (["p2p"], 1)
    steps = Steps()
    send(target, to_box, source, from_box)  # includes the probe of the way back
    assert steps.kernels == 1
    np.testing.assert_array_equal(read(source), numbers(8, 6))


@pytest.mark.parametrize(
    ("cuda", "path"),
    [(Case("eager"), "peer"), (Case("eager", gpus=1), "local"), (Case("eager", peers=False), "staged")],
    indirect=["cuda"],
)
def test_records_tell_the_path(cuda: Platform, path: str) -> None:
    import cuplace
    from cuplace import NamedSharding, P

    mesh = cuplace.make_mesh((8,), ("x",))
    x = cuplace.device_put(numbers(8, 8), NamedSharding(mesh, P("x", None)))
    with cuda.scheduler.log.record() as records:
        y = cuplace.device_put(x, NamedSharding(mesh, P(None, "x")))
    moves = [record for record in records if record.kind == "move"]
    assert {record.path for record in moves if record.device is not cuda.devices[0]} >= {path}
    assert {record.path for record in moves} <= {path, "local"}
    np.testing.assert_array_equal(np.asarray(y), numbers(8, 8))


# ---------------------------------------------------------------------- memory


def test_packing_takes_a_bounded_part_of_memory(cuda: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHUNK_BYTES, 1 << 16)
    device, other = cuda.devices[:2]
    source, target = made(device, numbers(1024, 512)), made(other, numbers(1024, 512))
    device.transfer_to(other)
    finish(cuda)
    before = [d.memory_stats()["bytes_in_use"] for d in (device, other)]
    send(source, (FULL, slice(1, 200)), target, (FULL, slice(1, 200)))
    peaks = [d.memory_stats()["peak_bytes"] for d in (device, other)]
    assert all(peak - used <= 2 << 16 for peak, used in zip(peaks, before, strict=True))
    np.testing.assert_array_equal(read(target), numbers(1024, 512))


@pytest.mark.parametrize("cuda", [Case("lazy")], indirect=True, ids=labels)
def test_memory_for_packing_comes_back(cuda: Platform) -> None:
    device, other = cuda.devices[:2]
    source, target = made(device, numbers(64, 64)), made(other, numbers(64, 64))
    for _ in range(20):
        send(source, COLUMNS, target, COLUMNS)
    del source, target
    finish(cuda)
    assert [d.memory_stats()["bytes_in_use"] for d in (device, other)] == [0, 0]


@pytest.mark.parametrize("cuda", [Case("lazy", peers=False)], indirect=True, ids=labels)
def test_staged_copies_larger_than_the_ring_do_not_wait(fake_gpus: None, restored_config: None, cuda: Platform) -> None:
    """The pieces take turns in one block of the ring, in the order of the streams."""
    config.update("staging_bytes", 1 << 20)
    fakecuda.faults.no_peer()
    platform = open_platform("cuda", 2)
    backend: Any = platform.backend
    values = numbers(1 << 20)
    source = made(platform.devices[0], values)
    read(source)
    fakecuda.reset_counters()
    pressed = backend.ring.pressure_waits
    latch = platform.scheduler.hold(platform.devices[0].transfer_to(platform.devices[1]))
    moved = [move(source, platform.devices[1]) for _ in range(3)]
    assert backend.ring.pressure_waits == pressed
    assert fakecuda.counters().blocking == {}
    latch.release()
    for buffer in moved:
        np.testing.assert_array_equal(read(buffer), values)
    assert backend.ring.pinned_bytes <= 1 << 20
    del source, moved, buffer
    platform.close()


@pytest.mark.parametrize(
    "cuda", [Case("lazy", peers=False), *[Case("random", seed, peers=False) for seed in range(6)]], indirect=True,
    ids=labels,
)  # fmt: skip
def test_moves_of_several_pairs_take_turns_in_the_ring(
    fake_gpus: None, restored_config: None, cuda: Platform
) -> None:
    """Nothing but the ring orders them: each waits for the copies that used its block before."""
    config.update("staging_bytes", 1 << 20)
    fakecuda.faults.no_peer()
    platform = open_platform("cuda", 8)
    values = [numbers(1 << 20) + i for i in range(4)]
    sources = [made(platform.devices[i], values[i]) for i in range(4)]
    latches = []
    for i, source in enumerate(sources):
        read(source)
        latches.append(platform.scheduler.hold(platform.devices[i].transfer_to(platform.devices[7 - i])))
    moved = [move(source, platform.devices[7 - i]) for i, source in enumerate(sources)]
    for latch in latches:
        latch.release()
    for buffer, expected in zip(moved, values, strict=True):
        np.testing.assert_array_equal(read(buffer), expected)
    del source, sources, moved, buffer
    platform.close()


# ---------------------------------------------------------------------- pairs


def test_access_is_enabled_and_probed_once_a_pair(cuda: Platform) -> None:
    device, other = cuda.devices[:2]
    fakecuda.reset_counters()
    device.transfer_to(other)
    first = fakecuda.counters()
    assert first.calls["cudaDeviceEnablePeerAccess"] == 2
    assert first.links[(0, 1)] > 0
    fakecuda.reset_counters()
    source = made(device, numbers(4))
    for _ in range(3):
        np.testing.assert_array_equal(read(move(source, other)), numbers(4))
    counted = fakecuda.counters()
    assert "cudaDeviceEnablePeerAccess" not in counted.calls
    assert counted.links[(0, 1)] == 3 * 16


@pytest.mark.parametrize("cuda", [Case("lazy")], indirect=True)
def test_the_memory_of_a_probe_is_used_again_after_it(cuda: Platform) -> None:
    import cupy

    from cuplace.runtime.backends.cuda.links import PROBE_WORDS

    device, other = cuda.devices[:2]
    way: Any = device.transfer_to(other)
    arrival = cuda.backend.gpus[other.gpu].lane("in", device.gpu)
    with arrival.device, arrival.on:
        memory = cupy.empty(PROBE_WORDS, np.uint64)
        memory.fill(7)
        arrival.on.synchronize()
        cuda.backend.synchronize(way.record(0))
        np.testing.assert_array_equal(memory.get(), np.full(PROBE_WORDS, 7, np.uint64))


@pytest.mark.parametrize("cuda", [Case("eager"), Case("eager", peers=False)], indirect=True, ids=labels)
def test_memory_that_moves_pack_into_comes_back(cuda: Platform) -> None:
    """Without a count, which takes in what was lost."""
    device, other = cuda.devices[:2]
    source, target = made(device, numbers(64, 64)), made(other, numbers(64, 64))
    in_use = []
    for _ in range(3):
        send(source, (FULL, slice(0, 3)), target, (FULL, slice(5, 8)))
        cuda.scheduler.host_wait([source, target])
        cuda.scheduler.drain([device.transfer_to(other)])
        for each in (device, other):
            each.memory.collect()
        in_use.append((device.memory.in_use, other.memory.in_use))
    assert in_use == [(source.nbytes, target.nbytes)] * 3
    np.testing.assert_array_equal(read(target)[:, 5:8], numbers(64, 64)[:, :3])


@pytest.mark.parametrize("cuda", [Case("eager", peers=False)], indirect=True)
def test_a_staged_move_is_waited_for_where_the_next_one_fails(cuda: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ends on the way in to the other GPU, the second one on the way out of this."""
    device, other = cuda.devices[:2]
    source, target = made(device, numbers(8)), made(other, numbers(8) * 0)
    read(move(source, other))
    finish(cuda)
    way: Any = device.transfer_to(other)
    ring: Any = cuda.backend.ring
    take, calls = ring.take_in_order, []

    def fails_the_second_time(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return take(*arguments)

    latch = cuda.scheduler.hold(way._mover._arrival)
    halves = [(slice(0, 4),), (slice(4, 8),)]
    moves = [(CopyTask(half, half, way.path, 0), way, source, target) for half in halves]
    with monkeypatch.context() as patch:
        patch.setattr(ring, "take_in_order", fails_the_second_time)
        with pytest.raises(KeyboardInterrupt):
            cuda.scheduler.submit_moves(moves)
    result = compute(ADD_ONE, target)
    latch.release()
    np.testing.assert_array_equal(read(result)[:4], numbers(8)[:4] + 1)


def test_access_that_somebody_else_enabled_is_no_error(cuda: Platform) -> None:
    import cupy

    with cupy.cuda.Device(3):
        cupy.cuda.runtime.deviceEnablePeerAccess(4)
    np.testing.assert_array_equal(read(move(made(cuda.devices[3], numbers(4)), cuda.devices[4])), numbers(4))
    backend: Any = cuda.backend
    assert backend.links.paths[(3, 4)] == "peer"


def test_a_pair_that_delivers_nothing_is_found_before_the_first_value(cuda: Platform) -> None:
    fakecuda.faults.corrupt_pair(0, 1)
    device, other, third = cuda.devices[:3]
    source = made(device, numbers(1000))
    np.testing.assert_array_equal(read(move(source, other)), numbers(1000))
    np.testing.assert_array_equal(read(move(source, third)), numbers(1000))
    np.testing.assert_array_equal(read(move(made(other, numbers(7)), device)), numbers(7))
    backend: Any = cuda.backend
    assert backend.links.paths == {(0, 1): "staged", (0, 2): "peer", (1, 0): "peer"}
    assert "did not arrive" in backend.links.reasons[(0, 1)]


def test_pairs_without_access_are_staged_and_others_are_not(cuda: Platform) -> None:
    fakecuda.faults.no_peer([(0, 1), (1, 0)])
    device, other, third = cuda.devices[:3]
    source = made(device, numbers(1000))
    fakecuda.reset_counters()
    np.testing.assert_array_equal(read(move(source, other)), numbers(1000))
    assert "p2p" not in [copy.direction for copy in fakecuda.copies()]
    np.testing.assert_array_equal(read(move(source, third)), numbers(1000))
    backend: Any = cuda.backend
    assert backend.links.paths == {(0, 1): "staged", (0, 2): "peer"}
    assert backend.links.reasons == {(0, 1): "GPU 0 cannot access the memory of GPU 1"}


def test_a_path_is_found_also_where_streams_are_held(cuda: Platform) -> None:
    """The probe uses streams of its pair only, so that no latch elsewhere can stop it."""
    device, other, third = cuda.devices[:3]
    source = made(device, numbers(10))
    read(source)
    held = [device.transfer_to(third), device.compute, other.compute, other.upload, device.download, other.download]
    latches = [cuda.scheduler.hold(stream) for stream in held]
    moved = move(source, other)
    for latch in latches:
        latch.release()
    np.testing.assert_array_equal(read(moved), numbers(10))


def test_the_checks_are_on(fake_gpus: None) -> None:
    """A move that waits for nothing is reported; without this the silence above would mean nothing."""
    platform = fakegpus.open_fake(Case("eager"))
    device, other = platform.devices[:2]
    stream = device.transfer_to(other)  # before the upload: its probe waits
    source = made(device, numbers(10))
    target = platform.scheduler.allocate(other, (10,), np.dtype(np.float32), TRANSFER)
    source.writes = ()
    platform.scheduler.submit_moves([(CopyTask(None, None, "peer", 40), stream, source, target)])
    assert {report.kind for report in fakecuda.take_reports()} == {"race"}
    platform.close()


def test_a_pair_whose_access_cannot_be_enabled_is_staged(cuda: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU takes eight peers at most."""
    from cupy.cuda import runtime

    def refuse(peer: int) -> None:
        raise runtime.CUDARuntimeError(711)

    device, other = cuda.devices[:2]
    source = made(device, numbers(100))
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "deviceEnablePeerAccess", refuse)
        moved = move(source, other)
    np.testing.assert_array_equal(read(moved), numbers(100))
    backend: Any = cuda.backend
    assert backend.links.paths == {(0, 1): "staged"}
    assert "peer access could not be enabled" in backend.links.reasons[(0, 1)]


def test_the_paths_of_a_lost_gpu_can_be_asked_for(cuda: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan may be made before anybody knows; who uses the GPU is told."""
    from cupy.cuda import runtime

    def fail(gpu: int, peer: int) -> bool:
        raise runtime.CUDARuntimeError(214)

    backend: Any = cuda.backend
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "deviceCanAccessPeer", fail)
        assert backend.topology.path(0, 1) == "peer"


@pytest.mark.parametrize("cuda", [Case("eager"), Case("lazy"), Case("random", 6)], indirect=True, ids=labels)
def test_long_rows_of_pinned_memory_are_left_to_a_copy_engine(cuda: Platform) -> None:
    """Short ones are read by a kernel, over the link."""
    device = cuda.devices[0]
    values = numbers(8, 700)
    for box, kernels in ((WIDE, 0), (COLUMNS, 1)):
        there = cuda.scheduler.allocate(device.place(PINNED_HOST), values.shape, values.dtype)
        cuda.scheduler.upload(there, values * 0)
        source, back = made(device, values), made(device, values * 0)
        read(there)
        steps = Steps()
        cuda.scheduler.submit_moves([(CopyTask(box, box, "host", 0), device.download, source, there)])
        cuda.scheduler.submit_moves([(CopyTask(box, box, "host", 0), device.upload, there, back)])
        assert steps.kernels == 2 * kernels
        expected = values * 0
        expected[box] = values[box]
        np.testing.assert_array_equal(read(there), expected)
        np.testing.assert_array_equal(read(back), expected)


def test_streams_to_and_from_the_host_copy_inside_their_gpu_too(cuda: Platform) -> None:
    device = cuda.devices[0]
    for stream in (device.upload, device.download):
        source, target = made(device, numbers(8, 6)), made(device, numbers(8, 6) * 0)
        cuda.scheduler.submit_moves([(CopyTask(COLUMNS, COLUMNS, "local", 0), stream, source, target)])
        np.testing.assert_array_equal(read(target)[COLUMNS], numbers(8, 6)[COLUMNS])
