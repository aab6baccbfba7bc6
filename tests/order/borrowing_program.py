"""Random programs with a user's own code in between: arrays of CuPy's adopted and lent, kernels in map_shards.

On cpu and sim NumPy takes CuPy's place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import cuplace
import cuplace.numpy as jnp
from cuplace import NamedSharding, P, ShapeDtypeStruct
from cuplace.runtime.device import Device
from cuplace.runtime.platform import Platform
from tests import fakecuda
from tests.order.random_program import SHAPES, RandomProgram

SOURCE = r"""
extern "C" __global__ void scale_and_add(const int* x, int* y, int factor, int term, long long n) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * factor + term;
}
"""
KINDS = ("null", "blocking", "non-blocking")


class User:
    """The user's side: a library, its streams, and kernels written for it."""

    def __init__(self, platform: Platform) -> None:
        self.xp: Any = platform.backend.xp
        self.on_gpu = self.xp is not np
        self._streams: dict[tuple[int, str], Any] = {}
        if self.on_gpu:
            import cupy

            self.xp = cupy

    @contextmanager
    def on(self, device: Device, kind: str) -> Iterator[None]:
        """A stream of the user's on the hardware of a device, made current."""
        if not self.on_gpu:
            yield
            return
        cupy = self.xp
        with cupy.cuda.Device(device.gpu):
            stream = self._streams.get((device.gpu, kind))
            if stream is None:
                made = cupy.cuda.Stream.null if kind == "null" else cupy.cuda.Stream(non_blocking=kind != "blocking")
                stream = self._streams[device.gpu, kind] = made
            with stream:
                yield

    def array(self, values: np.ndarray) -> Any:
        """An array of the user's library whose values are the result of work on the current stream."""
        array = self.xp.asarray(values.copy())
        array *= 3
        array -= 1
        return array

    def borrow(self, x: cuplace.Array) -> Any:
        """The memory of an array in the user's library."""
        return self.xp.from_dlpack(x)

    def values(self, array: Any, device: Device, kind: str) -> np.ndarray:
        """The values of an array that was made on a stream, which is waited for."""
        with self.on(device, kind):
            return array.get() if self.on_gpu else array

    def kernel(self, factor: int, term: int) -> Callable[[Any], Any]:
        """A function for map_shards: a kernel of the user's into new memory."""
        if not self.on_gpu:
            return lambda x: x * np.int32(factor) + np.int32(term)
        cupy, run = self.xp, _raw_kernel()

        def scale_and_add(x: Any) -> Any:
            y = cupy.empty_like(x)
            run((-(-x.size // 32),), (32,), (x, y, np.int32(factor), np.int32(term), np.int64(x.size)))
            return y

        return scale_and_add


@cache
def _raw_kernel() -> Any:
    import cupy

    if fakecuda.installed():  # which would take it to touch all of the pool's block that its arrays are parts of
        fakecuda.declare_kernel("scale_and_add", _touched)
    return cupy.RawKernel(SOURCE, "scale_and_add")


def _touched(launch: fakecuda.Launch) -> tuple[list[fakecuda.Region], list[fakecuda.Region]]:
    x, y = (fakecuda.Region(launch.integer(i), (launch.integer(4),), (4,), 4) for i in (0, 1))
    return [x], [y]


class Borrowed(NamedTuple):
    """What the user computed from memory of ours: where, on which stream, and what it should be."""

    array: Any
    device: Device
    kind: str
    value: np.ndarray


def few_placements(devices: Sequence[Device]) -> list[NamedSharding]:
    """Shardings over meshes of one and two devices, of three in all: such programs are short, so that many run."""
    pair, reverse, cross = (
        cuplace.make_mesh((2,), ("x",), devices=[devices[i], devices[j]]) for i, j in ((0, 1), (1, 0), (1, 2))
    )
    lone = cuplace.make_mesh((1,), ("x",), devices=devices[2:3])
    sharded = [NamedSharding(m, s) for m in (pair, reverse, cross) for s in (P("x"), P(None, "x"))]
    return [*sharded, NamedSharding(cross, P()), NamedSharding(lone, P("x")), NamedSharding(lone, P())]


@dataclass
class BorrowingProgram(RandomProgram):
    """Counts what the user's code did in ``kernels``, ``adoptions`` and ``loans``."""

    kernels: int = 0
    adoptions: int = 0
    loans: int = 0
    borrowed: list[Borrowed] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.user = User(self.platform)

    def run(self) -> Any:
        self.adopt()
        counts = super().run()
        self.check_borrowed()
        return counts

    def places_to_be(self) -> list[NamedSharding]:
        return few_placements(self.platform.devices)

    def actions(self) -> list[Callable[[], None]]:
        own = [self.adopt, self.adopt_shards, self.lend, self.map_one, self.map_two, self.map_in_place, self.reduce]
        return super().actions() + own

    # ------------------------------------------------------------------ steps

    def adopt(self) -> None:
        """An array of the user's, of work that its stream has yet to do; where it lies, or on its way elsewhere."""
        value = self.values(self.random.choice(SHAPES))
        device = self.random.choice(self.platform.devices[:3])
        with self.user.on(device, self.random.choice(KINDS)):
            theirs = self.user.array(value)
            how = self.random.randrange(3)
            if how == 0:
                x = cuplace.device_put(theirs, self.random.choice(self.placements), may_alias=True)
            else:
                x = jnp.from_dlpack(theirs) if how == 1 else cuplace.device_put(theirs, device, may_alias=True)
                x = cuplace.device_put(x, self.random.choice(self.placements))
            del theirs
        self.adoptions += 1
        self.keep(x, value * 3 - 1)

    def adopt_shards(self) -> None:
        """An array over the memory of one array of the user's for each device."""
        value = self.values(self.random.choice(SHAPES))
        sharding = self.random.choice([s for s in self.placements if not s.is_fully_replicated])
        kind, parts = self.random.choice(KINDS), []
        for device, index in zip(sharding.flat_devices, sharding.layout(value.shape).indices, strict=True):
            with self.user.on(device, kind):
                parts.append(cuplace.device_put(self.user.array(value[index]), device, may_alias=True))
        self.adoptions += 1
        self.keep(cuplace.make_array_from_single_device_arrays(value.shape, sharding, parts), value * 3 - 1)

    def lend(self) -> None:
        """The user computes from a shard, on a stream of theirs, and lets go of it at once."""
        entry = self.pick()
        shard = self.random.choice(entry.array.addressable_shards)
        if not self.user.on_gpu:
            self.release()  # the host waits for what it reads
        kind = self.random.choice(KINDS)
        with self.user.on(shard.device, kind):
            mine = self.user.borrow(shard.data) * 7
        self.loans += 1
        self.borrowed.append(Borrowed(mine, shard.device, kind, entry.value[shard.index] * 7))
        if self.random.random() < 0.3:
            self.release()
            self.check_borrowed()

    def map_one(self) -> None:
        entry = self.pick()
        factor, term = self.random.randrange(2, 9), self.random.randrange(-9, 9)
        self.kernels += 1
        self.keep(
            cuplace.map_shards(self.user.kernel(factor, term), entry.array),
            entry.value * np.int32(factor) + np.int32(term),
        )

    def map_two(self) -> None:
        """A function of two arrays, in which shards are turned around, so that it matters what they are."""
        one = self.pick()
        other = self.random.choice([entry for entry in self.entries if entry.value.shape == one.value.shape])
        moved = cuplace.device_put(other.array, one.array.sharding)
        self.kernels += 1
        value = np.empty_like(one.value)
        for shard in one.array.addressable_shards:
            value[shard.index] = one.value[shard.index][::-1] - other.value[shard.index]
        self.keep(cuplace.map_shards(lambda x, y: x[::-1] - y, one.array, moved), value)

    def map_in_place(self) -> None:
        entry = self.remove()
        self.note_death(entry)

        def add_in_place(x: Any) -> Any:
            x += 11
            return x

        self.kernels += 1
        self.keep(cuplace.map_shards(add_in_place, entry.array, donate_argnums=0), entry.value + 11)
        assert entry.array.is_deleted()

    def reduce(self) -> None:
        """A result of another shape, in the order of the devices of a mesh."""
        entry = self.pick()
        whole = self.placements[0]
        x = cuplace.device_put(entry.array, whole)
        out = ShapeDtypeStruct((whole.num_devices, entry.value.shape[1]), np.int32, sharding=whole)
        self.kernels += 1
        sums = cuplace.map_shards(lambda x: x.sum(axis=0, keepdims=True, dtype="int32"), x, out_shape=out)
        value = np.stack([entry.value[shard.index].sum(axis=0, dtype=np.int32) for shard in x.addressable_shards])
        self.keep_rank_two(sums, value)

    # ------------------------------------------------------------------ bookkeeping

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        few = np.array([self.random.randrange(-50, 50) for _ in range(5)], np.int32)
        return np.resize(few, shape) + np.arange(np.prod(shape), dtype=np.int32).reshape(shape)

    def check_borrowed(self) -> None:
        """All that the user computed, on streams that nobody has waited for."""
        while self.borrowed:
            array, device, kind, value = self.borrowed.pop()
            np.testing.assert_array_equal(self.user.values(array, device, kind), value)
