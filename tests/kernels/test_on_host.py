"""The kernels' own source, run on the CPU under the sanitizers in shuffled thread order, against NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.runtime.backends.cuda.probe import pattern, pattern_sum
from cuplace.runtime.strided import UNITS, fits_32_bits, strided_copy

Run = Callable[..., bytes]

ITEMSIZES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


@st.composite
def boxes(draw: st.DrawFn) -> tuple[int, tuple[int, ...], tuple[slice, ...], tuple[int, ...], tuple[slice, ...], int]:
    """Itemsize, source shape and slices, target shape and slices of an equal box, and a seed."""
    ndim = draw(st.integers(0, 5))
    itemsize = draw(st.sampled_from(sorted(ITEMSIZES)))
    sizes = [draw(st.integers(1, 4)) for _ in range(ndim)]
    shapes: list[list[int]] = [[], []]
    slices: list[list[slice]] = [[], []]
    for size in sizes:
        for side in (0, 1):
            step = draw(st.sampled_from((1, 1, 1, 2, -1, -2)))
            before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
            extent = (size - 1) * abs(step) + 1
            shapes[side].append(before + extent + after)
            last = before + extent - 1
            end = before - 1
            slices[side].append(
                slice(before, before + extent, step) if step > 0 else slice(last, end if end >= 0 else None, step)
            )
    return (
        itemsize, tuple(shapes[0]), tuple(slices[0]), tuple(shapes[1]), tuple(slices[1]), draw(st.integers(0, 2**31))
    )  # fmt: skip


def random_array(shape: tuple[int, ...], itemsize: int, seed: int, order: str) -> np.ndarray[Any, Any]:
    raw = np.random.default_rng(seed).integers(0, 256, math.prod(shape) * itemsize, dtype=np.uint8)
    return raw.view(ITEMSIZES[itemsize]).reshape(shape, order=order)


@given(case=boxes(), bits=st.sampled_from((32, 64)), orders=st.tuples(*[st.sampled_from("CF")] * 2))
def test_copy_equals_numpy(run: Run, case: Any, bits: int, orders: tuple[str, str]) -> None:
    itemsize, source_shape, source_slices, target_shape, target_slices, seed = case
    source = random_array(source_shape, itemsize, seed, orders[0])
    target = random_array(target_shape, itemsize, seed + 1, orders[1])
    from_box, to_box = source[..., *source_slices], target[..., *target_slices]
    copy = strided_copy(from_box.shape, itemsize, from_box.strides, to_box.strides)
    assert copy is not None
    source_offset = from_box.__array_interface__["data"][0] - source.__array_interface__["data"][0]
    target_offset = to_box.__array_interface__["data"][0] - target.__array_interface__["data"][0]
    wanted = target.copy(order="K")
    wanted[..., *target_slices] = from_box

    unit = copy.unit(source_offset, target_offset)
    got = target.tobytes(order="A")
    for from_offset, to_offset, box in copy.boxes(unit):
        assert fits_32_bits(box)
        got = run(
            f"copy_{unit}_{bits}", source.tobytes(order="A"), got, source_offset=source_offset + from_offset,
            target_offset=target_offset + to_offset, box=box, seed=seed, blocks=seed % 3 + 1, threads=seed % 5 + 1,
        )  # fmt: skip
    assert got == wanted.tobytes(order="A")


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("bits", [32, 64])
def test_each_unit_copies_alone(run: Run, unit: int, bits: int) -> None:
    source = np.random.default_rng(0).integers(0, 256, (5, 8 * unit), dtype=np.uint8)
    target = np.zeros((5, 3 * unit), np.uint8)
    part = source[:, unit : 4 * unit]
    copy = strided_copy(part.shape, 1, part.strides, target.strides)
    assert copy is not None
    ((_, _, box),) = copy.boxes(unit)
    got = run(f"copy_{unit}_{bits}", source.tobytes(), target.tobytes(), source_offset=unit, box=box)
    assert got == part.tobytes()


def test_more_dimensions_than_a_kernel_takes_are_several_launches(run: Run) -> None:
    ndim = 18
    source = np.random.default_rng(0).integers(0, 256, 1 << ndim, dtype=np.uint8)
    shape = (2,) * ndim
    scattered = [1 << i for i in np.random.default_rng(1).permutation(ndim)]
    view = np.lib.stride_tricks.as_strided(source, shape, scattered)
    target = np.zeros(shape, np.uint8)
    copy = strided_copy(shape, 1, view.strides, target.strides)
    assert copy is not None
    got = target.tobytes()
    launches = copy.boxes(1)
    assert 1 < len(launches) <= 8
    for from_offset, to_offset, box in launches:
        got = run("copy_1_32", source.tobytes(), got, source_offset=from_offset, target_offset=to_offset, box=box,
                  blocks=1, threads=1)  # fmt: skip
    assert got == view.tobytes()


@given(count=st.integers(0, 40), seed=st.integers(0, 2**64 - 1))
def test_pattern_and_checksum_equal_their_twins(run: Run, count: int, seed: int) -> None:
    filled = run("fill", b"", bytes(8 * count), numbers=(count, seed), seed=seed % 1000)
    assert filled == pattern(count, seed).tobytes()
    total = run("checksum", filled, bytes(8), numbers=(count,), seed=seed % 999)
    assert int.from_bytes(total, "little") == pattern_sum(np.frombuffer(filled, np.uint64))


def test_a_latch_tells_whether_it_was_opened(run: Run) -> None:
    opened, held = (1).to_bytes(4, "little"), bytes(4)
    assert run("latch", opened, bytes(4), numbers=(10**9,), blocks=1, threads=1) == (1).to_bytes(4, "little")
    assert run("latch", held, bytes(4), numbers=(1000,), blocks=1, threads=1) == (2).to_bytes(4, "little")


def test_arriving_is_told(run: Run) -> None:
    assert run("arrive", b"", bytes(8), blocks=1, threads=1) == (1).to_bytes(8, "little")


def test_spin_takes_its_time(run: Run) -> None:
    took = run("spin", b"", bytes(8), numbers=(100_000,), blocks=1, threads=1)
    assert int.from_bytes(took, "little") >= 100_000
