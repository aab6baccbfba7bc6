"""DLPack out and in, by the Array API standard: every value of every argument, on memory of the host and of GPUs."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

import cuplace
import cuplace.numpy as cnp
from cuplace import errors
from cuplace.array import dtypes
from cuplace.array.put import device_put
from cuplace.sharding import SingleDeviceSharding
from tests.array.places import numbers, on, places
from tests.memory import address_of, foreign_array, host_values

HOST, PINNED = (1, 0), (3, 0)


def on_gpu(platform):
    return platform.name == "cuda"


class Received:
    """A capsule, as an object that libraries import."""

    def __init__(self, capsule, device):
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **options):
        return self.capsule

    def __dlpack_device__(self):
        return self.device


def received(platform, x, **options):
    """What a library on the array's side of the machine gets; complete."""
    x.block_until_ready()
    capsule = x.__dlpack__(**options)
    where = options.get("dl_device") or x.__dlpack_device__()
    if where == HOST:
        return np.from_dlpack(Received(capsule, HOST))
    import cupy

    return cupy.from_dlpack(capsule)


def finish(platform):
    """Let go of what was lent."""
    gc.collect()
    platform.scheduler.park()


def test_the_device_of_the_memory_is_named(platform):
    x = device_put(numbers(4), platform.devices[1])
    assert x.__dlpack_device__() == ((2, platform.devices[1].gpu) if on_gpu(platform) else HOST)
    full = places(platform).full
    for y in (device_put(numbers(8), on(full, "x")), device_put(numbers(8), on(full))):
        for ask in (y.__dlpack__, y.__dlpack_device__):
            with pytest.raises(BufferError, match="over 8 devices"):
                ask()


def test_every_value_of_stream(platform):
    device = platform.devices[2]
    x = device_put(numbers(4), device) + 1
    handle = device.download.lane.ptr if on_gpu(platform) else 77
    for stream in (None, -1, 1, 2, handle):
        if stream is None or on_gpu(platform):
            got = received(platform, x, stream=stream, max_version=(1, 0))
            np.testing.assert_array_equal(host_values(got), numbers(4) + 1)
        else:
            with pytest.raises(errors.DLPackStreamError, match=rf"stream={stream}\): the stream must be None"):
                x.__dlpack__(stream=stream)
    for stream in (0, -2, 1.0, True, "1"):
        with pytest.raises(errors.DLPackStreamError, match=rf"stream={stream!r}\): the stream must be"):
            x.__dlpack__(stream=stream, max_version=(1, 0))


def test_versions_and_copies(platform):
    """A receiver that cannot be told that memory is read-only gets a copy; where it forbids one, that is an error."""
    x = device_put(numbers(4), platform.devices[0])
    versions = {None: False, (0, 8): False, (1, 0): True, (1, 3): True, (2, 0): True}
    for (version, new), copy in itertools.product(versions.items(), (None, True, False)):
        if copy is False and not new:
            with pytest.raises(errors.DLPackCopyError, match="cannot be told that memory is read-only"):
                x.__dlpack__(max_version=version, copy=copy)
            continue
        assert ('"dltensor_versioned"' if new else '"dltensor"') in repr(x.__dlpack__(max_version=version, copy=copy))
        got = received(platform, x, max_version=version, copy=copy)
        np.testing.assert_array_equal(host_values(got), numbers(4))
        if platform.name != "sim":  # there the host's memory is another one
            assert (address_of(got) == address_of(x._buffers[0].array)) == (copy is not True and new)
    del got
    finish(platform)
    assert len(x._buffers[0].exports) == (platform.name == "cpu")  # the host's values are kept


def test_devices_that_are_asked_for(platform):
    device = platform.devices[1]
    x = device_put(numbers(4), device)
    here = x.__dlpack_device__()
    np.testing.assert_array_equal(host_values(received(platform, x, dl_device=here, max_version=(1, 0))), numbers(4))
    host = received(platform, x, dl_device=HOST, max_version=(1, 0))
    assert not host.flags.writeable
    np.testing.assert_array_equal(np.from_dlpack(x, device="cpu"), numbers(4))
    for other in ((2, 63), (7, 0), (1, 1)):
        with pytest.raises(errors.DLPackDeviceError, match=r"the array is on \(") as caught:
            x.__dlpack__(dl_device=other)
        assert str(here) in str(caught.value)
    if on_gpu(platform):
        with pytest.raises(errors.DLPackCopyError, match="the values are on a GPU"):
            x.__dlpack__(dl_device=HOST, copy=False)
        with pytest.raises(errors.DLPackStreamError, match="the capsule's memory is the host's"):
            x.__dlpack__(dl_device=HOST, stream=1)
    finish(platform)


