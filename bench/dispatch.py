"""What a call costs before it returns: `python -m bench dispatch`."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from functools import partial
from typing import Any

from .common import Case, Comparison, Row
from .figure import Figure
from .harness import Bench

CHAIN = 100
IMPORTS = {"numpy": "numpy", "cuplace": "cuplace", "all of cuplace": "cuplace.numpy, cuplace._public"}


def add_one_device(lib: Any) -> Any:
    x = lib.jnp.arange(8.0)
    return lambda: x + x


def sin_one_device(lib: Any) -> Any:
    x, sin = lib.jnp.arange(8.0), lib.jnp.sin
    return lambda: sin(x)


def _eight_shards(lib: Any) -> Any:
    return lib.put(lib.np.arange(8, dtype="f"), lib.on(lib.full, "x"))


def add_eight_shards(lib: Any) -> Any:
    x = _eight_shards(lib)
    return lambda: x + x


def stage_eight_shards(lib: Any) -> Any:
    x, sin = _eight_shards(lib), lib.jnp.sin
    stage = lib.jax.jit(lambda x: sin(x) + 1.0)
    return lambda: stage(x)


def put_32_bytes(lib: Any) -> Any:
    value, sharding, put = lib.np.arange(8, dtype="f"), lib.on(lib.full, "x"), lib.jax.device_put
    return lambda: put(value, sharding)


def _mesh_to_mesh(lib: Any, *spec: Any) -> Any:
    x = lib.put(lib.np.ones((8, 8), "f"), lib.on(lib.mesh_a, "x"))
    target, put = lib.on(lib.mesh_b, *spec), lib.jax.device_put
    return lambda: put(x, target)


def move_same_layout(lib: Any) -> Any:
    return _mesh_to_mesh(lib, "x")


def move_other_layout(lib: Any) -> Any:
    return _mesh_to_mesh(lib, None, "x")


def first_calls(lib: Any, what: str) -> Any:
    """Seconds an op of the first calls of a jitted chain: to trace it, or to place it on a device.

    The first call of all traces and places, the first one on another device only places, and a later one there
    does neither.
    """
    sin, clock, spec = lib.jnp.sin, time.perf_counter, lib.P()
    places = [lib.on(lib.mesh(i, i + 1), *spec) for i in range(2)]
    one, other = [lib.put(lib.np.arange(8, dtype="float32"), place) for place in places]

    def once() -> float:
        def chain(x: Any) -> Any:
            for _ in range(CHAIN):
                x = sin(x) + 1.0
            return x

        jitted = lib.jax.jit(chain)
        times = []
        for x in (one, other, other):
            start = clock()
            lib.jax.block_until_ready(jitted(x))
            times.append(clock() - start)
        both, placed, run = times
        return (both - placed if what == "tracing" else placed - run) / (2 * CHAIN)

    return once


def _plan(lib: Any, parts: int, fresh: bool) -> Any:
    """Seconds to plan a relayout of `parts * parts` moves, of a shape not seen before or of the same one."""
    from cuplace.transfer.plan import plan_move

    mesh, dtype, clock = lib.mesh(0, parts), lib.np.dtype("f"), time.perf_counter
    source, target = lib.on(mesh, "x"), lib.on(mesh, None, "x")
    rows = parts

    def once() -> float:
        nonlocal rows
        rows += parts if fresh else 0
        start = clock()
        plan_move((rows, parts), dtype, source, target)
        return clock() - start

    once()
    return once


def plan_2000(lib: Any) -> Any:
    return _plan(lib, 44, True)


def plan_262144(lib: Any) -> Any:
    return _plan(lib, 512, True)


def plan_chains(lib: Any) -> Any:
    """Seconds to plan the chunked chains that bring one device's array to the 64 of eight nodes."""
    from dataclasses import replace

    from cuplace.runtime.presets import PRESETS
    from cuplace.runtime.topology import find_topology
    from cuplace.sharding import Mesh
    from cuplace.transfer.plan import plan_move

    devices = find_topology(replace(PRESETS["two-nodes"], name="eight-nodes", nodes=8)).devices
    grid, dtype, clock = Mesh(lib.np.array(devices), ("x",)), lib.np.dtype("f"), time.perf_counter
    source, target = lib.on(Mesh(lib.np.array(devices[:1]), ("x",))), lib.on(grid)
    rows = 1 << 20

    def once() -> float:
        nonlocal rows
        rows += 128
        start = clock()
        plan_move((rows, 1 << 12), dtype, source, target)
        return clock() - start

    once()
    return once


def plan_cached(lib: Any) -> Any:
    return _plan(lib, 44, False)


def import_times(bench: Bench) -> dict[str, Figure]:
    """Seconds of `import`, each in a fresh interpreter, in turns; the first turn compiles to bytecode files."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    samples: dict[str, list[float]] = {name: [] for name in IMPORTS}
    program = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
    for number in range(2 if bench.quick else 3 * bench.rounds + 1):
        for name, modules in IMPORTS.items():
            command = [sys.executable, "-c", program.format(modules)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            if number:
                samples[name].append(float(done.stdout))
    found = {f"python:{name}": Figure.of(values) for name, values in samples.items()}
    return {name: figure for name, figure in found.items() if figure is not None}


CASES = {
    "x + x": Case(add_one_device),
    "sin(x)": Case(sin_one_device),
    "x8 + x8": Case(add_eight_shards),
    "stage": Case(stage_eight_shards),
    "put": Case(put_32_bytes),
    "same": Case(move_same_layout),
    "other": Case(move_other_layout, number=100),
    "trace": Case(partial(first_calls, what="tracing"), mode="own", samples=5),
    "place": Case(partial(first_calls, what="placing"), mode="own", samples=5),
    "plan 44": Case(plan_2000, mode="own"),
    "plan 512": Case(plan_262144, mode="own", samples=1),
    "chains": Case(plan_chains, mode="own"),
    "cached": Case(plan_cached, mode="own", samples=101),
}

ROWS = [
    Row("x + x, one device", "cuplace:x + x", "jax:x + x", 1.0),
    Row("sin(x), one device", "cuplace:sin(x)", "jax:sin(x)", 1.5),
    Row("x + x, 8 shards", "cuplace:x8 + x8", "jax:x8 + x8", 0.4),
    Row("jitted sin(x) + 1, 8 shards", "cuplace:stage", "jax:stage", 0.4),
    Row("device_put of 32 B to 8 shards", "cuplace:put", "jax:put", 0.5),
    Row("mesh to mesh, 4 shards, same layout", "cuplace:same", "jax:same", 0.5),
    Row("mesh to mesh, 4 shards, other layout", "cuplace:other", "jax:other", 0.5),
    Row("tracing, an op", "cuplace:trace", None, 50e-6),
    Row("placing, an op", "cuplace:place", None, math.inf),
    Row("plan of 1,936 moves", "cuplace@512:plan 44", None, 10e-3),
    Row("plan of 262,144 moves", "cuplace@512:plan 512", None, 1.0),
    Row("plan of 1,260 copies in chains to 64 GPUs", "cuplace:chains", None, 10e-3),
    Row("cached plan", "cuplace@512:cached", None, 50e-6),
    Row("import cuplace", "python:cuplace", "python:numpy", 0.1, plus=True),
    Row("import of everything in it", "python:all of cuplace", "python:numpy", 0.1, plus=True),
]

COMPARISON = Comparison(__name__, "Until the call returns", CASES, lambda quick: ROWS, import_times)
BENCHMARK = COMPARISON.benchmark()
