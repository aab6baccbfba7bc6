"""Plans of cuFFT are apart by partition: they have scratch memory. Stand-ins for plans run here, with kernels of CuPy's
that pass through their scratch memory as cuFFT's do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cuplace
from cuplace import NamedSharding, P
from cuplace.runtime.platform import Platform, activated
from tests import fakecuda, fakegpus
from tests.fakegpus import Case

VALUES = np.arange(8 * 64, dtype=np.complex64).reshape(8, 64)
PARTITIONS = [Case("eager", gpus=1), Case("lazy", gpus=1), Case("random", 21, gpus=2), Case("threads", gpus=1)]


class Plan:
    """As `cufft.Plan1d`. Its transform changes nothing."""

    gpus = None

    def __init__(self, size: int, kind: int, batch: int, *, devices: Any = None, out: Any = None) -> None:
        import cupy

        self.work_area = cupy.cuda.alloc(8 * size * batch)

    def get_output_array(self, array: Any) -> Any:
        import cupy

        return cupy.empty_like(array)

    def fft(self, array: Any, out: Any, direction: int) -> None:
        import cupy

        scratch = cupy.ndarray(array.shape, array.dtype, self.work_area)
        scratch[...] = array
        out[...] = scratch


@pytest.fixture(autouse=True)
def plans(fake_gpus: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import cupy
    from cupy.fft.config import get_plan_cache

    cufft = SimpleNamespace(
        Plan1d=Plan, get_current_plan=lambda: None, CUFFT_FORWARD=-1, CUFFT_INVERSE=1, CUFFT_C2C=0x29,
        CUFFT_R2C=0x2A, CUFFT_D2Z=0x6A,
    )  # fmt: skip
    monkeypatch.setitem(vars(cupy.cuda), "cufft", cufft)  # asking for it would look for the library
    yield
    get_plan_cache().clear()


def transform(x: Any) -> Any:
    import cupy

    return cupy.fft.fft(x, axis=1)


def spread(platform: Platform) -> cuplace.Array:
    mesh = cuplace.make_mesh((8,), ("x",), devices=platform.devices)
    return cuplace.device_put(VALUES, NamedSharding(mesh, P("x")))


@pytest.mark.parametrize("cuda", PARTITIONS, indirect=True, ids=lambda case: case.label)
def test_partitions_of_a_gpu_transform_at_the_same_time(cuda: Platform) -> None:
    x = spread(cuda)
    for _ in range(3):
        x = cuplace.map_shards(transform, x)
    np.testing.assert_array_equal(x, VALUES)


def test_plans_that_partitions_shared_would_be_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy.fft import _fft
    from cupy.fft.config import get_plan_cache

    platform = fakegpus.open_fake(Case("eager", gpus=1))
    monkeypatch.setattr(_fft, "get_plan_cache", get_plan_cache)
    with activated(platform):
        cuplace.map_shards(transform, spread(platform)).block_until_ready()
    platform.close()
    assert {report.kind for report in fakecuda.take_reports()} == {"race"}


def test_a_partition_uses_its_plans_again_and_the_user_has_others(cuda: Platform, monkeypatch: Any) -> None:
    import cupy

    made: list[int] = []
    init = Plan.__init__

    def counted(self: Plan, *arguments: Any, **named: Any) -> None:
        made.append(int(cupy.cuda.get_current_stream().ptr))
        init(self, *arguments, **named)

    monkeypatch.setattr(Plan, "__init__", counted)
    x = cuplace.device_put(VALUES, cuda.devices[0])
    for _ in range(3):
        cuplace.map_shards(transform, x)
    lane: Any = cuda.devices[0].compute.lane
    assert made == [lane.ptr]
    with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True) as stream:
        np.testing.assert_array_equal(transform(transform(cupy.asarray(VALUES))).get(), VALUES)
        assert made == [lane.ptr, stream.ptr]
        assert cupy.fft.config.get_plan_cache().get_curr_size() == 1


def test_each_thread_has_plans_of_its_own(cuda: Platform) -> None:
    """As in CuPy: one that runs is not to be given another stream."""
    from cuplace.runtime.backends.cuda import plan_caches

    lane: Any = cuda.devices[0].compute.lane
    found = []

    def look() -> None:
        with lane.device, lane.on:
            found.append(plan_caches.find())

    look()
    other = threading.Thread(target=look)
    other.start()
    other.join()
    look()
    assert found[0] is found[2]
    assert found[0] is not found[1]
