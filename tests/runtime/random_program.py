"""Random programs at the level of buffers, run beside NumPy.

A program allocates, uploads, computes, moves, rewrites, drops and downloads buffers in random order, while latches
hold streams. ``run`` compares each value that it downloads with what NumPy says, executed in the program's order.
Values are int64 and wrap, so results are exact.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cuplace.errors import OutOfMemoryError
from cuplace.runtime.buffer import Buffer
from cuplace.runtime.memory import COMPUTE, TRANSFER
from cuplace.runtime.platform import Platform
from cuplace.runtime.task import ComputeTask, CopyTask
from tests.runtime.streams import LONG, new

SIZES = (8, 24, 64)
INLINE = 0.0


class WrongValueError(AssertionError):
    """A downloaded value differs from NumPy's."""


class Entry(NamedTuple):
    buffer: Buffer
    value: np.ndarray


def _scale(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
    np.multiply(reads[0], scalars[0], out=writes[0])


def _combine(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
    np.add(reads[0], reads[1] * scalars[0], out=writes[0])


def _accumulate(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
    writes[0][...] = writes[0] * scalars[0] + reads[0]


def _scale_twice(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
    np.multiply(reads[0], scalars[0], out=writes[0])
    np.multiply(reads[0], scalars[0] * 2, out=writes[1])


def _fill(reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
    writes[0][...] = scalars[0]


def _tasks(name: str, run: Any) -> tuple[ComputeTask, ComputeTask]:
    return ComputeTask(name, run, LONG), ComputeTask(name, run, INLINE)


def _copy(buffer: Buffer, part: tuple[slice, ...] | None = None) -> CopyTask:
    return CopyTask(part, part, "local", buffer.nbytes)


SCALE, SCALE_TWICE, FILL = _tasks("scale", _scale), _tasks("scale_twice", _scale_twice), _tasks("fill", _fill)
COMBINE, ACCUMULATE = _tasks("combine", _combine), _tasks("accumulate", _accumulate)
"""Each task twice: handed to the stream, and small enough to run in the calling thread."""


class RandomProgram:
    """One program of a seed. After ``run()`` it holds nothing."""

    def __init__(self, platform: Platform, seed: int, steps: int = 80, latches: bool = True) -> None:
        self.platform = platform
        self.scheduler = platform.scheduler
        self.devices = platform.devices[:3]  # few, so that buffers meet
        self.random = random.Random(seed)
        self.steps = steps
        self.latches = latches
        self.out_of_memory = 0
        self.held: list[Any] = []
        self.entries: list[Entry] = []
        self.views: list[tuple[np.ndarray, np.ndarray]] = []

    def run(self) -> None:
        steps: list[Callable[[], None]] = [
            self.upload, self.upload, self.compute, self.compute, self.batch, self.batch_new, self.combine,
            self.accumulate, self.move, self.move, self.move_and_drop, self.gather, self.upload_again,
            self.overwrite_under_readers, self.drop, self.drop, self.download, self.poll,
        ]  # fmt: skip
        if self.latches:
            steps += [self.hold, self.release]
        try:
            for _ in range(4):
                self.upload()
            for _ in range(self.steps):
                self.attempt(self.random.choice(steps))
            self.release_all()
            while self.entries:
                self.check(self.entries.pop())
            for view, value in self.views:
                self.compare("a view whose buffer was dropped", view, value)
        finally:
            self.release_all()
            self.entries.clear()
            self.views.clear()

    def attempt(self, step: Callable[[], None]) -> None:
        """Where memory is short, forget half of everything and go on."""
        try:
            step()
        except OutOfMemoryError:
            self.out_of_memory += 1
            del self.entries[::2]
            self.views.clear()

    # ------------------------------------------------------------------ steps

    def upload(self) -> None:
        host = self.values(self.random.choice(SIZES))
        buffer = self.scheduler.allocate(self.random.choice(self.devices), host.shape, host.dtype)
        self.send(buffer, host)

    def upload_again(self) -> None:
        """Write what is there already, perhaps while somebody reads it."""
        entry = self.take_unshared()
        self.send(entry.buffer, self.values(entry.value.size))

    def send(self, buffer: Buffer, host: np.ndarray) -> None:
        expected = host.copy()
        self.scheduler.upload(buffer, host)
        self.keep(buffer, expected)
        host[...] = -1  # the value is as of the call

    def compute(self) -> None:
        entry = self.pick()
        device = entry.buffer.device
        result = new(device, entry.buffer)
        factor = self.random.randrange(2, 9)
        self.scheduler.submit(
            self.random.choice(SCALE), device.compute, (entry.buffer,), (result,), (np.int64(factor),)
        )
        self.keep(result, entry.value * factor)

    def batch(self) -> None:
        """The same task on several devices at once, as for the shards of an array."""
        chosen = {entry.buffer.device: entry for entry in self.random.sample(self.entries, k=len(self.entries))}
        results = [new(device, entry.buffer) for device, entry in chosen.items()]
        launches = [
            (device.compute, (entry.buffer,), (result,))
            for (device, entry), result in zip(chosen.items(), results, strict=True)
        ]
        self.scheduler.submit_batch(self.random.choice(SCALE), launches, (np.int64(3),))
        for entry, result in zip(chosen.values(), results, strict=True):
            self.keep(result, entry.value * 3)

    def batch_new(self) -> None:
        """The same, with the memory of two results for each shard made by the call."""
        first = self.pick()
        chosen = {e.buffer.device: e for e in self.entries if e.value.shape == first.value.shape}
        factor = np.int64(self.random.randrange(2, 9))
        buffer = first.buffer
        results = self.scheduler.submit_new(
            self.random.choice(SCALE_TWICE), [(buffer.array.shape, buffer.array.dtype, buffer.nbytes)] * 2,
            list(chosen), [[entry.buffer for entry in chosen.values()]], (factor,),
        )  # fmt: skip
        for entry, once, twice in zip(chosen.values(), *results, strict=True):
            self.keep(once, entry.value * factor)
            self.keep(twice, entry.value * factor * 2)

    def combine(self) -> None:
        first = self.pick()
        second = self.partner(first)
        device = first.buffer.device
        result = new(device, first.buffer)
        self.scheduler.submit(
            self.random.choice(COMBINE), device.compute, (first.buffer, second.buffer), (result,), (np.int64(5),)
        )
        self.keep(result, first.value + second.value * 5)

    def accumulate(self) -> None:
        """Change a buffer in place: it is read and written."""
        entry = self.take_unshared()
        other = self.partner(entry)
        device = entry.buffer.device
        self.scheduler.submit(
            self.random.choice(ACCUMULATE), device.compute, (other.buffer, entry.buffer), (entry.buffer,),
            (np.int64(7),),
        )  # fmt: skip
        self.keep(entry.buffer, entry.value * 7 + other.value)

    def move(self) -> None:
        entry = self.pick()
        device = self.random.choice(self.devices)
        target = new(device, entry.buffer, TRANSFER)
        stream = entry.buffer.device.transfer_to(device)
        self.scheduler.submit_moves([(_copy(entry.buffer), stream, entry.buffer, target)])
        self.keep(target, entry.value)

    def move_and_drop(self) -> None:
        """What a pipeline does with each microbatch: the source dies while the move reads it."""
        self.move()
        moved = self.entries.pop()
        self.drop()
        self.compute_over_the_dead()
        self.entries.append(moved)

    def overwrite_under_readers(self) -> None:
        """Moves on several streams read what a write follows at once."""
        entry = self.take_unshared()
        for device in self.random.sample(self.devices, k=2):
            target = new(device, entry.buffer, TRANSFER)
            stream = entry.buffer.device.transfer_to(device)
            self.scheduler.submit_moves([(_copy(entry.buffer), stream, entry.buffer, target)])
            self.keep(target, entry.value)
        self.send(entry.buffer, self.values(entry.value.size))

    def compute_over_the_dead(self) -> None:
        """Ask for memory of every size at once, where something has just died."""
        for size in SIZES:
            device = self.random.choice(self.devices)
            result = self.scheduler.allocate(device, (size,), np.dtype(np.int64), COMPUTE)
            value = self.random.randrange(1000)
            self.scheduler.submit(self.random.choice(FILL), device.compute, (), (result,), (value,))
            self.keep(result, np.full(size, value, np.int64))

    def gather(self) -> None:
        """Moves of one plan: two halves of one target, from two sources."""
        first = self.pick()
        second = self.partner(first, same_device=False)
        device = self.random.choice(self.devices)
        target = new(device, first.buffer, TRANSFER)
        half = first.value.size // 2
        parts = [(first, (slice(0, half),)), (second, (slice(half, None),))]
        self.scheduler.submit_moves(
            [
                (_copy(entry.buffer, part), entry.buffer.device.transfer_to(device), entry.buffer, target)
                for entry, part in parts
            ]
        )
        self.keep(target, np.concatenate([entry.value[part] for entry, part in parts]))

    def drop(self) -> None:
        if len(self.entries) > 3:
            self.take()

    def download(self) -> None:
        self.release_all()
        entry = self.pick()
        self.check(entry)

    def poll(self) -> None:
        self.scheduler.is_ready([entry.buffer for entry in self.entries])

    def hold(self) -> None:
        device = self.random.choice(self.devices)
        if len(self.held) < 3:
            self.held.append(self.scheduler.hold(self.random.choice(device.streams())))

    def release(self) -> None:
        if self.held:
            self.held.pop(self.random.randrange(len(self.held))).release()

    # ------------------------------------------------------------------ entries

    def values(self, size: int) -> np.ndarray:
        return np.array([self.random.randrange(1 << 20) for _ in range(size)], np.int64)

    def keep(self, buffer: Buffer, value: np.ndarray) -> None:
        self.entries.append(Entry(buffer, value))
        if len(self.entries) > 12:
            self.take()

    def pick(self) -> Entry:
        if not self.entries:
            self.upload()
        return self.random.choice(self.entries)

    def take(self) -> Entry:
        return self.entries.pop(self.random.randrange(len(self.entries)))

    def take_unshared(self) -> Entry:
        """One that no view of the host shares: only such ones are ever changed."""
        while self.entries:
            entry = self.take()
            if not entry.buffer.exports:
                return entry
        self.upload()
        return self.take()

    def partner(self, entry: Entry, same_device: bool = True) -> Entry:
        """Another buffer of the same shape, made on the spot where there is none."""
        for other in self.random.sample(self.entries, k=len(self.entries)):
            near = not same_device or other.buffer.device is entry.buffer.device
            if near and other.value.shape == entry.value.shape and other.buffer is not entry.buffer:
                return other
        host = self.values(entry.value.size)
        buffer = self.scheduler.allocate(entry.buffer.device, host.shape, host.dtype)
        self.send(buffer, host.copy())
        return Entry(buffer, host)

    def release_all(self) -> None:
        while self.held:
            self.held.pop().release()

    def check(self, entry: Entry) -> None:
        found = self.scheduler.download(entry.buffer)
        self.compare(entry.buffer, found, entry.value)
        if self.random.random() < 0.3:
            self.views.append((found, entry.value))

    @staticmethod
    def compare(what: object, found: np.ndarray, expected: np.ndarray) -> None:
        if not np.array_equal(found, expected):
            raise WrongValueError(f"{what}: {found} where NumPy has {expected}")
