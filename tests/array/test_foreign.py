"""Arrays of other libraries become arrays of ours, where they lie; on cpu and sim NumPy stands for CuPy."""

from __future__ import annotations

import numpy as np
import pytest

import cuplace
import cuplace.numpy as cnp
from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.put import device_put
from cuplace.placement.sharding import SingleDeviceSharding
from tests.array.places import numbers, on, places
from tests.memory import address_of, foreign_array


def on_gpu(platform):
    return platform.name == "cuda"


def addresses(x):
    return [address_of(buffer.array) for buffer in x._buffers]


def test_on_its_own_device_nothing_is_copied(platform):
    device = platform.devices[2]
    theirs = foreign_array(device, numbers(4, 2))
    with platform.scheduler.log.record() as submissions:
        x = device_put(theirs, device, may_alias=True)
        y = device_put({"a": theirs}, SingleDeviceSharding(device), may_alias=True)["a"]
    assert not submissions
    assert addresses(x) == addresses(y) == [address_of(theirs)]
    assert (x.committed, x.devices(), x.dtype) == (True, {device}, np.float32)
    np.testing.assert_array_equal(x + 1, numbers(4, 2) + 1)
    z = device_put(theirs, device, may_alias=False)
    assert addresses(z) != addresses(x)
    np.testing.assert_array_equal(z, numbers(4, 2))


def test_without_a_target_it_stays_where_it_is(platform):
    device = platform.devices[2]
    theirs = foreign_array(device, numbers(4))
    for x in (device_put(theirs), cnp.asarray(theirs)):
        assert not x.committed
        (where,) = x.devices()
        assert where.gpu == device.gpu if on_gpu(platform) else where is platform.devices[0]
        np.testing.assert_array_equal(x, numbers(4))
    copied = cnp.array(theirs)  # a computation on uncommitted arrays
    assert copied.devices() == {platform.devices[0]}
    if on_gpu(platform):
        assert addresses(cnp.asarray(theirs)) == [address_of(theirs)] != addresses(copied)
    half = cnp.asarray(theirs, dtype="float16")
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, numbers(4))
    there = device_put(1.0, platform.devices[5])
    assert (cnp.asarray(theirs) + there).devices() == {platform.devices[5]}


def test_it_goes_to_any_place(platform):
    at = places(platform)
    theirs = foreign_array(platform.devices[3], numbers(8))
    for target in (on(at.full, "x"), on(at.reverse, "x"), on(at.a), platform.devices[6]):
        np.testing.assert_array_equal(device_put(theirs, target), numbers(8))
    x = cuplace.reshard(theirs, on(at.full, "x"))
    assert x.sharding.spec == cuplace.P("x")
    np.testing.assert_array_equal(x, numbers(8))
    assert cnp.asarray(theirs, device=platform.devices[1]).devices() == {platform.devices[1]}


def test_donating_it_consumes_nothing(platform):
    theirs = foreign_array(platform.devices[0], numbers(4))
    for donate in (True, "strict"):
        x = device_put(theirs, platform.devices[0], donate=donate)
        np.testing.assert_array_equal(device_put(x, platform.devices[1]), numbers(4))
        x.delete()
    np.testing.assert_array_equal(cnp.from_dlpack(theirs), numbers(4))


def test_wide_types_and_strides(platform, monkeypatch):
    monkeypatch.setattr(dtypes, "_warned", set())
    device = platform.devices[0]
    with pytest.warns(errors.NarrowingWarning, match="float64 are narrowed to float32"):
        x = device_put(foreign_array(device, np.array([1.5, 2.5])), device)
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, [1.5, 2.5])
    for strided in (numbers(3, 4).T, numbers(8)[::-2], np.broadcast_to(numbers(3), (2, 3))):
        y = device_put(foreign_array(device, strided), device)
        assert y._buffers[0].array.flags.c_contiguous
        np.testing.assert_array_equal(y * 2, strided * 2)
    for empty in (np.zeros((0, 3), "float32"), np.float32(7)[None][0:1]):
        np.testing.assert_array_equal(device_put(foreign_array(device, empty), device), empty)


