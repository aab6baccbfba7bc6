"""What arrays hold: which are alive, the report, what the table of exhausted memory says of them, and giving back."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuplace
import cuplace.numpy as cnp
from cuplace import NamedSharding, P
from cuplace.errors import OutOfMemoryError
from cuplace.placement.sharding import SingleDeviceSharding
from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform
from cuplace.runtime.usage import DeviceUsage
from tests import fakecuda
from tests.memory import foreign_array
from tests.runtime.streams import finish

pytestmark = pytest.mark.order(once=True)

MIB = 1 << 20
HOST = np.arange(2 * MIB // 4, dtype=np.float32).reshape(8, -1)


def alive() -> list[cuplace.Array]:
    return cuplace.live_arrays()


def usage(device: cuplace.Device) -> DeviceUsage:
    return next(one for one in cuplace.memory_report().devices if one.device == str(device))


def dead_on_its_way(platform: Platform) -> tuple[Any, cuplace.Array]:
    """An array of the first device that died while a move of it is held: the latch, and what is moved."""
    one, other = platform.devices[:2]
    x = cuplace.device_put(HOST, one)
    x.block_until_ready()
    latch = platform.scheduler.hold(one.transfer_to(other))
    return latch, cuplace.device_put(x, other)


# ---------------------------------------------------------------------- live arrays


def test_live_arrays_are_those_that_live(platform: Platform) -> None:
    x = cuplace.device_put(HOST, platform.devices[1])
    y = x + 1
    assert [a is b for a, b in zip(alive(), (x, y), strict=True)] == [True, True]
    y.delete()
    assert [a is x for a in alive()] == [True]
    del x
    assert alive() == []


def test_shards_that_were_looked_at_are_arrays_too(platform: Platform) -> None:
    mesh = cuplace.make_mesh((4,), ("x",))
    x = cuplace.device_put(HOST, NamedSharding(mesh, P("x")))
    assert len(alive()) == 1
    views = x.addressable_shards
    assert len(alive()) == 5
    assert any(a is views[0].data for a in alive())
    x.delete()
    assert alive() == []


def test_a_donated_array_is_not_alive(platform: Platform) -> None:
    x = cuplace.device_put(HOST, platform.devices[1])
    y = cuplace.device_put(x, platform.devices[2], donate=True)
    assert [a is y for a in alive()] == [True]


def test_live_arrays_are_those_of_the_named_platform(platform: Platform) -> None:
    x = cuplace.device_put(HOST)
    for name in (platform.name, platform.backend.device_platform, None):
        assert [a is x for a in cuplace.live_arrays(name)] == [True]
    other = "sim" if platform.name == "cpu" else "cpu"
    with pytest.raises(RuntimeError, match=f"Unknown backend: '{other}' requested"):
        cuplace.live_arrays(other)
    with pytest.raises(RuntimeError, match="Unknown backend bogus"):
        cuplace.live_arrays("bogus")


@pytest.mark.parametrize("platform", ["cpu"], indirect=True)
def test_arrays_may_come_and_go_in_other_threads(platform: Platform) -> None:
    stop = threading.Event()

    def make() -> None:
        while not stop.is_set():
            made = [cuplace.device_put(np.zeros(4, np.float32)) for _ in range(20)]
            made[0].delete()

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    kept = cuplace.device_put(HOST)
    found = [any(a is kept for a in alive()) and cuplace.memory_report() is not None for _ in range(5)]
    stop.set()
    for thread in threads:
        thread.join(20)
    assert all(found)


# ---------------------------------------------------------------------- the report


def test_the_report_tells_what_is_where(platform: Platform) -> None:
    one, other = platform.devices[:2]
    mesh = cuplace.make_mesh((2,), ("x",))
    x = cuplace.device_put(HOST, NamedSharding(mesh, P("x")))
    y = cuplace.block_until_ready(cnp.sin(x))
    alias = cuplace.device_put(x.addressable_shards[0].data, one)
    half = HOST.nbytes // 2
    found = usage(one)
    assert (found.arrays, found.compute, found.transfer, found.parked) == (2 * half, half, half, 0)
    assert found.peak >= found.compute + found.transfer
    assert (found.limit, found.memory_waits) == (None, 0)
    assert usage(other).arrays == 2 * half
    assert usage(platform.devices[2]).arrays == 0
    del x, alias
    config.update("max_device_bytes", 100 * MIB)
    found = usage(one)
    assert (found.arrays, found.compute, found.transfer, found.limit) == (half, half, 0, 100 * MIB)
    y.delete()
    assert usage(one).compute == 0


def test_the_report_and_the_stats_of_a_device_agree(platform: Platform) -> None:
    config.update("max_device_bytes", 100 * MIB)
    kept = [cuplace.device_put(HOST + i, device) for i, device in enumerate(platform.devices[:3])]
    kept += [x + 1 for x in kept]
    kept[1].delete()
    del kept[2]
    finish(platform)
    for device in platform.devices:
        stats, found = device.memory_stats(), usage(device)
        assert stats == {
            "bytes_in_use": found.compute + found.transfer, "bytes_parked": found.parked, "peak_bytes": found.peak,
            "memory_waits": found.memory_waits, "bytes_limit": found.limit,
        }  # fmt: skip


def test_dead_memory_that_waits_is_told_as_parked(platform: Platform) -> None:
    one = platform.devices[0]
    latch, y = dead_on_its_way(platform)
    assert (usage(one).parked, usage(one).transfer, usage(one).arrays) == (HOST.nbytes, 0, 0)
    assert one.memory_stats()["bytes_parked"] == HOST.nbytes
    latch.release()
    y.block_until_ready()
    assert one.memory_stats()["bytes_parked"] == usage(one).parked == 0


def test_host_memory_of_a_device_has_a_row_of_its_own(platform: Platform) -> None:
    one = platform.devices[1]
    assert f"{one} pinned_host" not in {row.device for row in cuplace.memory_report().devices}
    place = SingleDeviceSharding(one, memory_kind="pinned_host")
    x = cuplace.block_until_ready(cuplace.device_put(HOST, place))
    config.update("max_device_bytes", 10)
    row = next(row for row in cuplace.memory_report().devices if row.device == f"{one} pinned_host")
    assert (row.arrays, row.compute + row.transfer, row.limit) == (HOST.nbytes, HOST.nbytes, None)
    assert usage(one).arrays == 0
    x.delete()
    assert cuplace.free_unused() >= HOST.nbytes


def test_what_functions_of_the_users_make_counts_as_ours(platform: Platform) -> None:
    device = platform.devices[1]
    x = cuplace.device_put(HOST, device)
    y = cuplace.block_until_ready(cuplace.map_shards(lambda a: a + 1, x))
    found = usage(device)
    assert (found.arrays, found.compute, found.transfer) == (2 * HOST.nbytes, HOST.nbytes, HOST.nbytes)
    config.update("max_device_bytes", 2 * HOST.nbytes)
    with pytest.raises(OutOfMemoryError) as caught:
        x + y
    assert [row.split()[0] for row in str(caught.value).splitlines()[2:4]] == [f"{HOST.nbytes:,}"] * 2
    y.delete()
    del caught  # its traceback holds what the call was given
    assert usage(device).compute == 0


def test_adopted_memory_is_the_arrays_but_not_in_use_of_ours(platform: Platform) -> None:
    device = platform.devices[0]
    theirs = foreign_array(device, HOST.copy())
    before = usage(device)
    x = cnp.from_dlpack(theirs)
    found = usage(device)
    assert found.arrays == HOST.nbytes
    if platform.name == "cuda":  # elsewhere it may be a copy
        assert (found.compute, found.transfer) == (before.compute, before.transfer)
    np.testing.assert_array_equal(x, HOST)


def test_values_that_a_program_holds_are_no_arrays(platform: Platform) -> None:
    device = platform.devices[0]
    buffer = platform.scheduler.allocate(device, (1000,), np.dtype(np.int8))
    assert (usage(device).arrays, usage(device).transfer) == (0, 1000)
    del buffer


def test_the_report_prints_as_a_table(platform: Platform) -> None:
    cuplace.device_put(HOST).block_until_ready()
    title, head, *rows = str(cuplace.memory_report()).splitlines()
    assert title == f"Memory of {platform.name} in bytes"
    assert head.split()[:3] == ["device", "arrays", "compute"]
    assert [row.split()[0] for row in rows[:8]] == [str(device) for device in platform.devices]
    pinned = cuplace.memory_report().pinned
    assert (pinned is None) == (platform.name != "cuda")


def test_only_cuda_has_gpus_and_pinned_memory(platform: Platform) -> None:
    x = cuplace.device_put(HOST)
    report = cuplace.memory_report()
    if platform.name != "cuda":
        assert (report.gpus, report.pinned) == ((), None)
        return
    counted = fakecuda.counters()
    assert report.gpus[0].cuplace == HOST.nbytes
    assert report.pinned is not None
    assert HOST.nbytes <= report.pinned.peak <= counted.pinned.peak
    assert report.pinned.size <= counted.pinned.used
    del x


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "compute", "delete", "drop", "move"]), st.integers(0, 7), st.integers(0, 7)),
        max_size=25,
    )
)
@pytest.mark.parametrize("platform", ["cpu", "sim"], indirect=True)
def test_the_report_counts_each_array_once(platform: Platform, steps: list[tuple[str, int, int]]) -> None:
    """Against a list of what is alive that the test keeps."""
    arrays: list[Any] = []
    for step, which, where in steps:
        device = platform.devices[where]
        if step == "put":
            arrays.append(cuplace.device_put(np.zeros(which + 1, np.int8), device))
        elif arrays:
            x = arrays[which % len(arrays)]
            if step == "compute":
                arrays.append(x + x)
            elif step == "move":
                arrays.append(cuplace.device_put(x, device))
            elif step == "delete":
                x.delete()
                arrays = [y for y in arrays if not y.is_deleted()]
            else:
                arrays.pop(which % len(arrays))
            del x
    blocks = {y._buffers[0].block: y for y in arrays}
    on_each = {str(device): 0 for device in platform.devices}
    for y in blocks.values():
        on_each[str(y.device)] += y.nbytes
    assert {one.device: one.arrays for one in cuplace.memory_report().devices} == on_each
    assert len(cuplace.live_arrays()) == len({id(y) for y in arrays})


# ---------------------------------------------------------------------- giving back


def test_what_nothing_uses_goes_back(platform: Platform) -> None:
    cuplace.free_unused()
    x = cuplace.device_put(HOST, platform.devices[1])
    y = cuplace.block_until_ready(x + 1)
    del x
    freed = cuplace.free_unused()
    assert freed >= HOST.nbytes
    assert cuplace.free_unused() == 0
    np.testing.assert_array_equal(y, HOST + 1)


def test_what_waits_stays_and_nobody_waits_for_it(platform: Platform) -> None:
    """On cuda the driver does: it gives memory back when the GPU has finished what it runs."""
    one = platform.devices[0]
    latch, y = dead_on_its_way(platform)
    if platform.name == "cuda":
        threading.Timer(0.1, latch.release).start()
    cuplace.free_unused()
    if platform.name != "cuda":
        assert not y.is_ready()
        assert usage(one).parked == HOST.nbytes
        latch.release()
    np.testing.assert_array_equal(y, HOST)
    assert cuplace.free_unused() >= HOST.nbytes


def test_what_has_waited_goes_back(platform: Platform) -> None:
    latch, y = dead_on_its_way(platform)
    platform.scheduler.park()
    latch.release()
    for event in y._buffers[0].writes:
        platform.backend.synchronize(event)  # which is no door: nothing comes back here
    assert cuplace.free_unused() >= HOST.nbytes
    np.testing.assert_array_equal(y, HOST)


def test_memory_really_goes_back(platform: Platform) -> None:
    """On cuda: the driver's own count."""
    if platform.name != "cuda":
        device = platform.devices[0]
        cuplace.device_put(HOST, device).block_until_ready()
        platform.scheduler.park()
        assert usage(device).unused >= HOST.nbytes
        cuplace.free_unused()
        assert usage(device).unused < HOST.nbytes
        return
    cuplace.free_unused()
    before = fakecuda.counters()
    cuplace.device_put(HOST, platform.devices[0]).block_until_ready()
    freed = cuplace.free_unused()
    after = fakecuda.counters()
    assert after.devices[0].used == before.devices[0].used
    assert after.pinned.used == before.pinned.used
    assert freed == (before.pinned.used - after.pinned.used) + after.pinned.peak - before.pinned.used + HOST.nbytes


