"""Parameters move from the mesh that trained them to another one that serves them, in another layout.

Training cuts each matrix over all devices of its mesh (rows over "data", columns over "model"); serving has fewer
devices, and cuts the first matrix of each layer by columns and the second by rows, so that a layer needs one sum over
devices. What each move copies from whom is planned, and printed, before a byte travels; the pieces go from device to
device, and nothing passes through the host.

You see the plans, that the move took no more memory of any device than it was given (`max_bytes`: the new shards, and
a little to pack pieces in, for which moves take turns), and that the served network's answer is NumPy's:

    python docs/examples/parameters_to_serving.py
    CUPLACE_PLATFORM=sim CUPLACE_SIM_MACHINE=hgx-h200 python docs/examples/parameters_to_serving.py --width 2048
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import cuplace
import cuplace.numpy as cnp
from cuplace import NamedSharding, P


def train_layout(devices: Sequence[cuplace.Device]) -> NamedSharding:
    """Rows over half of the devices' grid, columns over two."""
    mesh = cuplace.make_mesh((len(devices) // 2, 2), ("data", "model"), devices=devices)
    return NamedSharding(mesh, P("data", "model"))


def serve_layout(devices: Sequence[cuplace.Device]) -> dict[str, NamedSharding]:
    """For each matrix of a layer, how it is cut."""
    mesh = cuplace.make_mesh((len(devices),), ("model",), devices=devices)
    return {"in": NamedSharding(mesh, P(None, "model")), "out": NamedSharding(mesh, P("model", None))}


@cuplace.jit
def serve(layers: list[dict[str, cuplace.Array]], x: cuplace.Array) -> cuplace.Array:
    """The network: each layer is cut over the devices inside, and whole outside."""
    for layer in layers:
        hidden = cnp.maximum(x @ layer["in"], 0)
        x = x + cnp.matmul(hidden, layer["out"], out_sharding=P())
    return x


def expected(layers: list[dict[str, np.ndarray]], x: np.ndarray) -> np.ndarray:
    """What NumPy answers."""
    for layer in layers:
        x = x + np.maximum(x @ layer["in"], 0) @ layer["out"]
    return x


def most(name: str, devices: Sequence[cuplace.Device]) -> int:
    """The largest of a figure of the devices' memory, in bytes."""
    return max(device.memory_stats()[name] for device in devices)


def main(arguments: Sequence[str] | None = None) -> None:
    """Place parameters as training leaves them, move them, and serve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=3, help="layers of the network")
    parser.add_argument("--width", type=int, default=512, help="rows and columns of a matrix, a multiple of 8")
    parser.add_argument("--devices", type=int, default=8, help="devices of training, a multiple of 4; half serve")
    parser.add_argument("--staging", type=int, default=1 << 20, help="bytes of each device to pack pieces in")
    options = parser.parse_args(arguments)
    if options.width % 8 or options.devices % 4:
        parser.error("--width must be a multiple of 8, and --devices one of 4")
    cuplace.config.update("num_devices", options.devices)
    devices = cuplace.devices()[: options.devices]

    random = np.random.default_rng(0)
    shape, scale = (options.width,) * 2, np.float32(1 / options.width)
    host = [
        {name: scale * random.standard_normal(shape, np.float32) for name in ("in", "out")}
        for _ in range(options.layers)
    ]
    trained = cuplace.device_put(host, train_layout(devices))
    target = serve_layout(devices[-len(devices) // 2 :])

    bound = options.staging
    for name, sharding in target.items():
        plan = cuplace.plan(trained[0][name], sharding)
        bound += options.layers * max(plan.new_bytes.values())
        print(f"'{name}' of each layer: {plan.nbytes:,} bytes in {plan.num_moves} moves")
        print(f"{plan.matrix()}\n")

    before = most("bytes_in_use", devices)
    served = cuplace.block_until_ready(
        cuplace.device_put(trained, [target] * len(trained), donate=True, max_bytes=bound)
    )
    taken = most("peak_bytes", devices) - before
    assert taken <= bound
    print(f"A device held {before:,} bytes, and {taken:,} more during the move; {bound:,} were allowed.")

    x = random.standard_normal((4, options.width), np.float32)
    with cuplace.set_mesh(target["in"].mesh):
        answer = serve(served, x)
    np.testing.assert_allclose(np.asarray(answer), expected(host, x), rtol=1e-3, atol=1e-3)
    print(f"The answer of {options.layers} layers, served by {len(devices) // 2} devices, is NumPy's.")


if __name__ == "__main__":
    main()
