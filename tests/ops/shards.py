"""A small machine of NumPy arrays: it carries out one operation shard by shard, as a resolution says.

It knows nothing of buffers and moves: an operand is "moved" by cutting the shards that are wanted out of the
whole array. What it shows is whether rule, local parameters and implementation of a record fit together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np

from cuplace.array.type import ArrayType
from cuplace.ops.op import Op
from cuplace.ops.reductions import COMBINERS
from cuplace.ops.rule import Resolution, resolve
from cuplace.placement.abstract_mesh import AbstractMesh
from cuplace.placement.axes import AxisType
from cuplace.placement.box import Box
from cuplace.placement.spec import PartitionSpec

Coordinates = Mapping[str, int]


class Outcome(NamedTuple):
    """What a shard by shard computation gave."""

    value: np.ndarray
    resolution: Resolution


def coordinates(mesh: AbstractMesh) -> list[Coordinates]:
    """The place of each device along each axis."""
    ranges = [range(size) for size in mesh.axis_sizes]
    return [dict(zip(mesh.axis_names, at, strict=True)) for at in itertools.product(*ranges)]


def box_of(shape: Sequence[int], spec: PartitionSpec, mesh: AbstractMesh, at: Coordinates) -> Box:
    """The part of an array that a device holds: the first axis of an entry is the major one."""
    starts, stops = [], []
    assert len(spec) == len(shape)
    for size, entry in zip(shape, spec.entries, strict=True):
        part, parts = 0, 1
        for axis in entry or ():
            part, parts = part * mesh.shape[axis] + at[axis], parts * mesh.shape[axis]
        assert size % parts == 0, f"{spec} does not divide {shape}"
        starts.append(part * size // parts)
        stops.append((part + 1) * size // parts)
    return Box(tuple(starts), tuple(stops))


def run(
    op: Op,
    arrays: Sequence[np.ndarray],
    specs: Sequence[PartitionSpec],
    params: Mapping[str, Any],
    mesh: AbstractMesh,
    out_spec: PartitionSpec | None = None,
) -> Outcome:
    """The result of an operation, computed on shards and put together again."""
    types = [ArrayType(a.shape, a.dtype, False, spec, mesh) for a, spec in zip(arrays, specs, strict=True)]
    how = resolve(op, types, [t.spec for t in types], params, mesh, out_spec)
    out = op.infer(tuple(types), params)
    assert_legal(how, out.shape, mesh)
    shards: dict[Box, list[tuple[Coordinates, np.ndarray]]] = {}
    for at in coordinates(mesh):
        inputs = [a[box_of(a.shape, s, mesh, at).slices()] for a, s in zip(arrays, how.in_specs, strict=True)]
        box = box_of(out.shape, how.local_spec, mesh, at)
        local = op.local_params(params, tuple(i.shape for i in inputs), box)
        with np.errstate(all="ignore"):
            made = np.asarray(op.compute(np, *inputs, **local))
        assert made.shape == box.shape
        assert made.dtype == out.dtype
        shards.setdefault(box, []).append((at, made))
    whole = np.zeros(out.shape, out.dtype)
    for box, made in shards.items():
        whole[box.slices()] = combined(made, how, mesh)
    return Outcome(whole, how)


def combined(made: list[tuple[Coordinates, np.ndarray]], how: Resolution, mesh: AbstractMesh) -> np.ndarray:
    """The value of one box of the result: partial results combined, replicas compared."""
    replicas: dict[Any, dict[Any, np.ndarray]] = {}
    for at, value in made:
        kept = tuple(at[axis] for axis in mesh.axis_names if axis not in how.partial_axes)
        replicas.setdefault(kept, {})[tuple(at[axis] for axis in how.partial_axes)] = value
    values = []
    for parts in replicas.values():
        if not how.partial_axes:
            values.extend(parts.values())
            continue
        assert len(parts) == math.prod(mesh.shape[axis] for axis in how.partial_axes)
        stacked = np.stack([parts[key] for key in sorted(parts)])
        values.append(COMBINERS[how.combine].compute(np, stacked, axes=(0,), keepdims=False))
    for value in values[1:]:
        np.testing.assert_array_equal(value, values[0])
    return values[0]


def assert_legal(how: Resolution, shape: Sequence[int], mesh: AbstractMesh) -> None:
    """Specs use an axis once, and divide the result; partial axes are used for nothing else."""
    for spec in (how.out_spec, how.local_spec, *how.in_specs):
        assert len(spec.axes) == len(set(spec.axes)), spec
    for at in coordinates(mesh):
        box_of(shape, how.out_spec, mesh, at)
    assert not set(how.partial_axes) & set(how.local_spec.axes)
    assert (how.combine is None) == (not how.partial_axes)


# --- strategies --------------------------------------------------------------------------------------------

AXES = ("x", "y", "z")


@st.composite
def meshes(draw: st.DrawFn, kinds: Sequence[AxisType] = (AxisType.Auto,)) -> AbstractMesh:
    """Meshes of up to three axes of one to four devices."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3))
    types = tuple(draw(st.sampled_from(list(kinds))) for _ in sizes)
    return AbstractMesh(tuple(sizes), AXES[: len(sizes)], types)


SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24])


def shapes(min_dims: int = 0, max_dims: int = 3) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of sizes that have many divisors."""
    return st.lists(SIZES, min_size=min_dims, max_size=max_dims).map(tuple)


@st.composite
def specs(draw: st.DrawFn, shape: Sequence[int], mesh: AbstractMesh) -> PartitionSpec:
    """Specs that divide a shape, full rank."""
    free = list(draw(st.permutations(mesh.axis_names)))
    entries: list[Any] = []
    for size in shape:
        axes: list[str] = []
        while free and draw(st.booleans()):
            axis = free.pop()
            if size % math.prod(mesh.shape[a] for a in (*axes, axis)) == 0:
                axes.append(axis)
        entries.append(tuple(axes) or None)
    return PartitionSpec(*entries)


def numbers(shape: Sequence[int], seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Small whole numbers, so that sums and products in any order are exact."""
    drawn = np.random.default_rng(seed).integers(-4, 5, size=tuple(shape))
    return drawn.astype(dtype)


P = PartitionSpec
E = AxisType.Explicit
X2Y4 = AbstractMesh((2, 4), ("x", "y"), (E, E))
X8 = AbstractMesh((8,), ("x",), (E,))


def typed(shape: Sequence[int], *entries: Any, mesh: AbstractMesh | None = X2Y4, dtype: Any = np.float32) -> ArrayType:
    """The type of an array on a mesh of Explicit axes."""
    return ArrayType(tuple(shape), np.dtype(dtype), False, PartitionSpec(*entries), mesh)


def unplaced(shape: Sequence[int], dtype: Any = np.float32) -> ArrayType:
    """The type of an uncommitted array, or one on a single device."""
    return ArrayType(tuple(shape), np.dtype(dtype))
