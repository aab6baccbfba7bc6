"""Inference through a pipeline of four stages, with microbatches that are read from a file as they are needed.

The network's layers are dealt out to four meshes. A microbatch is read through `numpy.memmap`, goes to the first mesh,
and from mesh to mesh by `device_put`; no call waits, so that all stages work at the same time on microbatches that
follow one another. Results come back to the host while later microbatches are still on their way.

You see who computed when, what was hidden behind what, and that the results are NumPy's:

    python docs/examples/pipelined_inference.py --svg timeline.svg

Where stages take less time than enqueueing them, the report says that devices waited for the host: give GPUs more to
do, as with --features 8192 --rows 4096.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

import cuplace
import cuplace.numpy as cnp
from cuplace import Mesh, NamedSharding, P

STAGES = 4
Stage = tuple[Mesh, list[cuplace.Array]]


@cuplace.jit
def stage(weights: list[cuplace.Array], x: cuplace.Array) -> cuplace.Array:
    """The layers of one stage."""
    for w in weights:
        x = cnp.maximum(x @ w, 0)
    return x


def placed_stages(layers: Sequence[np.ndarray]) -> list[Stage]:
    """For each stage its mesh, and its share of the layers, whole on each device of the mesh."""
    stages = []
    for i in range(STAGES):
        devices, mine = (of[i * len(of) // STAGES : (i + 1) * len(of) // STAGES] for of in (cuplace.devices(), layers))
        mesh = cuplace.make_mesh((len(devices),), ("rows",), devices=devices)
        stages.append((mesh, cuplace.device_put(list(mine), NamedSharding(mesh, P()))))
    return stages


def infer(stages: Sequence[Stage], microbatches: Iterable[np.ndarray]) -> Iterator[cuplace.Array]:
    """The results, each on the last mesh and on its way to the host."""
    rows = [NamedSharding(mesh, P("rows")) for mesh, _ in stages]
    for x in cuplace.prefetch(microbatches, rows[0]):
        for (_, weights), sharding in zip(stages, rows, strict=True):
            x = stage(weights, cuplace.device_put(x, sharding))  # noqa: PLW2901
        x.copy_to_host_async()
        yield x


def expected(layers: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
    """What NumPy makes of one microbatch."""
    for w in layers:
        x = np.maximum(x @ w, 0)
    return x


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a file, infer from it, and show what happened."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=8, help="layers of the network, a multiple of 4")
    parser.add_argument("--features", type=int, default=512, help="width of each layer")
    parser.add_argument("--rows", type=int, default=512, help="rows of a microbatch")
    parser.add_argument("--microbatches", type=int, default=12, help="microbatches in the file")
    parser.add_argument("--devices", type=int, default=8, help="devices to use, a multiple of 4")
    parser.add_argument("--svg", help="also draw the timeline into this file")
    options = parser.parse_args(arguments)
    if options.layers % 4 or options.devices % 4:
        parser.error("--layers and --devices must be multiples of 4")
    cuplace.config.update("num_devices", options.devices)

    random = np.random.default_rng(0)
    shape = (options.microbatches, options.rows, options.features)
    scale = np.float32(np.sqrt(2 / options.features))
    layers = [random.standard_normal(shape[2:] * 2, np.float32) * scale for _ in range(options.layers)]
    stages = placed_stages(layers)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "inputs.f32"
        random.standard_normal(shape, np.float32).tofile(path)
        inputs = np.memmap(path, np.float32, "r", shape=shape)

        cuplace.block_until_ready(list(infer(stages, inputs[:1])))  # trace and place the stages before looking
        with cuplace.profile() as profile:
            results = list(infer(stages, inputs))
        profile.report()
        if options.svg:
            profile.svg(options.svg)

        for x, result in zip(inputs, results, strict=True):
            np.testing.assert_allclose(np.asarray(result), expected(layers, x), rtol=1e-3, atol=1e-3)
    print(f"\nThe results of {len(results)} microbatches of {shape[1]} x {shape[2]} are NumPy's.")


if __name__ == "__main__":
    main()
