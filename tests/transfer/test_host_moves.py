"""Moves among the memory of devices and host memory of both kinds: values, order, paths and what does not wait."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.placement.memory_space import KINDS
from cuplace.placement.sharding import NamedSharding, Sharding, SingleDeviceSharding
from cuplace.placement.spec import P
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.platform import Platform
from cuplace.transfer.execute import gather_to_host, move
from cuplace.transfer.plan import plan_move
from cuplace.transfer.upload import upload
from tests.transfer.shardings import mesh, transfers

pytestmark = pytest.mark.order(once=True)

F32 = np.dtype("float32")
HOST_KINDS = KINDS[1:]


def numbers(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=F32).reshape(shape)


def moved(buffers: list[Buffer], shape: tuple[int, ...], *stations: Sharding) -> list[Buffer]:
    """The values moved from the first sharding to the next, and so on."""
    for source, target in itertools.pairwise(stations):
        buffers = move(buffers, plan_move(shape, F32, source, target), None)
    return buffers


@given(data=st.data())
def test_any_move_between_kinds_gives_the_values_of_numpy_in_every_shard(platform: Platform, data: Any) -> None:
    shape, source, target = data.draw(transfers(platform.devices))
    kinds = data.draw(st.tuples(*[st.sampled_from(KINDS)] * 3))
    stations = [
        place.with_memory_kind(kind) for place, kind in zip((source, target, source), kinds, strict=True)
    ]
    old = upload(numbers(shape), stations[0], None)
    for buffers, sharding in (
        (moved(old, shape, *stations[:2]), stations[1]), (moved(old, shape, *stations), stations[2]),
    ):  # fmt: skip
        for buffer, device, box in zip(buffers, sharding.flat_devices, sharding.layout(shape).boxes, strict=True):
            assert buffer.device is device
            assert buffer.block.arena.memory is device.memory(sharding.memory_kind)
            np.testing.assert_array_equal(platform.scheduler.download(buffer), numbers(shape)[box.slices()])
        np.testing.assert_array_equal(gather_to_host(buffers, sharding, shape, F32), numbers(shape))


@pytest.mark.order
@hypothesis.settings(max_examples=4)
@given(data=st.data())
def test_chains_of_moves_keep_their_order_while_memory_is_used_again(platform: Platform, data: Any) -> None:
    shape = (8, 8)
    grid = mesh(platform.devices[:4], (4,), ("x",))
    specs = st.sampled_from([P("x"), P(None, "x"), P()])
    step = st.builds(lambda spec, kind: NamedSharding(grid, spec, kind), specs, st.sampled_from(KINDS))
    chains = data.draw(st.lists(st.lists(step, min_size=2, max_size=5), min_size=2, max_size=6))
    results = []
    for i, stations in enumerate(chains):
        values = numbers(shape) + i
        results.append((moved(upload(values, stations[0], None), shape, *stations), stations[-1], values))
    for buffers, sharding, values in results:
        np.testing.assert_array_equal(gather_to_host(buffers, sharding, shape, F32), values)


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_moves_to_the_host_and_back_return_while_their_source_is_held(platform: Platform, kind: str) -> None:
    device = platform.devices[0]
    here, there = SingleDeviceSharding(device), SingleDeviceSharding(device, memory_kind=kind)
    latch = platform.scheduler.hold(device.upload)
    held = upload(numbers((64,)), here, None)
    down = moved(held, (64,), here, there)
    back = moved(down, (64,), there, SingleDeviceSharding(platform.devices[1]))
    assert not platform.scheduler.is_ready(down)
    assert not platform.scheduler.is_ready(back)
    latch.release()
    np.testing.assert_array_equal(platform.scheduler.download(back[0]), numbers((64,)))
    np.testing.assert_array_equal(platform.scheduler.download(down[0]), numbers((64,)))


def test_copies_take_the_streams_of_what_is_on_a_device(platform: Platform) -> None:
    one, other = platform.devices[:2]
    here, pinned = SingleDeviceSharding(one), SingleDeviceSharding(other, memory_kind="pinned_host")
    unpinned = SingleDeviceSharding(one, memory_kind="unpinned_host")
    with platform.scheduler.log.record() as records:
        moved(upload(numbers((4,)), here, None), (4,), here, pinned, unpinned, here, unpinned, pinned, here)
    copies = [record for record in records if record.kind == "move"]
    streams = [one.download, one.host, one.upload, one.download, other.host, one.upload]
    assert [record.stream for record in copies] == streams
    over = {"host": "host", "staged": "staged", "inside": "local"}
    if platform.name == "cpu":
        over = dict.fromkeys(over, "local")
    names = ["host", "inside", "staged", "staged", "inside", "host"]
    assert [record.path for record in copies] == [over[name] for name in names]


def test_plans_tell_the_bytes_of_the_links_to_the_host(platform: Platform) -> None:
    here = NamedSharding(mesh(platform.devices[:4], (4,), ("x",)), P("x"))
    pinned, whole = here.with_memory_kind("pinned_host"), NamedSharding(here.mesh, P(), "unpinned_host")
    nbytes = 8 * F32.itemsize
    gpus = [device.gpu for device in platform.devices[:4]]

    def through(source: Sharding, target: Sharding) -> dict[str, int]:
        return {str(port): n for port, n in plan_move((8,), F32, source, target).bytes_through.items()}

    def at_each(port: str, share: int) -> dict[str, int]:
        return {f"GPU {gpu} {port}": gpus.count(gpu) * share for gpu in gpus}

    if platform.name == "cpu":
        assert through(here, pinned) == at_each("memory", 2 * nbytes // 4)
        return
    assert through(here, pinned) == {**at_each("down", nbytes // 4), **at_each("both", nbytes // 4)}
    assert through(whole, here) == {**at_each("up", nbytes // 4), **at_each("both", nbytes // 4)}
    assert through(pinned, whole) == {"host memory": 2 * 4 * nbytes}


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_pieces_of_an_array_larger_than_a_piece_of_the_ring_arrive_in_their_places(
    platform: Platform, kind: str
) -> None:
    shape = (5, 3 << 19)  # 30 MiB; the first slab of the ring is cut into pieces of one
    here = SingleDeviceSharding(platform.devices[0])
    there = SingleDeviceSharding(platform.devices[0], memory_kind=kind)
    back = moved(upload(numbers(shape), here, None), shape, here, there, here)
    assert np.array_equal(platform.scheduler.download(back[0]), numbers(shape))