# ---------------------------------------------------------------------- exhausted memory


def test_the_table_tells_of_the_largest_arrays(platform: Platform) -> None:
    device = platform.devices[1]
    mesh = cuplace.make_mesh((2,), ("x",))
    sharded = cuplace.device_put(HOST, NamedSharding(mesh, P("x")))
    shards = sharded.addressable_shards
    small = cuplace.device_put(np.zeros(100, np.int16), device)
    config.update("max_device_bytes", HOST.nbytes)
    with pytest.raises(OutOfMemoryError) as caught:
        cuplace.device_put(HOST, device)
    _, _, first, second, *rest = str(caught.value).splitlines()
    size, text = first.split(maxsplit=1)
    assert size == f"{HOST.nbytes // 2:,}"
    assert text.startswith(f"float32[8@x,{HOST.shape[1]}], P('x',) over 2 devices, made at {__file__}:")
    assert text.endswith("(test_the_table_tells_of_the_largest_arrays)")
    assert second.split()[:2] == ["200", "int16[100],"]
    assert len(rest) == 1
    del shards, small


def test_arrays_that_only_garbage_holds_make_room(platform: Platform) -> None:
    device = platform.devices[1]
    config.update("max_device_bytes", 3 * HOST.nbytes)
    gc.disable()
    try:
        for i in range(5):
            cycle: list[Any] = [cuplace.device_put(HOST + i, device)]
            cycle.append(cycle)
            del cycle
        x = cuplace.device_put(HOST, device)
    finally:
        gc.enable()
    np.testing.assert_array_equal(x + 1, HOST + 1)