def test_pinned_memory_of_the_host_is_lent_under_its_name(platform):
    """On cuda, where a GPU can read it, too; libraries that only know memory of the host get that."""
    device = platform.devices[1]
    x = device_put(numbers(4), SingleDeviceSharding(device, memory_kind="pinned_host"))
    x.block_until_ready()
    here = PINNED if on_gpu(platform) else HOST
    assert x.__dlpack_device__() == here
    lent = np.from_dlpack(x)  # of what kind its memory is stands in the capsule, and NumPy looks
    np.testing.assert_array_equal(lent, numbers(4))
    if platform.name != "sim":
        assert address_of(lent) == address_of(x._buffers[0].array)
    as_host = np.from_dlpack(Received(x.__dlpack__(dl_device=HOST, max_version=(1, 0)), HOST))
    copied = np.from_dlpack(Received(x.__dlpack__(copy=True), HOST))
    np.testing.assert_array_equal([as_host, copied], [numbers(4)] * 2)
    if on_gpu(platform):
        with pytest.raises(errors.DLPackDeviceError):
            x.__dlpack__(dl_device=(2, device.gpu))
    del lent, as_host
    finish(platform)


def test_memory_that_is_lent_is_marked_as_read_only_and_kept(platform):
    x = device_put(numbers(4), platform.devices[0])
    if platform.name == "cpu":
        got = np.from_dlpack(x)
        assert not got.flags.writeable
    elif on_gpu(platform):
        import cupy

        got = cupy.from_dlpack(x)
    else:
        got = np.from_dlpack(x)
    x.delete()
    del x
    for i in range(4):
        device_put(np.full(4, i, "float32"), platform.devices[0]).block_until_ready()
    np.testing.assert_array_equal(host_values(got), numbers(4))
    del got
    finish(platform)


def test_a_deleted_array_is_not_exported(platform):
    x = device_put(numbers(4))
    x.delete()
    for ask in (x.__dlpack__, x.__dlpack_device__):
        with pytest.raises(errors.DeletedArrayError):
            ask()


# ---------------------------------------------------------------------- in


def test_memory_of_others_is_used_as_it_is(platform):
    device = platform.devices[0]
    for dtype in ("bool", "int8", "uint16", "int32", "float16", "float32", "complex64"):
        theirs = foreign_array(device, np.array([[0, 1, 1], [1, 0, 1]], dtype))
        x = cnp.from_dlpack(theirs)
        assert (x.committed, x.devices(), x.dtype, x.shape) == (True, {device}, np.dtype(dtype), (2, 3))
        assert address_of(x._buffers[0].array) == address_of(theirs)
        np.testing.assert_array_equal(x, host_values(theirs))
        assert cnp.from_dlpack(theirs, copy=False).committed
    y = cnp.from_dlpack(theirs, copy=True)
    assert address_of(y._buffers[0].array) != address_of(theirs)
    np.testing.assert_array_equal(y, host_values(theirs))


def test_what_is_not_dense_or_too_wide_is_copied(platform, monkeypatch):
    monkeypatch.setattr(dtypes, "_warned", set())
    values = numbers(4, 6)
    for theirs in (foreign_array(platform.devices[0], values.T), foreign_array(platform.devices[0], values[:, ::2])):
        x = cnp.from_dlpack(theirs)
        np.testing.assert_array_equal(x, host_values(theirs))
        assert x._buffers[0].array.flags.c_contiguous
        with pytest.raises(errors.DLPackCopyError, match="copy=False, but a copy is due"):
            cnp.from_dlpack(theirs, copy=False)
    with pytest.warns(errors.NarrowingWarning, match="alues of dtype int64 are narrowed to int32"):
        x = cnp.from_dlpack(foreign_array(platform.devices[0], np.arange(3)))
    assert x.dtype == np.int32
    np.testing.assert_array_equal(x, [0, 1, 2])


