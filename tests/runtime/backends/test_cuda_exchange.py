"""Memory of other libraries taken in, and ours given out: every way in which a library may speak."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import errors
from cuplace.runtime.platform import Platform
from tests import fakecuda
from tests.fakegpus import Case
from tests.memory import address_of

pytestmark = pytest.mark.order(once=True)

VALUES = np.arange(24, dtype=np.float32)
CASES = [Case("eager"), Case("lazy"), Case("random", 31), Case("lazy", gpus=1)]
every_mode = pytest.mark.parametrize("cuda", CASES, indirect=True, ids=lambda case: case.label)


class Library:
    """An array of another library, which works on a stream of its own; CuPy is what it is made with.

    Like PyTorch it gives its memory in the order of that stream, whatever is current in CuPy.
    """

    def __init__(self, gpu: int) -> None:
        import cupy

        self.gpu = gpu
        with cupy.cuda.Device(gpu):
            self.stream = cupy.cuda.Stream(non_blocking=True)
            with self.stream:
                self.array = cupy.asarray(VALUES) * 2


class New(Library):
    def __dlpack__(self, *, stream: int, max_version: tuple[int, int] | None = None) -> Any:
        import cupy

        with cupy.cuda.Device(self.gpu), self.stream:
            return self.array.__dlpack__(stream=stream, max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.gpu


class Old(New):
    """It knows no versions."""

    def __dlpack__(self, *, stream: int) -> Any:  # type: ignore[override]
        return super().__dlpack__(stream=stream)


class Described(Library):
    """It has no DLPack, and tells its stream."""

    told: Any = True

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        described = {**self.array.__cuda_array_interface__, "stream": self.stream.ptr}
        if self.told is None:
            self.stream.synchronize()
            described["stream"] = None
        return described


class Complete(Described):
    """It tells no stream, since its work is complete."""

    told = None


@every_mode
@pytest.mark.parametrize("kind", [New, Old, Described, Complete])
def test_arrays_of_libraries_come_in_their_order(cuda: Platform, kind: type[Library]) -> None:
    device = cuda.devices[3]
    theirs = kind(device.gpu)
    x = cuplace.device_put(theirs, device)
    assert address_of(x._buffers[0].array) == address_of(theirs.array)
    y = cuplace.map_shards(lambda x: x + 1, x)
    moved = cuplace.device_put(x, cuda.devices[5])
    del x, theirs
    np.testing.assert_array_equal(y, VALUES * 2 + 1)
    np.testing.assert_array_equal(moved, VALUES * 2)
    gc.collect()
    cuda.scheduler.park()


@every_mode
def test_strides_that_libraries_describe(cuda: Platform) -> None:
    device = cuda.devices[1]
    theirs = Described(device.gpu)
    theirs.array = theirs.array.reshape(4, 6)[::2, 1:5].T
    np.testing.assert_array_equal(jnp.asarray(theirs), (VALUES.reshape(4, 6) * 2)[::2, 1:5].T)


def test_what_tells_of_no_memory_is_not_on_a_gpu(cuda: Platform) -> None:
    exchange: Any = cuda.backend.exchange
    assert [exchange.gpu(value) for value in ([1.0, 2.0], VALUES, 3)] == [None] * 3


def test_masks_are_refused(cuda: Platform) -> None:
    class Masked(Described):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {**super().__cuda_array_interface__, "mask": self}

    with pytest.raises(errors.MaskedArrayError):
        cuplace.device_put(Masked(0))


@every_mode
def test_a_borrowers_stream_outlives_the_loan(cuda: Platform) -> None:
    """The end of a loan is recorded on its stream, which the user may have let go of by then."""
    import cupy

    device = cuda.devices[2]
    base = cuplace.device_put(VALUES, device)
    x = base * 3
    with cupy.cuda.Device(device.gpu):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            borrowed = cupy.from_dlpack(x)
            mine = borrowed + 1
            done = stream.record()
    del stream, x, borrowed
    gc.collect()
    again = [base + i for i in range(3)]
    done.synchronize()
    with cupy.cuda.Device(device.gpu):
        np.testing.assert_array_equal(mine.get(), VALUES * 3 + 1)
    for i, array in enumerate(again):
        np.testing.assert_array_equal(array, VALUES + i)


@every_mode
def test_giving_and_taking_waits_for_nothing(cuda: Platform) -> None:
    import cupy

    device = cuda.devices[2]
    x = cuplace.device_put(VALUES, device)
    x.block_until_ready()
    with cupy.cuda.Device(device.gpu), cupy.cuda.Stream(non_blocking=True):
        latch = cuda.scheduler.hold(device.compute)
        fakecuda.reset_counters()
        y = x * 2
        theirs = cupy.from_dlpack(y)
        z = jnp.from_dlpack(theirs + 1)
        w = cuplace.map_shards(lambda z: z * 3, z)
        assert not w.is_ready()
        counted = fakecuda.counters()
        assert (counted.blocking, counted.bytes["d2h"], counted.bytes["h2d"]) == ({}, 0, 0)
        latch.release()
        np.testing.assert_array_equal(w, (VALUES * 2 + 1) * 3)
        del theirs
    gc.collect()
    cuda.scheduler.park()