def test_arrays_of_single_devices_are_joined_where_they_are(platform):
    at = places(platform)
    theirs = [foreign_array(device, np.full(1, device.id, "float32")) for device in platform.devices]
    if not on_gpu(platform):
        theirs = [cnp.from_dlpack(one, device=device) for one, device in zip(theirs, platform.devices, strict=True)]
    with platform.scheduler.log.record() as submissions:
        x = cuplace.make_array_from_single_device_arrays((8,), on(at.full, "x"), theirs)
        y = cuplace.make_array_from_single_device_arrays((8,), on(at.reverse, "x"), theirs[::-1])
    assert not submissions
    np.testing.assert_array_equal(x, numbers(8))
    np.testing.assert_array_equal(y, numbers(8)[::-1])
    ours = device_put(np.float32([70]), platform.devices[7])
    z = cuplace.make_array_from_single_device_arrays((8,), on(at.full, "x"), [*theirs[:7], ours])
    np.testing.assert_array_equal(z, [*range(7), 70])
    with pytest.raises(ValueError, match="shard shape"):
        cuplace.make_array_from_single_device_arrays((16,), on(at.full, "x"), theirs)


def test_callbacks_give_foreign_arrays(platform):
    at = places(platform)
    sharding = on(at.full, "x")
    made = []

    def part(index):
        made.append(foreign_array(platform.devices[len(made)], numbers(16)[index]))
        return made[-1]

    x = cuplace.make_array_from_callback((16,), sharding, part)
    np.testing.assert_array_equal(x, numbers(16))
    if on_gpu(platform):
        assert addresses(x) == list(map(address_of, made))
    whole = foreign_array(platform.devices[4], numbers(3))
    np.testing.assert_array_equal(cuplace.make_array_from_callback((3,), on(at.a), lambda index: whole), numbers(3))
    y = cuplace.make_array_from_process_local_data(sharding, foreign_array(platform.devices[1], numbers(8)), (8,))
    assert y.sharding == sharding
    np.testing.assert_array_equal(y, numbers(8))


def test_partitions_of_a_gpu_share_its_arrays():
    """Arrays on one GPU belong, in their order, to its devices that have none yet."""
    from tests import fakegpus

    if fakegpus.missing():
        pytest.skip(fakegpus.missing())
    from cuplace.runtime.platform import activated

    opened = fakegpus.open_fake(fakegpus.Case("lazy", gpus=2))
    with activated(opened):
        mesh = cuplace.make_mesh((8,), ("x",), devices=opened.devices)
        theirs = [foreign_array(device, np.full(2, device.id, "float32")) for device in opened.devices]
        x = cuplace.make_array_from_single_device_arrays((16,), on(mesh, "x"), theirs)
        assert addresses(x) == list(map(address_of, theirs))
        np.testing.assert_array_equal(x, np.repeat(np.arange(8), 2))
        assert device_put(theirs[6], opened.devices[5]).devices() == {opened.devices[5]}
        assert addresses(device_put(theirs[6], opened.devices[5])) == [address_of(theirs[6])]
    opened.close()
    fakegpus.assert_no_reports()


def test_where_it_cannot_be_used(platform):
    class OnAGpu:
        __cuda_array_interface__ = {"data": (0, False), "shape": (0,), "typestr": "<f4", "version": 3}  # noqa: RUF012

    if on_gpu(platform):
        assert device_put(OnAGpu(), platform.devices[0]).shape == (0,)
        return
    for call in (device_put, cuplace.jit(lambda x: x)):
        with pytest.raises(TypeError):
            call(OnAGpu())
    with pytest.raises(errors.GpuArrayError, match="choose CUPLACE_PLATFORM=cuda"):
        device_put(OnAGpu())


def test_gpus_without_a_device():
    from tests import fakegpus

    if fakegpus.missing():
        pytest.skip(fakegpus.missing())
    import cupy

    from cuplace.runtime.platform import activated

    opened = fakegpus.open_fake(fakegpus.Case("eager", gpus=2))
    with activated(opened):
        with cupy.cuda.Device(5):
            theirs = cupy.zeros(3, "float32")
        with pytest.raises(errors.ForeignMemoryError, match=r"on GPU 5; the devices of this process are on \[0, 1\]"):
            device_put(theirs)
    opened.close()