def test_a_device_or_a_sharding_is_a_place_to_go_to(platform):
    at = places(platform)
    theirs = foreign_array(platform.devices[0], numbers(8))
    for target in (on(at.full, "x"), on(at.b), platform.devices[5]):
        x = cnp.from_dlpack(theirs, device=target)
        assert x.devices() == set(getattr(target, "flat_devices", (target,)))
        np.testing.assert_array_equal(x, numbers(8))
    with pytest.raises(errors.DLPackCopyError):
        cnp.from_dlpack(theirs, device=on(at.full, "x"), copy=False)
    there = cuplace.sharding.SingleDeviceSharding(platform.devices[0])
    assert address_of(cnp.from_dlpack(theirs, device=there, copy=False)._buffers[0].array) == address_of(theirs)


def test_arrays_of_ours_pass_through(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    assert cnp.from_dlpack(x) is x
    y = cnp.from_dlpack(x, copy=True)
    assert y.sharding == x.sharding
    assert not any(ours is theirs for ours, theirs in zip(x._buffers, y._buffers, strict=True))
    np.testing.assert_array_equal(y, numbers(8))


def test_host_memory_goes_to_devices_of_any_kind(platform):
    x = cnp.from_dlpack(numbers(4))
    assert x.committed
    np.testing.assert_array_equal(x, numbers(4))
    if on_gpu(platform):
        with pytest.raises(errors.DLPackCopyError):
            cnp.from_dlpack(numbers(4), copy=False)
    read_only = np.frombuffer(numbers(4).tobytes(), np.float32)
    np.testing.assert_array_equal(cnp.from_dlpack(read_only), numbers(4))


def test_what_does_not_speak_dlpack():
    for value in (3, [1, 2], None, object()):
        with pytest.raises(TypeError, match="must have __dlpack__ and __dlpack_device__ methods"):
            cnp.from_dlpack(value)


# ---------------------------------------------------------------------- __cuda_array_interface__


def test_the_cuda_array_interface(platform):
    at = places(platform)
    assert not hasattr(device_put(numbers(8), on(at.full, "x")), "__cuda_array_interface__")
    device = platform.devices[1]
    x = device_put(numbers(2, 3), device) * 2
    if not on_gpu(platform):
        assert not hasattr(x, "__cuda_array_interface__")
        return
    described = x.__cuda_array_interface__
    assert described["data"] == (address_of(x._buffers[0].array), True)
    assert (described["shape"], described["typestr"], described["version"]) == ((2, 3), "<f4", 3)
    assert described["stream"] == device.download.lane.ptr
    (buffer,) = x._buffers
    assert len(buffer.exports) == 1

    class Theirs:
        """An array of a library that knows nothing of DLPack."""

        __cuda_array_interface__ = described

    y = device_put(Theirs(), device)
    assert address_of(y._buffers[0].array) == address_of(buffer.array)
    np.testing.assert_array_equal(y + 1, numbers(2, 3) * 2 + 1)
    del x, y
    finish(platform)
    assert not buffer.exports
    assert buffer.reads


def test_the_loan_of_the_interface_lasts_while_destructors_of_the_same_garbage_use_the_array(platform):
    if not on_gpu(platform):
        assert not hasattr(device_put(numbers(2), platform.devices[1]), "__cuda_array_interface__")
        return
    finish(platform)
    before = platform.devices[1].memory_stats()["bytes_in_use"]
    x = device_put(numbers(2, 3), platform.devices[1]).block_until_ready()
    lent = []

    class Borrower:
        """What a library made that knows nothing of DLPack: it keeps the array, and works on its memory at its end."""

        def __init__(self, array):
            self.interface = array.__cuda_array_interface__
            self.array = array
            self.itself = self

        def __del__(self):
            platform.scheduler.park()
            lent.append(bool(self.array._buffers[0].exports))

    Borrower(x)
    del x
    finish(platform)
    assert lent == [True]
    platform.devices[1].memory.wait_for_all_parked()
    assert platform.devices[1].memory_stats()["bytes_in_use"] == before


@pytest.mark.order(once=True)
def test_the_stream_that_the_interface_names_waits_for_the_values(platform):
    device = platform.devices[1]
    source = cuplace.block_until_ready(device_put(numbers(8), device))
    latch = platform.scheduler.hold(device.compute)
    x = source * 2
    assert hasattr(x, "__cuda_array_interface__") == on_gpu(platform)
    if on_gpu(platform):
        assert not platform.backend.query(device.download.record(0))
    latch.release()
    np.testing.assert_array_equal(x, numbers(8) * 2)
