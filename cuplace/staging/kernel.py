"""Kernel: one function of the user's, called once for each shard with what the shard's device holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cuplace import errors
from cuplace.array.pytree import flatten, unflatten
from cuplace.runtime.memory import COMPUTE
from cuplace.runtime.task import ComputeTask, Cost

if TYPE_CHECKING:
    from cuplace.array.key import OperandKey
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line
    from cuplace.runtime.device import Device
    from cuplace.runtime.host_memory import HostMemory

    Place = Device | HostMemory

_UNKNOWN_SECONDS = 1.0  # how long a function of the user's takes; on cpu it is left to the workers

READ, WRITTEN, VALUE = range(3)


class Source(NamedTuple):
    """Where a leaf of the arguments comes from: the group (READ, WRITTEN or VALUE), and its position in it."""

    group: int
    index: int


class Made(NamedTuple):
    """One result: the key of the whole array, and what each device makes of it."""

    key: OperandKey
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.key.type.dtype.itemsize


class Kernel:
    """A call of a function for each shard.

    Attributes:
        error: what the function raised, where it was called at once.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, structure: Any, sources: Sequence[Source],
        values: Sequence[Any], out_structure: Any, made: Sequence[Made],
    ) -> None:  # fmt: skip
        """
        Args:
            function: gets the arguments.
            name: what errors and timelines call it.
            structure: of the arguments, ``(args, {})``.
            sources: of each leaf.
            values: leaves that are the same for all shards.
            out_structure: of what it returns.
            made: the results.
        """
        self.function = function
        self.name = name
        self.structure = structure
        self.sources = tuple(sources)
        self.values = tuple(values)
        self.out_structure = out_structure
        self.made = tuple(made)
        self.error: Exception | None = None

    def run(
        self, devices: Sequence[Place], reads: Sequence[Sequence[Buffer]], written: Sequence[Sequence[Buffer]],
        line: Line | None,
    ) -> list[list[Buffer]]:  # fmt: skip
        """Enqueue the calls; the buffers of each result, in mesh order.

        Args:
            devices: in mesh order, or the host memories of devices.
            reads: for each read leaf its buffers.
            written: for each leaf that the function may write to its buffers.
            line: the user's.
        """
        shards = [[[buffers[i] for buffers in group] for group in (reads, written)] for i in range(len(devices))]
        run = self._run_later if devices[0].xp is np else self._run_now
        return run(devices, shards, line)

    def _task(self, work: Callable[..., None], shard: Sequence[Sequence[Buffer]]) -> ComputeTask:
        touched = sum(buffer.nbytes for group in shard for buffer in group) + sum(made.nbytes for made in self.made)
        return ComputeTask(self.name, work, _UNKNOWN_SECONDS, library=True, cost=Cost(0.0, float(touched)))

    # ------------------------------------------------------------------ where the host computes: in its turn

    def _run_later(self, devices: Sequence[Place], shards: Any, line: Line | None) -> list[list[Buffer]]:
        scheduler = devices[0].scheduler
        results = [
            scheduler.allocate_batch(devices, made.shape, made.key.type.dtype, COMPUTE) for made in self.made
        ]
        launches = [
            (device.compute, [*reads, *written], [*written, *[buffers[i] for buffers in results]])
            for i, (device, (reads, written)) in enumerate(zip(devices, shards, strict=True))
        ]
        scheduler.submit_batch(self._task(self._fill, shards[0]), launches, (), line)
        return results

    def _fill(self, reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
        num_written = len(writes) - len(self.made)
        inputs = [array.view() for array in reads[: len(reads) - num_written]]
        for array in inputs:
            array.flags.writeable = False
        results = self._called(inputs, [array.view() for array in writes[:num_written]])
        for target, made, result in zip(writes[num_written:], self.made, results, strict=True):
            if not isinstance(result, np.ndarray | np.generic):
                raise self._wrong(made, result)
            target[...] = result

    # ------------------------------------------------------------------ where it enqueues: at once

    def _run_now(self, devices: Sequence[Any], shards: Any, line: Line | None) -> list[list[Buffer]]:
        scheduler = devices[0].scheduler
        task = self._task(self._enqueue, shards[0])
        results: list[list[Buffer]] = [[] for _ in self.made]
        for device, (reads, written) in zip(devices, shards, strict=True):
            mark = scheduler.allocate(device, (), np.dtype(np.int8), COMPUTE)  # poisoned where the function fails
            returned: list[Any] = []
            scheduler.submit(
                task, device.compute, [*reads, *written], [*written, mark], (device, returned), line
            )
            error = scheduler.failure((mark,))
            if error is not None:
                raise error
            for buffers, array in zip(results, returned, strict=True):
                buffers.append(
                    written[array] if isinstance(array, int) else scheduler.adopt(array, device, device.compute)
                )
        return results

    def _enqueue(self, reads: list[Any], writes: list[Any], scalars: tuple[Any, ...]) -> None:
        device, returned = scalars
        returned.clear()  # what an attempt without enough memory left
        num_written = len(writes) - 1
        inputs = [array.view() for array in reads[: len(reads) - num_written]]
        written = [array.view() for array in writes[:num_written]]
        exchange = device.backend.exchange
        with exchange.marked(device) as mark:
            results = self._called(inputs, written)
        for made, result in zip(self.made, results, strict=True):
            place = next((i for i, array in enumerate(written) if array is result), None)
            mine = exchange.own(result, device, mark) if place is None else place
            if mine is None:
                raise self._wrong(made, result)
            returned.append(mine)

    # ------------------------------------------------------------------ both

    def _called(self, reads: Sequence[Any], written: Sequence[Any]) -> list[Any]:
        """What the function returns, flat and checked."""
        groups = (reads, written, self.values)
        args, _ = unflatten(self.structure, [groups[group][index] for group, index in self.sources])
        results, structure = flatten(self.function(*args))
        if structure != self.out_structure:
            raise errors.KernelResultError(
                f"map_shards: {self.name} returned {_described(structure)}, expected {_described(self.out_structure)}."
                "\nSay what it returns: out_shape takes a pytree of cuplace.ShapeDtypeStruct(shape, dtype)."
            )
        for made, result in zip(self.made, results, strict=True):
            if getattr(result, "shape", None) != made.shape or result.dtype != made.key.type.dtype:
                raise self._wrong(made, result)
        return results

    def _wrong(self, made: Made, result: Any) -> errors.KernelResultError:
        of = made.key.type
        got = f"an object of type {type(result)}"
        if hasattr(result, "shape") and hasattr(result, "dtype"):
            got = f"{type(result).__module__}.{type(result).__name__} {result.dtype}{list(result.shape)}"
        wanted = f"an array {of.dtype}{list(made.shape)}, a shard of {of}"
        return errors.KernelResultError(
            f"map_shards: {self.name} returned {got}, expected {wanted}.\n"
            "A result is like the first array unless out_shape=cuplace.ShapeDtypeStruct(shape, dtype) says otherwise; "
            "it must be an array of the device's module, NumPy or CuPy."
        )


def _described(structure: Any) -> str:
    return "an array" if structure.is_leaf() else str(unflatten(structure, ["array"] * structure.num_leaves))
