"""Any array from anywhere to anywhere: NumPy's values in every shard.

2,000 random pairs of shardings over the four runs (cpu, sim, and fake CUDA eager and lazy); 50,000 with

    python -m pytest tests/transfer/test_any_move.py --deep

and with CUPLACE_PAIRS=100 in the environment 100 in each run.
"""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cuplace.runtime.platform import Platform
from cuplace.transfer.execute import move
from cuplace.transfer.plan import plan_move
from cuplace.transfer.upload import upload
from tests.transfer.machines import TOPOLOGIES
from tests.transfer.shardings import transfers

DTYPES = [
    np.dtype(name)
    for name in (
        "bool", "int8", "uint16", "int32", "int64", "float16", ml_dtypes.bfloat16, "float32", "float64", "complex64",
        "complex128",
    )
]  # fmt: skip
PAIRS = 500 if settings().max_examples <= 50 else 12_500
MANY = settings(max_examples=int(os.environ.get("CUPLACE_PAIRS", PAIRS)))


def values_of(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Values that differ as much as the type allows."""
    count = int(np.prod(shape, dtype=int))
    if dtype.kind == "b":
        return np.asarray(np.random.default_rng(count).random(shape) < 0.5)
    values = (np.arange(count) * 37 % 251 - 125).reshape(shape)
    return np.asarray(values * (1 + 2j) if dtype.kind == "c" else abs(values)).astype(dtype)


@MANY
@given(data=st.data())
def test_any_move_gives_the_values_of_numpy_in_every_shard(platform: Platform, data: st.DataObject) -> None:
    shape, source, target = data.draw(transfers(platform.devices))
    dtype, topology = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(TOPOLOGIES))
    array = values_of(shape, dtype)
    old = upload(array, source, None)
    new = move(old, plan_move(shape, dtype, source, target, topology=topology), None)
    for buffer, device, box in zip(new, target.flat_devices, target.layout(shape).boxes, strict=True):
        assert buffer.device is device
        np.testing.assert_array_equal(platform.scheduler.download(buffer), array[box.slices()])
