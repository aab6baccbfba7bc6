"""Least squares over a dataset that is larger than the memory of all devices together, streamed through them.

The file is read through `numpy.memmap`, batch by batch. `cuplace.prefetch` puts the next batches on the devices while
they work with the one at hand, so that they hold a few batches and the sums, and never more; `max_device_bytes` makes
sure of it: a program that held more would be told so. Each device gets its part of the rows of a batch and
keeps a sum of its own; only at the end these sums meet.

You see how large the data is, what a device may hold and what it held at most, and that the solution is NumPy's:

    python docs/examples/streamed_regression.py
    CUPLACE_PLATFORM=sim python docs/examples/streamed_regression.py --rows 50000
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import cuplace
from cuplace import Mesh, NamedSharding, P


def batches(data: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """The batches of a file, in order."""
    return (data[start : start + rows] for start in range(0, len(data), rows))


@cuplace.jit(donate_argnums=0)
def add(sums: cuplace.Array, z: cuplace.Array) -> cuplace.Array:
    """Each device's sum of z^T z, with that of its rows of a batch."""
    return sums + z.swapaxes(1, 2) @ z


def normal_equations(mesh: Mesh, data: np.ndarray, batch: int) -> np.ndarray:
    """The sum of z^T z over all rows z = (x, y) of the data."""
    by_device = NamedSharding(mesh, P("d"))
    columns = data.shape[1]
    sums = cuplace.device_put(np.zeros((mesh.size, columns, columns), np.float32), by_device)
    for z in cuplace.prefetch((rows.reshape(mesh.size, -1, columns) for rows in batches(data, batch)), by_device):
        sums = add(sums, z)
    return np.asarray(sums.sum(axis=0))


def write_data(path: Path, rows: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """A file of rows (x, y) with y = x @ truth and some noise, as it is read; and the truth."""
    random = np.random.default_rng(0)
    truth = random.standard_normal(features, np.float32)
    with path.open("wb") as file:
        for start in range(0, rows, 1 << 14):
            x = random.standard_normal((min(1 << 14, rows - start), features), np.float32)
            noise = random.standard_normal(len(x), np.float32)
            np.column_stack([x, x @ truth + np.float32(0.01) * noise]).tofile(file)
    return np.memmap(path, np.float32, "r", shape=(rows, features + 1)), truth


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a file, stream it, solve, and show what memory that took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=80_000, help="rows of the dataset, a multiple of the batch")
    parser.add_argument("--features", type=int, default=63, help="unknowns of the regression")
    parser.add_argument("--batch", type=int, default=2_000, help="rows of a batch, a multiple of the devices")
    parser.add_argument("--devices", type=int, default=8, help="devices to use")
    options = parser.parse_args(arguments)
    if options.rows % options.batch or options.batch % options.devices:
        parser.error("--rows must be a multiple of --batch, and --batch one of --devices")
    cuplace.config.update("num_devices", options.devices)
    mesh = cuplace.make_mesh((options.devices,), ("d",))

    with tempfile.TemporaryDirectory() as folder:
        data, truth = write_data(Path(folder) / "rows.f32", options.rows, options.features)
        cuplace.config.update("max_device_bytes", data.nbytes // (2 * options.devices))
        sums = normal_equations(mesh, data, options.batch)
        solution = np.linalg.solve(sums[:-1, :-1], sums[:-1, -1])

        exact = sum(z.astype(np.float64).T @ z for z in batches(data, options.batch))
        np.testing.assert_allclose(sums, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())
        np.testing.assert_allclose(solution, truth, rtol=0.01, atol=0.01)

    report = cuplace.memory_report().devices[: options.devices]
    peak = max(usage.peak for usage in report)
    assert peak <= cuplace.config.max_device_bytes
    print(f"data on the host        {data.nbytes:>12,} bytes")
    print(f"all devices may hold    {options.devices * cuplace.config.max_device_bytes:>12,} bytes")
    print(f"a device may hold       {cuplace.config.max_device_bytes:>12,} bytes")
    print(f"a device held at most   {peak:>12,} bytes")
    print(f"{options.features} unknowns from {options.rows:,} rows: as NumPy finds them.")


if __name__ == "__main__":
    main()