def test_the_process_goes_on_after_an_operation_that_does_not_fit(platform: Platform) -> None:
    device = platform.devices[1]
    x = cuplace.device_put(HOST, device)
    config.update("max_device_bytes", HOST.nbytes + 100)
    step = cuplace.jit(lambda x: cnp.sin(x) * 2)
    for function in (step, cnp.exp):
        with pytest.raises(OutOfMemoryError):
            function(x)
    config.update("max_device_bytes", None)
    np.testing.assert_allclose(step(x), np.sin(HOST) * 2, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------- run-ahead


@pytest.fixture
def bounded(platform: Platform) -> Platform:
    """At most 32 MiB of dead memory may wait; peaks are counted from now on."""
    config.update("max_inflight_bytes", 32 * MIB)
    if platform.name == "cuda":
        fakecuda.reset_counters()
    return platform


def put_many(count: int, device: cuplace.Device) -> None:
    """Puts of 1 MiB of which nobody waits for one, onto a device that is busy at first, and what that takes at most."""
    staging = config.staging_bytes if device.platform == "gpu" else 0
    before = fakecuda.counters() if staging else None
    values = np.zeros(MIB // 4, np.float32)
    latch = device.scheduler.hold(device.upload)
    threading.Timer(0.5, latch.release).start()
    for i in range(count):
        values[0] = i
        last = cuplace.device_put(values, device)
    assert not latch.held, "no call has waited"
    most = 32 * MIB + 2 * MIB
    assert usage(device).peak <= most
    if before is not None:
        counted = fakecuda.counters()
        assert counted.devices[device.gpu].peak - before.devices[device.gpu].used <= 2 * most
        assert counted.pinned.peak - before.pinned.used <= staging
    assert float(last[0]) == count - 1


def test_many_puts_without_a_wait_stay_bounded(bounded: Platform) -> None:
    put_many(300, bounded.devices[0])


@pytest.mark.deep
def test_ten_thousand_puts_without_a_wait_stay_bounded(bounded: Platform) -> None:
    put_many(10_000, bounded.devices[0])
