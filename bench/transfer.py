"""What moves and pipelines cost until they are done: `python -m bench transfer`."""

from __future__ import annotations

from typing import Any

from .common import Case, Comparison, Row

SHAPE, TINY = (4096, 8192), (64, 128)  # float32: 128 MiB, 32 KiB
MATMUL = 1024  # a float32 matrix of this side is 4 MiB
BIG = {"samples": 5, "mode": "done"}


def _shape(lib: Any) -> tuple[int, int]:
    return TINY if lib.quick else SHAPE


def _big(lib: Any) -> Any:
    return lib.np.ones(_shape(lib), "f")


def _move(lib: Any, mesh: Any, *spec: Any) -> Any:
    x = lib.put(_big(lib), lib.on(lib.mesh_a, "x"))
    target, put = lib.on(mesh, *spec), lib.jax.device_put
    return lambda: put(x, target)


def other_mesh(lib: Any) -> Any:
    return _move(lib, lib.mesh_b, None, "x")


def same_mesh(lib: Any) -> Any:
    return _move(lib, lib.mesh_a, None, "x")


def from_host(lib: Any) -> Any:
    value, sharding, put = _big(lib), lib.on(lib.full, "x"), lib.jax.device_put
    return lambda: put(value, sharding)


def copyto(lib: Any) -> Any:
    source, target = _big(lib), lib.np.zeros(_shape(lib), "f")
    target[:] = 0  # touched: fresh pages would cost several times the copy
    return lambda: lib.np.copyto(target, source)


def stage(lib: Any) -> Any:
    x, sin = lib.put(_big(lib), lib.on(lib.full, "x")), lib.jnp.sin
    jitted = lib.jax.jit(lambda x: sin(x) + 1.0)
    return lambda: jitted(x)


def numpy_stage(lib: Any) -> Any:
    x, np = _big(lib), lib.np
    return lambda: np.sin(x) + 1.0


def _pipeline(lib: Any, stage: Any, microbatches: list[Any]) -> Any:
    targets = [lib.on(lib.mesh(2 * i, 2 * i + 2), "x") for i in range(4)]
    put = lib.jax.device_put

    def run() -> list[Any]:
        results = []
        for mb in microbatches:
            for target in targets:
                mb = stage(put(mb, target))  # noqa: PLW2901
            results.append(mb)
        return results

    return run


def page_pipeline(lib: Any) -> Any:
    sin = lib.jnp.sin
    microbatches = [lib.np.full((256, 256), float(i)) for i in range(8)]
    return _pipeline(lib, lib.jax.jit(lambda x: sin(x) + 1.0), microbatches)


def matmul_pipeline(lib: Any) -> Any:
    """Four stages of one device each; a stage multiplies its 4 MiB microbatch by a fixed matrix."""
    n, put = 32 if lib.quick else MATMUL, lib.jax.device_put
    targets = [lib.on(lib.mesh(i, i + 1)) for i in range(4)]
    weight = lib.np.eye(n, dtype="f")
    weights = [lib.put(weight, target) for target in targets]
    multiply = lib.jax.jit(lib.jnp.matmul)
    microbatches = [lib.np.full((n, n), float(i), "f") for i in range(8)]

    def run() -> list[Any]:
        results = []
        for mb in microbatches:
            for target, w in zip(targets, weights, strict=True):
                mb = multiply(put(mb, target), w)  # noqa: PLW2901
            results.append(mb)
        return results

    return run


def peak_of_a_move(lib: Any) -> Any:
    """The most memory a device takes during a move, as a multiple of the target shard that it ends up with."""
    x = lib.put(_big(lib), lib.on(lib.mesh_a, "x"))
    target, devices = lib.on(lib.mesh_b, None, "x"), list(lib.full.devices[4:])
    shard = lib.np.prod(_shape(lib)) * 4 / len(devices)

    def once() -> float:
        devices[0].scheduler.park()  # take back what the last round let go of
        before = {device: device.memory_stats()["bytes_in_use"] for device in devices}
        for device in devices:
            device.memory.peak = device.memory.in_use
        y = lib.put(x, target)
        peaks = [device.memory_stats()["peak_bytes"] - before[device] for device in devices]
        del y
        return max(peaks) / shard

    return once


CASES = {
    "returns": Case(other_mesh, mode="one"),
    "other mesh": Case(other_mesh, **BIG),
    "same mesh": Case(same_mesh, **BIG),
    "from host": Case(from_host, **BIG),
    "copyto": Case(copyto, **BIG),
    "stage": Case(stage, **BIG),
    "numpy stage": Case(numpy_stage, **BIG),
    "page": Case(page_pipeline, mode="done", samples=11),
    "peak": Case(peak_of_a_move, mode="figure", samples=3),
    "matmul": Case(matmul_pipeline, mode="done", samples=3),
}


def rows(quick: bool) -> list[Row]:
    """The budgets; they hold for the large size."""
    size = "32 KiB" if quick else "128 MiB"
    return [
        Row(f"{size} to another mesh: call returns", "cuplace:returns", None, 1e-3),
        Row("the same, against JAX's whole time", "cuplace:returns", "jax:other mesh", 0.01),
        Row(f"{size} to another mesh, other layout: done", "cuplace:other mesh", "jax:other mesh", 0.4),
        Row(f"{size}, another layout on its mesh: done", "cuplace:same mesh", "jax:same mesh", 0.4),
        Row(f"{size} NumPy to 8 shards: done", "cuplace:from host", "numpy:copyto", 1.2),
        Row(f"jitted sin(x) + 1, {size}: done", "cuplace:stage", "jax:stage", 0.4),
        Row("the same against NumPy", "cuplace:stage", "numpy:numpy stage", 0.6),
        Row("the page's pipeline", "cuplace:page", "jax:page", 0.4),
        Row("peak memory of a move / target shards", "cuplace:peak", None, 1.05),
        Row("matmul pipeline against config.sync", "cuplace:matmul", "cuplace-sync:matmul", 1.6, faster=True),
    ]


COMPARISON = Comparison(__name__, "Until the work is done", CASES, rows)
BENCHMARK = COMPARISON.benchmark()
