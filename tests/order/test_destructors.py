"""Random programs whose arrays die in cycles with destructors that compute, move, donate and keep them, while garbage
is collected again and again in the middle of our calls. All values are NumPy's, and all memory comes back.

Sixty programs with ``--deep``, else one on each platform.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest

import cuplace
from cuplace import NamedSharding, P
from cuplace.errors import DeletedArrayError
from cuplace.runtime.platform import Platform
from cuplace.sharding import SingleDeviceSharding
from cuplace.staging.trace import tracing
from tests.runtime.streams import finish, used

HERE = os.path.dirname(cuplace.__file__)
STEPS = 80
OFTEN = 0.003
"""How often a call of a function, or a return from one of C's, collects garbage where Python may do so."""


class Program:
    """What destructors and the program share: its chance, the arrays that are kept with their values, the faults."""

    def __init__(self, platform: Platform, seed: int) -> None:
        self.random = random.Random(seed)
        self.kept: list[tuple[Any, Any]] = []
        self.faults: list[str] = []
        self.double = cuplace.jit(lambda x: x * 2)
        self.consume = cuplace.jit(lambda x: x + 1, donate_argnums=0)
        mesh = cuplace.make_mesh((2,), ("x",), devices=platform.devices[:2])
        self.places = [NamedSharding(mesh, P("x")), NamedSharding(mesh, P()), SingleDeviceSharding(platform.devices[0])]
        self.warm_up()

    def warm_up(self) -> None:
        """Trace everything: what a destructor does inside a trace belongs to that."""
        for place in self.places:
            for size in (4, 8, 16):
                x = cuplace.device_put(np.zeros(size, np.float32), place)
                cuplace.block_until_ready([x + x, self.double(x), self.consume(x)])

    def expect(self, x: Any, values: Any) -> None:
        try:
            found = np.asarray(x)
        except DeletedArrayError:
            return  # a destructor has donated it meanwhile
        if not np.array_equal(found, values):
            self.faults.append(f"{found} is not {values}")

    def use(self, x: Any, values: Any) -> None:
        """Something that may be done with an array, and that lets it live."""
        match self.random.randrange(6):
            case 0:
                self.expect(x, values)
            case 1:
                self.expect(x + x, values * 2)
            case 2:
                self.expect(self.double(x), values * 2)
            case 3:
                self.expect(self.consume(cuplace.device_put(values, x.sharding)), values + 1)
            case 4:
                self.expect(cuplace.device_put(x, self.random.choice(self.places)), values)
            case 5:
                others = [cuplace.device_put(values * 0 + 99, x.sharding) for _ in range(3)]
                self.kept.append((others[0], values * 0 + 99))

    def step(self, i: int) -> None:
        values = np.arange(4 * self.random.choice([1, 2, 4]), dtype=np.float32) + i
        x = cuplace.device_put(values, self.random.choice(self.places))
        if self.random.random() < 0.5:
            x, values = self.double(x), values * 2
        Garbage(self, x, values)
        del x
        if self.random.random() < 0.5:
            self.expect(cuplace.device_put(np.ones(4, np.float32) * i, self.places[0]) + 1, np.ones(4) * i + 1)
        while len(self.kept) > 6:
            self.look_at(self.kept.pop())

    def look_at(self, kept: tuple[Any, Any]) -> None:
        x, values = kept
        if not x.is_deleted():
            self.expect(x, values)
            if self.random.random() < 0.5:
                Garbage(self, x, values, depth=2)


class Garbage:
    """A cycle that holds an array, and whose destructor uses it, keeps it, donates it, or makes garbage of it again."""

    def __init__(self, program: Program, x: Any, values: Any, depth: int = 0) -> None:
        self.itself = self
        self.program = program
        self.x = x
        self.values = values
        self.depth = depth

    def __del__(self) -> None:
        if tracing():
            return  # what it computes now belongs to the trace, as in JAX
        program, x, values, chance = self.program, self.x, self.values, self.program.random.random
        try:
            for _ in range(program.random.randrange(1, 4)):
                program.use(x, values)
            if chance() < 0.2:
                program.kept.append((x, values))
            if chance() < 0.3 and self.depth < 3:
                Garbage(program, x, values, self.depth + 1)
            if chance() < 0.2:
                self.x = program.consume(x)
                program.expect(self.x, values + 1)
        except DeletedArrayError:
            pass  # another destructor has donated it
        except BaseException:
            program.faults.append(traceback.format_exc())


@contextmanager
def collecting(chance: random.Random) -> Iterator[None]:
    """Inside the block garbage is collected in the middle of our code, unless that has it switched off, and nowhere
    else: CPython 3.11 makes objects between a check and a call where it is profiled, and might collect garbage there.
    """

    def at(frame: FrameType, event: str, argument: Any) -> None:
        ours = event in ("call", "c_return") and frame.f_code.co_filename.startswith(HERE)
        if ours and gc.isenabled() and chance.random() < OFTEN:
            gc.collect(chance.randrange(3))

    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    gc.freeze()  # what is there before need not be looked at each time
    sys.setprofile(at)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.unfreeze()
        gc.set_threshold(*thresholds)


def run(program: Program) -> None:
    with collecting(program.random):
        for i in range(STEPS):
            program.step(i)
    for x, values in program.kept:
        if not x.is_deleted():
            program.expect(x, values)


@pytest.mark.parametrize(
    "seed", [0, *[pytest.param(seed, marks=pytest.mark.deep) for seed in range(1, 60)]]
)
def test_values_and_memory_survive_destructors_that_compute_anywhere(platform: Platform, seed: int) -> None:
    program = Program(platform, seed)
    gc.collect()
    finish(platform)
    before = used(platform)
    run(program)
    for _ in range(6):
        program.kept.clear()
        gc.collect()
        finish(platform)
    assert not program.faults, program.faults[0]
    assert used(platform) == before
