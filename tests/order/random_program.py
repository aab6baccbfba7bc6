"""Random programs of puts, moves, ops, deletes, donations and host reads, run beside NumPy.

Values are int32, so that results are exact in any order of evaluation. Each program keeps three floors, counted
from the runtime's own state: a fifth of its steps are moves to another mesh with another layout, some arrays are
deleted, dropped or donated while a reader of them is pending, and some memory is used again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

import cuplace
import cuplace.numpy as jnp
from cuplace import NamedSharding, P
from cuplace.runtime.platform import Platform
from tests.memory import address_of

SHAPES = ((8, 8), (16, 8), (8, 24))


class Entry(NamedTuple):
    """An array and what NumPy says it holds."""

    array: cuplace.Array
    value: np.ndarray


@dataclass
class Counts:
    steps: int = 0
    relayouts: int = 0
    pending_deaths: int = 0
    reuses: int = 0
    latches: int = 0
    reads: int = 0


@cuplace.jit
def mix(x: Any) -> Any:
    return jnp.where(x > 7, x - 3, x * 5) + 1


@cuplace.jit
def fold(x: Any, y: Any) -> Any:
    return x.T @ y


def mix_numpy(x: np.ndarray) -> np.ndarray:
    return (np.where(x > 7, x - 3, x * 5) + 1).astype(np.int32)


def placements(devices: tuple[Any, ...]) -> list[NamedSharding]:
    """Shardings over meshes of one to eight devices: halves, pairs, a reversed order, a grid, replicas."""

    def mesh(shape: tuple[int, ...], chosen: Any) -> cuplace.Mesh:
        return cuplace.make_mesh(shape, ("x", "y")[: len(shape)], devices=list(chosen))

    whole, first, second = mesh((8,), devices), mesh((4,), devices[:4]), mesh((4,), devices[4:])
    grid, reverse, pair = mesh((2, 4), devices), mesh((8,), devices[::-1]), mesh((2,), devices[3:5])
    lone = mesh((1,), devices[6:7])
    return [
        *(NamedSharding(m, s) for m in (whole, first, second, reverse, pair) for s in (P("x"), P(None, "x"))),
        *(NamedSharding(grid, s) for s in (P("x", "y"), P("y", "x"), P(("x", "y")), P(None, "y"))),
        *(NamedSharding(m, P()) for m in (first, second, lone)),
    ]


@dataclass
class RandomProgram:
    """One program: ``run()`` executes it, compares every value that it reads, and returns its counts."""

    platform: Platform
    seed: int
    steps: int = 40
    with_latches: bool = True
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.placements = self.places_to_be()
        self.entries: list[Entry] = []
        self.latches: list[Any] = []
        self.owner_of_address: dict[int, int] = {}

    def run(self) -> Counts:
        for _ in range(3):
            self.put_host()
        actions = self.actions()
        self.reuse_while_read()
        for _ in range(self.steps):
            self.random.choice(actions)()
            self.counts.steps += 1
        while self.counts.relayouts < self.counts.steps / 5:
            self.relayout()
        self.release()
        for entry in self.entries:
            self.check(entry)
        return self.counts

    def places_to_be(self) -> list[NamedSharding]:
        """The shardings that arrays get; the first one is over as many devices as any."""
        return placements(self.platform.devices)

    def actions(self) -> list[Callable[[], None]]:
        """What a step may be, by chance; what is there several times is chosen more often."""
        actions = [self.put_host, *[self.relayout] * 3, self.compute, self.combine, self.contract]
        actions += [self.delete, self.drop, self.donate, self.read, self.reuse_while_read]
        return actions + ([self.hold] if self.with_latches else [])

    # ------------------------------------------------------------------ steps

    def put_host(self) -> None:
        value = np.array(
            [self.random.randrange(-50, 50) for _ in range(8)], dtype=np.int32
        )  # a few values, spread: cheap to make and different in every place
        shape = self.random.choice(SHAPES)
        host = (np.resize(value, shape) + np.arange(np.prod(shape)).reshape(shape) * 3).astype(np.int32)
        expected = host.copy()
        self.keep(cuplace.device_put(host, self.random.choice(self.placements)), expected)
        host[...] = -999  # the value is as of the call

    def relayout(self) -> None:
        entry = self.pick()
        current = entry.array.sharding
        others = [s for s in self.placements if s.mesh is not current.mesh and not s.is_equivalent_to(current, 2)]
        self.keep(cuplace.device_put(entry.array, self.random.choice(others)), entry.value)
        self.counts.relayouts += 1

    def compute(self) -> None:
        entry = self.pick()
        if self.random.random() < 0.5:
            self.keep(mix(entry.array), mix_numpy(entry.value))
        else:
            self.keep(entry.array * 3 - 1, entry.value * np.int32(3) - np.int32(1))

    def combine(self) -> None:
        """A binary op on two arrays, one of which is moved to the other's place first."""
        one = self.pick()
        other = self.random.choice([entry for entry in self.entries if entry.value.shape == one.value.shape])
        moved = cuplace.device_put(other.array, one.array.sharding)
        self.keep(one.array + moved, one.value + other.value)

    def contract(self) -> None:
        """A product that needs partial sums where the contracted dimension is sharded, and a sum over a dimension."""
        entry = self.pick()
        if self.random.random() < 0.5:
            self.keep_rank_two(entry.array.sum(axis=0, keepdims=True), entry.value.sum(axis=0, keepdims=True))
            return
        lone = self.placements[-1]
        moved = cuplace.device_put(entry.array, lone)
        self.keep_rank_two(fold(moved, moved), (entry.value.T @ entry.value).astype(np.int32))

    def delete(self) -> None:
        entry = self.remove()
        self.note_death(entry)
        entry.array.delete()
        assert entry.array.is_deleted()

    def drop(self) -> None:
        self.note_death(self.remove())

    def donate(self) -> None:
        entry = self.remove()
        self.note_death(entry)
        target = self.random.choice(self.placements)
        self.keep(cuplace.device_put(entry.array, target, donate=True), entry.value)
        assert entry.array.is_deleted() or entry.array.sharding == target

    def read(self) -> None:
        self.release()
        self.check(self.pick())
        self.counts.reads += 1

    def hold(self) -> None:
        if len(self.latches) < 4:
            device = self.random.choice(self.platform.devices)
            self.latch(self.random.choice(device.streams()))

    def reuse_while_read(self) -> None:
        """A latch on the readers of an array while it dies and memory of its size is asked for again."""
        entry = self.remove()
        target = NamedSharding(self.placements[0].mesh, P(None, "x"))
        source = NamedSharding(entry.array.sharding.mesh, P())
        result = cuplace.device_put(entry.array, source) * 2
        if self.with_latches:
            for device in result.sharding.mesh.devices.flat:
                for peer in target.mesh.devices.flat:
                    self.latch(device.transfer_to(peer))
        self.keep(cuplace.device_put(result, target), entry.value * 2)
        self.note_death(Entry(result, entry.value))
        del result
        self.keep(cuplace.device_put(entry.array, source) * 7, entry.value * 7)
        if self.random.random() < 0.5:
            self.release()

    # ------------------------------------------------------------------ bookkeeping

    def latch(self, stream: Any) -> None:
        self.latches.append(self.platform.scheduler.hold(stream))
        self.counts.latches += 1

    def release(self) -> None:
        while self.latches:
            self.latches.pop().release()

    def pick(self) -> Entry:
        return self.random.choice(self.entries)

    def remove(self) -> Entry:
        while len(self.entries) < 3:
            self.put_host()
        return self.entries.pop(self.random.randrange(len(self.entries)))

    def keep(self, array: cuplace.Array, value: np.ndarray) -> None:
        for buffer in array._buffers:
            address = address_of(buffer.array)
            if self.owner_of_address.setdefault(address, buffer.id) != buffer.id:
                self.counts.reuses += 1
                self.owner_of_address[address] = buffer.id
        self.entries.append(Entry(array, value))
        if len(self.entries) > 8:
            self.drop()

    def keep_rank_two(self, array: cuplace.Array, value: np.ndarray) -> None:
        """Check small results at once or later as often as not, and keep them out of the pool of operands."""
        if self.random.random() < 0.5:
            self.release()
            self.check(Entry(array, value))

    def note_death(self, entry: Entry) -> None:
        readers = (event for buffer in entry.array._buffers for event in (buffer.reads or {}).values())
        self.counts.pending_deaths += any(not event.done for event in readers)

    def check(self, entry: Entry) -> None:
        np.testing.assert_array_equal(np.asarray(entry.array), entry.value)
        for shard in entry.array.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), entry.value[shard.index])
